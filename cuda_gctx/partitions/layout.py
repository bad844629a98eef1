"""Layouts: sets of partition requests, as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from keyword import iskeyword
from numbers import Real
from typing import Any, TypeAlias, final

from cuda_gctx._core.extension import (
    SMResourceOptions,
    WorkqueueResourceOptions,
    as_bool,
    as_sm_count,
    of_fields,
    requests_of,
    spelling,
)
from cuda_gctx._core.text import parsed_json

__all__ = ["BACKGROUND", "LARGEST_COUNT", "RESERVED_NAMES", "Layout", "PartitionSpec", "Request"]

# The partition over the SMs that no other one requests.
BACKGROUND = "background"

# No partition can have these names: the public attributes of Partitions, and the keywords of the functions that take
# partitions by name.
RESERVED_NAMES = frozenset(
    {
        "among",
        BACKGROUND,
        "close",
        "device",
        "exclusive",
        "is_closed",
        "layout",
        "names",
        "stream",
        "sync",
        "verify",
    }
)

SCHEMA = 2
# Shares are equal if they agree to this many digits, so that 0.1 + 0.2 is 0.3.
# Of SMs: beyond any GPU, and within what the driver's fields hold.
LARGEST_COUNT = 1_000_000
SHARE_DIGITS = 9
# Spellings of layouts that are remembered, so that a known one is not checked again.
MOST_SPELLINGS = 4096

BOTH_WAYS = "partitions are requested by position or by name, not both"

OPTION_FIELDS = (
    "count",
    "coscheduled_sm_count",
    "preferred_coscheduled_sm_count",
    "backfill",
    "locality_domain",
    "supplemental_sms",
)


@dataclass(frozen=True)
class PartitionSpec:
    """The request of one partition.

    sms: a number of SMs; a share of the device (a float below 1), rounded down to whole units; None for all
    remaining SMs; or SMResourceOptions for one group.
    workqueue: the options of its hardware queues (driver 13.1 and newer).
    aligned: with None, only the remaining SMs that fill whole units of the device's alignment; the others go to the
    background partition.

    Requests that mean the same are equal: ``SMResourceOptions([8])`` becomes 8, and
    ``SMResourceOptions(None)`` becomes None with ``aligned=True``.
    """

    sms: int | float | SMResourceOptions | None = None
    workqueue: WorkqueueResourceOptions | None = None
    aligned: bool = field(default=False, kw_only=True)
    # Whether it requests SMs without a number. Only one partition of a layout can, unless the request is for SMs of one
    # locality domain.
    takes_the_remainder: bool = field(init=False, repr=False, compare=False)
    stays_in_a_domain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wants_aligned = self.aligned is not False and as_bool("aligned", self.aligned)
        sms, aligned = _checked_sms(self.sms)
        if wants_aligned and sms is not None:
            raise ValueError(f"aligned=True is for all remaining SMs (None), not for {self.sms!r}")
        object.__setattr__(self, "sms", sms)
        object.__setattr__(self, "aligned", aligned or wants_aligned)
        takes_the_remainder = sms is None or (isinstance(sms, SMResourceOptions) and sms.count is None)
        object.__setattr__(self, "takes_the_remainder", takes_the_remainder)
        domain = sms.locality_domain if isinstance(sms, SMResourceOptions) and not sms.backfill else None
        object.__setattr__(self, "stays_in_a_domain", domain not in (None, "any"))
        if self.workqueue is not None and not isinstance(self.workqueue, WorkqueueResourceOptions):
            raise TypeError(f"workqueue must be WorkqueueResourceOptions, not {type(self.workqueue).__name__}")

    @property
    def request(self) -> Request:
        """The shortest request that is equal to it."""
        return self if self.workqueue is not None or self.aligned else self.sms

    def __repr__(self) -> str:
        queue = f", workqueue={self.workqueue}" if self.workqueue is not None else ""
        aligned = ", aligned=True" if self.aligned else ""
        return f"PartitionSpec({self.sms!r}{queue}{aligned})"


Request: TypeAlias = int | float | SMResourceOptions | PartitionSpec | None


def _only(entry: Any) -> Any:
    """The entry of an option of one group, which may be in a sequence."""
    return entry[0] if isinstance(entry, tuple) else entry


def _of_options(options: SMResourceOptions) -> tuple[int | SMResourceOptions | None, bool]:
    if isinstance(options.count, tuple) and len(options.count) != 1:
        raise ValueError(
            f"{options} requests {len(options.count)} groups, and a partition is one group: name each group separately"
        )
    group = SMResourceOptions(*(_only(getattr(options, name)) for name in OPTION_FIELDS))
    if group != SMResourceOptions(group.count):
        return group, False
    return _only(group.count), group.count is None


def _checked_sms(value: object) -> tuple[int | float | SMResourceOptions | None, bool]:
    """The request in its one form, and whether it is for aligned SMs only."""
    if value is None:
        return None, False
    if isinstance(value, SMResourceOptions):
        return _of_options(value)
    if hasattr(value, "__index__"):
        count = as_sm_count("sms", value, LARGEST_COUNT)
        if count is None:
            raise ValueError("0 SMs: leave the partition out, or request all remaining SMs with None")
        return count, False
    if isinstance(value, Real):
        share = round(float(value), SHARE_DIGITS)
        if share == 1:
            raise ValueError("1.0 is not a share: request all remaining SMs with None")
        if not 0 < share < 1:
            raise ValueError(f"sms must be an int or a share of a device (a float above 0 and below 1), not {value}")
        return share, False
    raise TypeError(
        "sms must be an int, a share of a device (a float above 0 and below 1), None or SMResourceOptions, not "
        f"{type(value).__name__}" + ("; None requests all remaining SMs" if value == "rest" else "")
    )


def is_partition_name(name: str) -> bool:
    """Tells whether a partition can have this name, so that it can be read as ``parts.name``."""
    return name.isidentifier() and not iskeyword(name) and not name.startswith("_") and name not in RESERVED_NAMES


def _checked_names(names: Iterable[object]) -> tuple[str, ...]:
    checked = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a partition must be a str, not {type(name).__name__}")
        checked.append(str.__str__(name))  # layouts are shared by value, and the core takes no subclass of str
        if name in RESERVED_NAMES:
            raise ValueError(
                f"{name!r} cannot be the name of a partition: it is reserved, as are "
                f"{', '.join(sorted(RESERVED_NAMES - {name}))}"
            )
        if not is_partition_name(name):
            raise ValueError(
                f"{name!r} cannot be the name of a partition: it must be a Python identifier without a leading "
                "underscore, and not a keyword"
            )
    return tuple(checked)


def _spec_to_json(spec: PartitionSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if isinstance(spec.sms, SMResourceOptions):
        values = {name: getattr(spec.sms, name) for name in OPTION_FIELDS}
        entry["options"] = {name: value for name, value in values.items() if value is not None and value is not False}
    elif isinstance(spec.sms, float):
        entry["share"] = spec.sms
    elif spec.sms is None:
        entry["remaining"] = "aligned" if spec.aligned else "all"
    else:
        entry["sms"] = spec.sms
    if spec.workqueue is not None:
        queue = spec.workqueue
        entry["workqueue"] = {"sharing_scope": queue.sharing_scope, "concurrency_limit": queue.concurrency_limit}
    return entry


def _spec_from_json(entry: Any) -> PartitionSpec:
    if not isinstance(entry, Mapping):
        raise ValueError(f"a partition must be an object, not {type(entry).__name__}")
    kinds = {"options", "share", "remaining", "sms"} & set(entry)
    unknown = set(entry) - kinds - {"name", "workqueue"}
    if len(kinds) != 1 or unknown:
        raise ValueError(
            "a partition must have exactly one of the fields sms, share, remaining and options, and may have name and "
            f"workqueue: it has {', '.join(sorted(entry)) or 'no field'}"
        )
    [kind] = kinds
    value = entry[kind]
    queue = of_fields(WorkqueueResourceOptions, entry["workqueue"]) if entry.get("workqueue") is not None else None
    if kind == "options":
        return PartitionSpec(of_fields(SMResourceOptions, value), queue)
    if kind == "remaining":
        if value not in ("all", "aligned"):
            raise ValueError(f"remaining must be 'all' or 'aligned', not {value!r}")
        return PartitionSpec(None, queue, aligned=value == "aligned")
    if not isinstance(value, int if kind == "sms" else float):
        raise ValueError(f"{kind} must be {'an integer' if kind == 'sms' else 'a float'}, not {value!r}")
    return PartitionSpec(value, queue)


@final
class Layout:
    """The partitions that a device is split into, by name (``Layout(control=16)``) or by position.

    Layouts are immutable and equal by value.

    Example:

        from cuda_gctx import Device, Layout

        layout = Layout(control=16, rest=None)
        print(Layout.from_json(layout.to_json()) == layout)  # True
        with Device().partition(layout) as parts:
            print(parts.names)  # ('control', 'rest')
    """

    __slots__ = ("__weakref__", "_hash", "_key", "names", "specs")

    names: tuple[str, ...]
    specs: tuple[PartitionSpec, ...]
    _key: tuple[bool, tuple[str, ...], tuple[PartitionSpec, ...]]
    _hash: int

    def __new__(cls, /, *requests: Request, **named: Request) -> Layout:
        if requests and named:
            raise ValueError(BOTH_WAYS)
        return _layout_of(named or requests)

    @staticmethod
    def of(*requests: Layout | Mapping[str, Request] | Sequence[Request] | Request, **named: Request) -> Layout:
        """The layout of requests.

        requests: by position, or one mapping, sequence or Layout. named: by name.
        """
        return layout_of(requests, named)

    @property
    def _named(self) -> bool:
        return self._key[0]

    def __eq__(self, other: object) -> bool:
        return self is other or (self._key == other._key if isinstance(other, Layout) else NotImplemented)

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Layout is immutable: create another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Layout is immutable: create another one")

    def to_json(self) -> str:
        """The layout as JSON, which from_json() reads."""
        partitions = [
            {**({"name": name} if self._named else {}), **_spec_to_json(spec)}
            for name, spec in zip(self.names, self.specs, strict=True)
        ]
        return json.dumps({"schema": SCHEMA, "partitions": partitions})

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """A layout that was written as JSON.

        text: the output of to_json(). Anything else raises ValueError.
        """
        document = parsed_json(text)
        if not isinstance(document, Mapping) or not isinstance(document.get("partitions"), list):
            raise ValueError('this JSON is not a layout: it must be an object with a "partitions" list')
        schema = document.get("schema", "missing")
        if type(schema) is not int or schema != SCHEMA:
            raise ValueError(
                f"this JSON is not a layout of schema {SCHEMA}: its schema is {schema}. In "
                "schema 1, which had no number, a partition without a count took the aligned remainder only: write the "
                "layout again"
            )
        unknown = sorted(set(document) - {"schema", "partitions"})
        if unknown:
            raise ValueError(
                f"this JSON is not a layout: its fields are schema and partitions, and not {', '.join(unknown)}"
            )
        specs = []
        for number, entry in enumerate(document["partitions"]):
            try:
                specs.append(_spec_from_json(entry))
            except (TypeError, ValueError) as error:
                raise ValueError(f"this JSON is not a layout: partitions[{number}]: {error}") from None
        names = [entry["name"] for entry in document["partitions"] if "name" in entry]
        if names and (len(names) != len(specs) or len(set(map(str, names))) != len(names)):
            raise ValueError(
                "this JSON is not a layout: either all partitions need different names, or none has a name"
            )
        try:
            return cls.of(dict(zip(names, specs, strict=True)) if names else specs)
        except TypeError as error:
            raise ValueError(f"this JSON is not a layout: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        requests = [repr(spec.request) for spec in self.specs]
        if self._named:
            requests = [f"{name}={request}" for name, request in zip(self.names, requests, strict=True)]
        return f"Layout({', '.join(requests)})"


# Requests that were seen before, with their layouts, so that a known one is not checked again.
_layouts: dict[object, Layout] = {}


def _layout_of(requests: Mapping[str, Any] | Sequence[Any]) -> Layout:
    """The layout of these requests, which are a copy."""
    if not requests:
        raise ValueError("a layout needs at least one partition")
    named = isinstance(requests, Mapping)
    names = _checked_names(requests) if named else tuple(map(str, range(len(requests))))
    specs, open_ones = [], []
    for name, request in zip(names, requests.values() if isinstance(requests, Mapping) else requests, strict=True):
        try:
            spec = request if isinstance(request, PartitionSpec) else PartitionSpec(request)
        except (TypeError, ValueError) as error:
            raise type(error)(f"partition {name}: {error}") from None
        specs.append(spec)
        if spec.takes_the_remainder and not spec.stays_in_a_domain:  # the split itself checks those
            open_ones.append(name)
    if len(open_ones) > 1:
        raise ValueError(f"{' and '.join(open_ones)} request the remaining SMs: only one partition can")
    layout = object.__new__(Layout)
    key = (named, names, tuple(specs))
    for name, value in (("_key", key), ("_hash", hash(key)), ("names", names), ("specs", key[2])):
        object.__setattr__(layout, name, value)
    return layout


def layout_of(requests: tuple[Any, ...], named: dict[str, Any]) -> Layout:
    """The layout of these arguments, as from Layout.of(). A repeated request is quick."""
    if requests and named:
        raise ValueError(BOTH_WAYS)
    spelled = spelling(requests, named)
    if type(spelled) is Layout:
        return spelled
    if type(spelled) is not tuple:
        [request] = requests
        if isinstance(request, Mapping):
            return _layout_of(dict(request))
        is_several = isinstance(request, Sequence) and not isinstance(request, (str, bytes, bytearray))
        return _layout_of(tuple(request) if is_several else (request,))
    try:
        return _layouts[spelled]
    except (KeyError, TypeError):  # not seen before, or with something unhashable in it
        layout = _layout_of(requests_of(spelled))
    remember(_layouts, spelled, layout)
    return layout


def remember(known: dict[object, Any], spelled: object, value: object) -> None:
    """Remember a value by a spelling, to skip the checks next time. The number of spellings is limited."""
    if type(spelled) in (tuple, Layout):
        if len(known) >= MOST_SPELLINGS:
            known.clear()
        with suppress(TypeError):  # something unhashable is in it
            known[spelled] = value
