"""Values from JSON: a reader takes a value and its path, and raises a TypeError or ValueError that names the path."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

from cuda_gctx._core.arguments import as_bool, as_int, as_number
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.tune._plans import Plan

__all__ = ["Reader", "by_name", "conditions", "each", "made", "optional", "plain", "plan_of", "reading"]

Value = TypeVar("Value")
Reader: TypeAlias = Callable[[Any, str], Any]


@contextmanager
def reading(text: str, what: str, schema: int) -> Iterator[dict[str, Any]]:
    """A block that reads the fields of a saved document. Its errors name the document, and are ValueErrors."""
    value = json.loads(text)
    if not isinstance(value, Mapping) or value.get("schema") != schema:
        raise ValueError(f"not a {what} of schema {schema}: measure again with this version")
    try:
        yield {name: item for name, item in value.items() if name != "schema"}
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"not a {what} of schema {schema}: {error}") from error


def plain(kind: Any, value: Any, where: str) -> Any:
    """A string, a bool or a number, which is never negative here; None if the kind allows it."""
    if value is None and type(None) in get_args(kind):
        return None
    kind = next((one for one in get_args(kind) if one is not type(None)), kind)
    if kind is bool:
        return as_bool(where, value)
    if kind is int:
        return as_int(where, value, 0)
    if kind is float:
        number = as_number(where, value)
        if not 0 <= number < math.inf:
            raise ValueError(f"{where} must be a number of 0 or more, not {value}")
        return number
    if not isinstance(value, kind):
        raise TypeError(f"{where} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def made(kind: type[Value], value: Any, where: str, **readers: Reader) -> Value:
    """A dataclass, from exactly the fields that it is made from."""
    hints = get_type_hints(kind)
    kinds = {field.name: hints[field.name] for field in fields(kind) if field.init}  # type: ignore[arg-type]
    at = f"{where}." if where else ""
    given = set(mapping(value, where))
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


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} must be an object, not {type(value).__name__}")
    return value


def each(value: Any, where: str, read: Reader) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{where} must be a list, not {type(value).__name__}")
    return [read(item, f"{where}[{number}]") for number, item in enumerate(value)]


def by_name(value: Any, where: str, read: Reader) -> dict[str, Any]:
    return {name: read(item, f"{where}.{name}") for name, item in mapping(value, where).items()}


def optional(read: Reader) -> Reader:
    return lambda value, where: None if value is None else read(value, where)


def plan_of(value: Any, where: str) -> Plan:
    try:
        return Plan.from_dict(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def conditions(value: Any, where: str) -> Conditions:
    return made(Conditions, value, where)
