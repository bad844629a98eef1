"""Values as JSON and back, by the types of their fields. What reads them names the field of anything that is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from cuda_gctx._core.extension import as_bool, as_int, as_number
from cuda_gctx._core.text import parsed_json
from cuda_gctx.partitions.layout import Layout
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput, settle

__all__ = ["Document", "settle_by_type"]

Value = TypeVar("Value", bound="Document")
Made = TypeVar("Made")

# Of an int: a longer one would not be a number of anything that was measured, and not a float either.
LARGEST = 2**63 - 1


class Document:
    """A dataclass that is written as JSON. schema: the number of the form that its fields have."""

    schema: ClassVar[int]

    def to_json(self) -> str:
        """The value as JSON, for from_json()."""
        return json.dumps(_plain(self), indent=1)

    @classmethod
    def from_json(cls: type[Value], text: str) -> Value:
        """A value that was written as JSON.

        text: what to_json() returned. Anything else raises a ValueError that names the field.
        """
        return cls._read(parsed_json(text))

    @classmethod
    def _read(cls: type[Value], value: Any) -> Value:
        what = f"{cls.__name__.lower()} of schema {cls.schema}"
        if not isinstance(value, Mapping) or value.get("schema") != cls.schema:
            raise ValueError(f"not a {what}: measure again with this version")
        try:
            made = _made(cls, {name: item for name, item in value.items() if name != "schema"}, "")
            made._demand_consistency()
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise ValueError(f"not a {what}: {error}") from error
        return made

    def _demand_consistency(self) -> None:
        """Raise an error if the fields do not fit each other."""


def settle_by_type(value: Any) -> None:
    """Check the fields of a frozen dataclass by their types; a TypeError or ValueError names the field."""
    kinds = _kinds(type(value))  # type: ignore[arg-type]
    settle(value, **{name: _read(kind, getattr(value, name), name) for name, kind in kinds.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Layout):
        return json.loads(value.to_json())
    if isinstance(value, Throughput):
        return {"throughput": dict(value.weights)}
    if isinstance(value, TailLatency):
        found = asdict(value)
        return {"tail_latency": found.pop("part"), **found}
    if is_dataclass(value):
        schema: dict[str, Any] = {"schema": value.schema} if isinstance(value, Document) else {}
        return schema | {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _read(kind: Any, value: Any, path: str) -> Any:
    """A value of a type. TypeError or ValueError with the path of what is wrong."""
    origin, arguments = get_origin(kind), get_args(kind)
    document = kind if isinstance(kind, type) and issubclass(kind, Document) else None
    if document or kind is Layout or kind == Objective:
        try:
            if kind is Layout:
                return value if isinstance(value, Layout) else Layout.from_json(json.dumps(value))
            return document._read(value) if document else _objective(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    if type(None) in arguments:
        [kind] = [one for one in arguments if one is not type(None)]
        return None if value is None else _read(kind, value, path)
    if isinstance(kind, type) and is_dataclass(kind):
        return _made(kind, value, path)
    if origin in (dict, Mapping):
        found = _is(Mapping, "a mapping", value, path)  # type: ignore[type-abstract]
        return {name: _read(arguments[1], item, f"{path}.{name}") for name, item in found.items()}
    if origin is tuple:
        items = value if isinstance(value, tuple) else _is(list, "a list or tuple", value, path)
        return tuple(_read(arguments[0], item, f"{path}[{place}]") for place, item in enumerate(items))
    if hasattr(kind, "_fields"):  # a named tuple
        if len(_is(list, "a list", value, path)) != len(kind._fields):
            raise ValueError(f"{path} must be {' and '.join(kind._fields)}, not {value}")
        return kind(*(_number(float, item, f"{path}.{name}") for name, item in zip(kind._fields, value, strict=True)))
    if str in arguments and not isinstance(value, str):  # a number or a text
        return _number(int if hasattr(value, "__index__") else float, value, path)
    if kind in (bool, int, float):
        return _number(kind, value, path)
    return _is(str, "a string", value, path)


def _is(kind: type[Made], what: str, value: Any, path: str) -> Made:
    """A value of a type of JSON."""
    if not isinstance(value, kind):
        raise TypeError(f"{path} must be {what}, not {type(value).__name__}")
    return value


def _number(kind: type, value: Any, path: str) -> bool | int | float:
    """A number, which is never negative here, or a bool."""
    if kind is bool:
        return as_bool(path, value)
    if kind is int:
        return as_int(path, value, 0, LARGEST)
    number = as_number(path, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{path} must be a number of 0 or more, not {value}")
    return number


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    """The types of the fields that a dataclass is made from, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _made(kind: type[Made], value: Any, path: str) -> Made:
    """A dataclass, from exactly the fields that it is made from."""
    kinds = _kinds(kind)  # type: ignore[arg-type]
    at = f"{path}." if path else ""
    for name in sorted(kinds.keys() ^ _is(dict, "an object", value, path).keys()):
        raise ValueError(f"{at}{name} is {'unknown' if name in value else 'missing'}")
    return kind(**{name: _read(kinds[name], value[name], at + name) for name in kinds})


def _objective(value: Any) -> Objective:
    if value == "makespan":
        return "makespan"
    if isinstance(value, Mapping) and set(value) == {"throughput"}:
        return Throughput(**_is(dict, "an object", value["throughput"], "throughput"))
    if isinstance(value, Mapping) and "tail_latency" in value:
        return _made(TailLatency, {("part" if n == "tail_latency" else n): item for n, item in value.items()}, "")
    raise ValueError(f"unknown objective: {value!r}")
