"""Values from JSON: a reader takes a value and its path, and raises a TypeError or ValueError that names the path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

from cuda_gctx._core.arguments import as_bool, as_int, as_number
from cuda_gctx._core.text import parsed_json
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput
from cuda_gctx.tune._plans import Plan

__all__ = [
    "Reader",
    "by_name",
    "conditions",
    "each",
    "made",
    "objective_as_json",
    "objective_of",
    "optional",
    "plain",
    "plan_of",
    "reading",
]

Value = TypeVar("Value")
Reader: TypeAlias = Callable[[Any, str], Any]


# Of an int: a longer one would not be a number of anything that was measured, and not a float either.
LARGEST = 2**63 - 1


@contextmanager
def reading(text: str, what: str, schema: int) -> Iterator[dict[str, Any]]:
    """A block that reads the fields of a saved document. Its errors name the document, and are ValueErrors."""
    value = parsed_json(text)
    if not isinstance(value, Mapping) or value.get("schema") != schema:
        raise ValueError(f"not a {what} of schema {schema}: measure again with this version")
    try:
        yield {name: item for name, item in value.items() if name != "schema"}
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"not a {what} of schema {schema}: {error}") from error


def plain(kind: Any, value: Any, path: str) -> Any:
    """A string, a bool or a number, which is never negative here; None if the kind allows it."""
    if value is None and type(None) in get_args(kind):
        return None
    kind = next((member for member in get_args(kind) if member is not type(None)), kind)
    if kind is bool:
        return as_bool(path, value)
    if kind is int:
        return as_int(path, value, 0, LARGEST)
    if kind is float:
        number = as_number(path, value)
        if not 0 <= number < math.inf:
            raise ValueError(f"{path} must be a number of 0 or more, not {value}")
        return number
    if not isinstance(value, kind):
        raise TypeError(f"{path} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def made(kind: type[Value], value: Any, path: str, **readers: Reader) -> Value:
    """A dataclass, from exactly the fields that it is made from."""
    hints = get_type_hints(kind)
    kinds = {field.name: hints[field.name] for field in fields(kind) if field.init}  # type: ignore[arg-type]
    at = f"{path}." if path else ""
    given = set(mapping(value, path))
    for name in sorted(kinds.keys() ^ given):
        raise ValueError(f"{at}{name} is {'unknown' if name in given else 'missing'}")
    return kind(
        **{
            name: readers[name](value[name], at + name)
            if name in readers
            else plain(kinds[name], value[name], at + name)
            for name in kinds
        }
    )


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{path} must be an object, not {type(value).__name__}")
    return value


def each(value: Any, path: str, read: Reader) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{path} must be a list, not {type(value).__name__}")
    return [read(item, f"{path}[{number}]") for number, item in enumerate(value)]


def by_name(value: Any, path: str, read: Reader) -> dict[str, Any]:
    return {name: read(item, f"{path}.{name}") for name, item in mapping(value, path).items()}


def optional(read: Reader) -> Reader:
    return lambda value, path: None if value is None else read(value, path)


def plan_of(value: Any, path: str) -> Plan:
    try:
        return Plan.from_dict(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def conditions(value: Any, path: str) -> Conditions:
    return made(Conditions, value, path)


def objective_as_json(objective: Objective) -> Any:
    if isinstance(objective, Throughput):
        return {"throughput": dict(objective.weights)}
    if isinstance(objective, TailLatency):
        return {
            "tail_latency": objective.part,
            "quantile": objective.quantile,
            "others": objective.others,
            "rate": objective.rate,
            "closed_loop": objective.closed_loop,
        }
    return objective


def objective_of(value: Any) -> Objective:
    if value == "makespan":
        return "makespan"
    if isinstance(value, Mapping) and set(value) == {"throughput"} and isinstance(value["throughput"], Mapping):
        return Throughput(**value["throughput"])
    if isinstance(value, Mapping) and set(value) == {
        "tail_latency",
        "quantile",
        "others",
        "rate",
        "closed_loop",
    }:
        return TailLatency(
            value["tail_latency"], value["quantile"], value["others"], value["rate"], value["closed_loop"]
        )
    raise ValueError(f"unknown objective: {value!r}")
