"""Layouts: what partitions are asked for, as values."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

from cuda_gctx._core.resources import SMResourceOptions, WorkqueueResourceOptions

__all__ = ["Layout", "PartitionSpec", "Request"]


@dataclass(frozen=True, eq=False)
class PartitionSpec:
    """What one partition asks for.

    sms: a number of SMs; a fraction of the device (a float up to 1.0), rounded down to whole units; None for everything
    left; or SMResourceOptions for one group.
    workqueue: how its hardware queues are provisioned (driver 13.1 and newer).
    """

    sms: int | float | SMResourceOptions | None = None
    workqueue: WorkqueueResourceOptions | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sms", _checked_sms(self.sms))
        if self.workqueue is not None and not isinstance(self.workqueue, WorkqueueResourceOptions):
            raise TypeError(f"workqueue must be WorkqueueResourceOptions, not {type(self.workqueue).__name__}")

    def _identity(self) -> tuple[object, ...]:
        # 1 and 1.0 are equal numbers and very different requests.
        return type(self.sms), self.sms, self.workqueue

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, PartitionSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        queue = f", workqueue={self.workqueue}" if self.workqueue is not None else ""
        return f"PartitionSpec({self.sms!r}{queue})"


Request: TypeAlias = int | float | SMResourceOptions | PartitionSpec | None


def _checked_sms(value: object) -> int | float | SMResourceOptions | None:
    if value is None:
        return None
    if isinstance(value, SMResourceOptions):
        if isinstance(value.count, tuple) and len(value.count) != 1:
            raise ValueError(
                f"{value} asks for {len(value.count)} groups, and a partition is one: give each its own name"
            )
        return value
    if isinstance(value, bool):
        raise TypeError("a partition is asked for by a number of SMs, not by a bool")
    with suppress(TypeError):
        number = index(value)  # type: ignore[arg-type]
        if number < 1:
            raise ValueError(f"a partition needs at least 1 SM, not {number}")
        return number
    if isinstance(value, numbers.Real):
        fraction = float(value)
        if not 0 < fraction <= 1:
            raise ValueError(
                f"{fraction} is no part of a device: a float is a fraction above 0 and up to 1, an int a number of SMs"
            )
        return fraction
    raise TypeError(
        "a partition is asked for by an int, a fraction, None, SMResourceOptions or a PartitionSpec, "
        f"not by {type(value).__name__}"
    )


def _spec(request: object) -> PartitionSpec:
    return request if isinstance(request, PartitionSpec) else PartitionSpec(request)  # type: ignore[arg-type]


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a partition must be a str, not {type(name).__name__}")
    if not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"{name!r} cannot be the name of a partition: parts.{name} must be readable as an attribute")
    from cuda_gctx.partitions import Partitions

    if hasattr(Partitions, name):
        raise ValueError(f"{name!r} cannot be the name of a partition: Partitions has an attribute of that name")
    return name


def _spec_to_json(spec: PartitionSpec) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if isinstance(spec.sms, SMResourceOptions):
        fields = ("count", "coscheduled_sm_count", "preferred_coscheduled_sm_count", "backfill", "locality_domain")
        told["options"] = {
            name: getattr(spec.sms, name) for name in fields if getattr(spec.sms, name) not in (None, False)
        }
    elif isinstance(spec.sms, float):
        told["fraction"] = spec.sms
    else:
        told["sms"] = spec.sms
    if spec.workqueue is not None:
        queue = spec.workqueue
        told["workqueue"] = {"sharing_scope": queue.sharing_scope, "concurrency_limit": queue.concurrency_limit}
    return told


def _spec_from_json(told: Mapping[str, Any]) -> PartitionSpec:
    queue = WorkqueueResourceOptions(**told["workqueue"]) if told.get("workqueue") is not None else None
    if "options" in told:
        return PartitionSpec(SMResourceOptions(**told["options"]), queue)
    return PartitionSpec(float(told["fraction"]) if "fraction" in told else told["sms"], queue)


class Layout:
    """What a set of partitions asks for: a value, by name (``Layout(decode=16, prefill=None)``) or by position."""

    __slots__ = ("_hash", "_named", "names", "specs")

    names: tuple[str, ...]
    specs: tuple[PartitionSpec, ...]
    _named: bool
    _hash: int

    def __init__(self, /, *requests: Request, **named: Request) -> None:
        self._fill(requests, named)

    @classmethod
    def of(cls, layout: Layout | Mapping[str, Request] | Sequence[Request]) -> Layout:
        """The layout that a mapping (by name) or a sequence (by position) stands for."""
        if isinstance(layout, Layout):
            return layout
        made = cls.__new__(cls)
        if isinstance(layout, Mapping):
            made._fill((), layout)
        elif isinstance(layout, Sequence) and not isinstance(layout, (str, bytes, bytearray)):
            made._fill(layout, {})
        else:
            raise TypeError(f"a layout is a Layout, a mapping or a sequence, not {type(layout).__name__}")
        return made

    def _fill(self, requests: Sequence[Request], named: Mapping[str, Request]) -> None:
        if requests and named:
            raise ValueError("partitions are given by position or by name, not both")
        if not requests and not named:
            raise ValueError("a layout needs at least one partition")
        put = object.__setattr__
        put(self, "_named", bool(named))
        put(self, "names", tuple(map(_checked_name, named)) if named else tuple(map(str, range(len(requests)))))
        specs = []
        for name, request in zip(self.names, named.values() if named else requests, strict=True):
            try:
                specs.append(_spec(request))
            except (TypeError, ValueError) as error:
                raise type(error)(f"partition {name}: {error}") from None
        put(self, "specs", tuple(specs))
        open_ones = [name for name, spec in zip(self.names, self.specs, strict=True) if takes_the_rest(spec)]
        if len(open_ones) > 1:
            raise ValueError(f"{' and '.join(open_ones)} all ask for everything left: one partition can have it")
        put(self, "_hash", hash((self._named, self.names, self.specs)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Layout is a value and cannot be changed: make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Layout is a value and cannot be changed: make another one")

    def to_json(self) -> str:
        """The layout as JSON, which from_json() reads."""
        partitions = [
            {**({"name": name} if self._named else {}), **_spec_to_json(spec)}
            for name, spec in zip(self.names, self.specs, strict=True)
        ]
        return json.dumps({"partitions": partitions})

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """The layout that to_json() wrote."""
        try:
            entries = json.loads(text)["partitions"]
            specs = [_spec_from_json(entry) for entry in entries]
            names = [entry["name"] for entry in entries if "name" in entry]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this JSON is no layout: {error!r}") from None
        if names and (len(names) != len(specs) or len(set(names)) != len(names)):
            raise ValueError("this JSON is no layout: all partitions need names of their own, or none has one")
        return cls.of(dict(zip(names, specs, strict=True)) if names else specs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.from_json, (self.to_json(),)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return (self._named, self.names, self.specs) == (other._named, other.names, other.specs)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        told = [spec if spec.workqueue is not None else spec.sms for spec in self.specs]
        if self._named:
            return f"Layout({', '.join(f'{name}={value!r}' for name, value in zip(self.names, told, strict=True))})"
        return f"Layout({', '.join(map(repr, told))})"


def takes_the_rest(spec: PartitionSpec) -> bool:
    if isinstance(spec.sms, SMResourceOptions):
        return spec.sms.count in (None, (None,))
    return spec.sms is None
