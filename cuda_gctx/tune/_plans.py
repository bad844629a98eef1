"""Ways to run parts, as values: in sequence, on streams, over or in partitions; opening them and switching to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal, TypeAlias

from cuda_gctx._core.extension import Context, Device, Stream, StreamOptions, as_int
from cuda_gctx.partitions import PartitionPool, Partitions, open_layout
from cuda_gctx.partitions.layout import BACKGROUND, LARGEST_COUNT, Layout, is_partition_name
from cuda_gctx.partitions.pool import switch_to
from cuda_gctx.partitions.verification import VerifyReport, verify
from cuda_gctx.tune._json import Document, settle_by_type

__all__ = ["ALL", "HINT", "KINDS", "Kind", "Plan", "partition_names", "sizes_of"]

Kind: TypeAlias = Literal["sequence", "streams", "priority", "also", "overlay", "partitions"]
KINDS: tuple[Kind, ...] = ("sequence", "streams", "priority", "also", "overlay", "partitions")  # the simplest first
HINT = "SM count hint"
ALL = "all"  # the size of the part of an overlay that has the whole device


def partition_names(parts: Sequence[str]) -> dict[str, str]:
    """The name of each part's partition: the name of the part, unless partitions cannot have it."""

    unused = (name for name in map("part_{}".format, count()) if name not in parts)
    return {part: part if is_partition_name(part) else next(unused) for part in parts}


@dataclass(frozen=True)
class Plan(Document):
    """A way to run parts.

    kind: "sequence" (one stream), "streams" (one for each part), "priority" (the same, and `first` goes before the
    others), "also" (one stream, on which another function of the program does the work of all parts), "overlay"
    (`first` runs on the whole device with the highest priority, over a partition in which the others run), or
    "partitions" (a stream in a partition of its own for each part).
    parts: their names, in the order in which they are started.
    layout: the partitions. Open it with open() or switch(), which take plans of every kind.
    places: the partition of each part, which may be the background partition; in an overlay, of each part but `first`,
    and several parts may share one.
    sm_counts: the SMs of each part on the device for which the plan was made. The plan prints them, and is refused
    where a partition has another number.
    library_sms: whether libraries get the SM count hint (``part.torch()`` is then ``use(part, library_sms="on")``).
    way: in a plan of the kind "also", the name of the function.
    """

    schema = 5

    kind: Kind
    parts: tuple[str, ...]
    layout: Layout | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None
    library_sms: bool = False
    sm_counts: Mapping[str, int] = field(default_factory=dict, compare=False)
    way: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layout, Layout | None):
            raise TypeError(f"layout must be a Layout, not {type(self.layout).__name__}")
        settle_by_type(self)
        for part, number in self.sm_counts.items():
            as_int(f"sm_counts.{part}", number, 1, LARGEST_COUNT)
        if self.kind not in KINDS:
            raise ValueError(f"the kind of a plan is one of {', '.join(KINDS)}, not {self.kind!r}")
        if not self.parts or len(set(self.parts)) != len(self.parts):
            raise ValueError(f"the parts of a plan need different names, not {self.parts}")
        if (self.kind in ("priority", "overlay")) != (self.first is not None) or self.first not in (None, *self.parts):
            raise ValueError(
                "a plan of the kinds priority and overlay, and of no other, puts one of its parts first, not "
                f"{self.first!r}"
            )
        if (self.kind == "also") != (self.way is not None):
            raise ValueError(f"a plan of the kind also, and of no other, names a way, not {self.way!r}")
        placed = [part for part in self.parts if self.kind == "partitions" or part != self.first]
        if self.kind not in ("overlay", "partitions"):
            if self.layout is not None or self.places or self.library_sms:
                raise ValueError(f"layout, places and library_sms belong to partitions, not to the kind {self.kind}")
        elif self.layout is None or not placed or set(self.places) != set(placed):
            raise ValueError(f"a plan of the kind {self.kind} needs a layout, and a place for {' and '.join(placed)}")
        elif not {BACKGROUND, *self.layout.names}.issuperset(self.places.values()):
            raise ValueError(f"the parts need partitions of {self.layout}, not {dict(self.places)}")
        elif self.kind == "partitions" and len(set(self.places.values())) != len(self.places):
            raise ValueError(f"the parts need different partitions of {self.layout}, not {dict(self.places)}")

    @property
    def on_one_stream(self) -> bool:
        """Whether all parts run on the same stream."""
        return self.kind in ("sequence", "also")

    @property
    def complexity(self) -> tuple[int, bool]:
        """The smaller, the simpler the plan."""
        return KINDS.index(self.kind), self.library_sms

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        places = frozenset(self.places.items())
        return hash((self.kind, self.parts, self.layout, places, self.first, self.library_sms, self.way))

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of texts differ from one process to the next.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @contextmanager
    def open(self, where: Device | PartitionPool) -> Iterator[dict[str, Stream]]:
        """The stream of each part, for the length of a block. In the kinds "sequence" and "also", all parts share
        one stream.

        where: a PartitionPool, whose partitions and streams stay open as long as the pool, or a Device, for which they
        are closed with the block. Streams on the whole device are closed with the block in either case.
        """
        if not isinstance(where, (Device, PartitionPool)):
            raise TypeError(f"a plan opens on a Device or in a PartitionPool, not on {type(where).__name__}")
        device = where.device if isinstance(where, PartitionPool) else where
        with ExitStack() as closing:
            streams: dict[str, Stream] = {}
            if self.layout is not None:
                if isinstance(where, PartitionPool):
                    partitions = where.prepare(self.layout)
                else:
                    partitions = closing.enter_context(open_layout(where, self.layout))
                streams = self._placed(partitions)
            keys = self._on_whole_device(device)
            on_device = {
                (name, priority): closing.enter_context(device.create_stream(StreamOptions(priority=priority)))
                for name, priority in dict.fromkeys(keys.values())
            }
            yield {part: streams[part] if part in streams else on_device[keys[part]] for part in self.parts}

    def switch(self, pool: PartitionPool) -> dict[str, Stream]:
        """Make this plan current in a pool, ordered after the work of earlier plans; returns the stream of each part.

        pool: the pool of the layouts.

        All streams stay open as long as the pool, and each part has the same ones at each switch. On the device, the
        later work of a part that moves waits for its own work enqueued so far, and for that of every part whose SMs it
        shares or may share: a stream on the whole device shares the SMs of all others. A part that stays where it was
        continues without waiting, and so does work in partitions that this plan does not use. The host does not wait.
        See PartitionPool.switch() for captures of graphs.
        """
        if not isinstance(pool, PartitionPool):
            raise TypeError(f"a plan switches a PartitionPool, not {type(pool).__name__}")
        return switch_to(pool, self)

    def verify(self, where: Device | PartitionPool, timeout: float = 10.0) -> VerifyReport:
        """Verify with a probe kernel which SMs each part runs on. The report states the overlaps that the plan intends.

        where: a PartitionPool or a Device, as for open().
        timeout: seconds to wait for the kernel.

        Returns a VerifyReport. Raises IsolationError if a part runs elsewhere, or if partitions overlap.
        """
        with self.open(where) as streams:
            names: dict[Context, list[str]] = {}
            for part, stream in streams.items():
                names.setdefault(stream.context, []).append(part)
            contexts = {" and ".join(parts): context for context, parts in names.items()}
            over = [" and ".join(parts) for parts in names.values() if not set(parts) & set(self.places)]
            return verify(contexts, over=over, timeout=timeout)

    def _on_whole_device(self, device: Device) -> dict[str, tuple[str, int]]:
        """The name and priority of the stream of each part that is in no partition."""
        least, greatest = device.priority_range
        return {
            part: ("", least) if self.on_one_stream else (part, greatest if part == self.first else least)
            for part in self.parts
            if part not in self.places
        }

    def _placed(self, partitions: Partitions) -> dict[str, Stream]:
        """The streams of the parts in partitions."""
        missing = [place for place in self.places.values() if place not in partitions]
        if missing:
            raise ValueError(
                f"{self.layout} leaves no SMs of {partitions.device.name} for {missing[0]}: this plan is for another "
                "device"
            )
        for part, place in self.places.items():
            got = partitions[place].sm_count
            if self.sm_counts.get(part, got) != got:
                raise ValueError(
                    f"this plan is for another device: {part} was to get {self.sm_counts[part]} SMs, and gets {got} of "
                    f"the {partitions.device.sm_count} of {partitions.device.name}"
                )
        streams: dict[str, Stream] = {}
        for place in dict.fromkeys(self.places.values()):
            placed_here = [part for part in self.parts if self.places.get(part) == place]
            others = partitions[place].stream_pool(len(placed_here) - 1) if len(placed_here) > 1 else ()
            streams.update(zip(placed_here, (partitions[place].stream, *others), strict=True))
        return streams

    def __str__(self) -> str:
        if self.kind == "priority":
            return f"{self.first} first"
        if self.way is not None:
            return self.way
        if self.layout is None:
            return "in sequence" if self.kind == "sequence" else f"plain streams ({', '.join(self.parts)})"
        sizes = [f"{part}={sms}" for part, sms in sizes_of(self).items()]
        return ", ".join(sizes) + (f", {HINT}" if self.library_sms else "")


def sizes_of(plan: Plan) -> dict[str, str]:
    """The SMs of each part, in words: their number where it is known, else what its partition requests; "all" for the
    part of an overlay that has the whole device.
    """
    if plan.layout is None:
        return {}
    requests = {name: spec.request for name, spec in zip(plan.layout.names, plan.layout.specs, strict=True)}
    sizes = {part: plan.sm_counts.get(part, requests.get(place, BACKGROUND)) for part, place in plan.places.items()}
    return {part: str(sizes.get(part, ALL)) for part in plan.parts}
