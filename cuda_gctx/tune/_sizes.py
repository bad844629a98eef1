"""The sizes of partitions to try: a few that are far apart first, then those around the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, zip_longest

from cuda_gctx._core.arguments import as_int
from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import SplitError
from cuda_gctx._core.resources import SMResourceOptions
from cuda_gctx.partitions import PartitionSize, partition_sizes
from cuda_gctx.partitions import plan as planned
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.tune._plans import Plan, partition_names

__all__ = ["Allocation", "Sizes"]

# The shares of the device that one part gets in the first round, the others dividing what is left. Of two parts, what
# is left is a share of the other.
SHARES_OF_TWO = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
SHARES_OF_MORE = (7 / 8, 3 / 4, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
# The shares that an overlay leaves to the bulk parts in the first round.
SHARES_OF_BULK = (7 / 8, 3 / 4, 1 / 2)


# The partition that several parts share.
BULK_NAMES = ("bulk", *(f"bulk_{number}" for number in range(1, 10)))


@dataclass(frozen=True)
class Allocation:
    """SMs for each part: one takes all remaining SMs, the others a size each, as positions in the list of sizes.

    overlay: the first one has the whole device, and all others share one size.
    """

    remainder: str
    places: tuple[tuple[str, int], ...]
    overlay: bool = False


def _request(size: PartitionSize) -> Request:
    return size.sm_count if size.aligned else SMResourceOptions(size.sm_count, backfill=True)


class Sizes:
    """The sizes that partitions may have, and the plans that can be made of them.

    counts: the sizes to try instead of all aligned ones. chosen: whether they were given.
    """

    def __init__(self, device: Device, parts: Sequence[str], counts: Iterable[int] | None) -> None:
        self._device = device
        self._parts = tuple(parts)
        self._names = partition_names(parts)
        offered = {size.sm_count: size for size in partition_sizes(device)}
        self.chosen = counts is not None
        aligned = [size for size in offered.values() if size.aligned]
        # What an overlay can leave to the bulk parts.
        self._bulk = [size for size in aligned if size.sm_count < device.sm_count]
        if counts is None:
            self.sizes: list[PartitionSize] = aligned
        else:
            self.sizes = [offered[count] for count in self._checked(counts, offered)]

    def _checked(self, given: object, offered: Mapping[int, PartitionSize]) -> list[int]:
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise TypeError(f"sizes must be numbers of SMs, like [8, 16], not {type(given).__name__}")
        listed = list(given)
        if not listed:
            raise ValueError("sizes must name at least one number of SMs, or be None for all aligned ones")
        counts = sorted({as_int(f"sizes[{place}]", count) for place, count in enumerate(listed)})
        for count in counts:
            if count not in offered:
                near = ", ".join(map(str, sorted(sorted(offered, key=lambda size: abs(size - count))[:2])))
                raise ValueError(f"a partition of {self._device.name} cannot have {count} SMs; near to it are {near}")
        return counts

    def requests(self) -> list[tuple[int, Request]]:
        """The counts of the sizes, and how to request each of them."""
        return [(size.sm_count, _request(size)) for size in self.sizes if size.sm_count < self._device.sm_count]

    def plan(self, allocation: Allocation, library_sms: bool) -> tuple[Plan, dict[str, int]] | None:
        """The plan with an allocation, and the SMs of each part; None if it does not fit."""
        if allocation.overlay:
            return self._overlay(allocation, library_sms)
        asked: dict[str, Request] = {}
        places = {allocation.remainder: self._names[allocation.remainder]}
        counts = {}
        for part, place in allocation.places:
            size = self.sizes[place]
            name = self._names[part]
            asked[name] = _request(size)
            places[part] = name
            counts[part] = size.sm_count
        layout = Layout.of({self._names[part]: asked.get(self._names[part]) for part in self._parts})
        try:
            got = {partition.name: partition.sm_count for partition in planned(self._device, layout)}
        except SplitError:
            return None
        remaining = got[places[allocation.remainder]]
        if not self.chosen and remaining < max(counts.values()):
            return None
        counts = {part: got[places[part]] for part in self._parts}
        in_order = {part: places[part] for part in self._parts}
        plan = Plan("partitions", self._parts, layout, in_order, library_sms=library_sms, sm_counts=counts)
        return plan, counts

    def _overlay(self, allocation: Allocation, library_sms: bool) -> tuple[Plan, dict[str, int]]:
        bulk = [part for part in self._parts if part != allocation.remainder]
        count = self._bulk[allocation.places[0][1]].sm_count
        name = self._names[bulk[0]] if len(bulk) == 1 else next(n for n in BULK_NAMES if n not in self._parts)
        counts = {part: self._device.sm_count if part == allocation.remainder else count for part in self._parts}
        plan = Plan(
            "overlay",
            self._parts,
            Layout.of({name: count}),
            dict.fromkeys(bulk, name),
            first=allocation.remainder,
            library_sms=library_sms,
            sm_counts=counts,
        )
        return plan, counts

    def _overlays(self, urgent: Sequence[str]) -> list[Allocation]:
        """Overlays that are far apart: for sizes that were asked for, what these leave."""
        if not self._bulk:
            return []
        total = self._device.sm_count
        targets = [total - size.sm_count for size in self.sizes] if self.chosen else [s * total for s in SHARES_OF_BULK]
        allocations = []
        for first in urgent:
            for target in targets:
                place = min(range(len(self._bulk)), key=lambda place: abs(self._bulk[place].sm_count - target))
                bulk = tuple((part, place) for part in self._parts if part != first)
                allocations.append(Allocation(first, bulk, overlay=True))
        return allocations

    def _nearest(self, target: float) -> int:
        return min(range(len(self.sizes)), key=lambda place: abs(self.sizes[place].sm_count - target))

    def _allocation(self, targets: Mapping[str, float], remainder: str) -> Allocation:
        places = {part: self._nearest(targets[part]) for part in self._parts if part != remainder}
        counts = [self.sizes[place].sm_count for place in places.values()]
        if len(self._parts) > 2 and sum(counts) + max(counts) > self._device.sm_count:
            # Rounded up, the others leave too little.
            places = {
                part: place - 1 if place > 0 and self.sizes[place].sm_count > targets[part] else place
                for part, place in places.items()
            }
        return Allocation(remainder, tuple(places.items()))

    def too_large(self) -> list[int]:
        """The sizes asked for with which no layout fits, however small the other partitions are."""
        if not self.chosen:
            return []
        first, *between, last = self._parts
        least = tuple((part, 0) for part in between)
        return [
            size.sm_count
            for place, size in enumerate(self.sizes)
            if self.plan(Allocation(last, ((first, place), *least)), False) is None
        ]

    @property
    def coarse_is_all(self) -> bool:
        """Whether the coarse allocations are all there are, so that none next to them is left."""
        return self.chosen and len(self._parts) == 2

    def coarse(self, durations: Mapping[str, float], urgent: Sequence[str] = ()) -> list[Allocation]:
        """Allocations that are far apart, the likeliest first; durations: of each part alone; urgent: the parts that an
        overlay may put first.
        """
        apart, overlays = self._apart(durations, urgent), self._overlays(urgent)
        # One of each kind in turn, as not all may be tried.
        found = [one for pair in zip_longest(apart, overlays) for one in pair if one is not None]
        return list(dict.fromkeys(found))

    def _apart(self, durations: Mapping[str, float], urgent: Sequence[str]) -> list[Allocation]:
        """Allocations to disjoint partitions."""
        if not self.sizes:
            return []
        total = self._device.sm_count
        allocations: list[Allocation] = []
        if self.coarse_is_all:
            for part, other in permutations(sorted(self._parts, key=lambda part: part not in urgent)):
                allocations += [Allocation(other, ((part, place),)) for place in range(len(self.sizes))]
            return allocations
        whole = sum(durations.values())
        by_duration = {part: durations[part] / whole for part in self._parts}
        longest_first = sorted(self._parts, key=durations.__getitem__, reverse=True)
        two = len(self._parts) == 2
        # One part has what the smallest partitions of the others leave.
        most = 1 - (len(self._parts) - 1) * self.sizes[0].sm_count / total
        shares = [by_duration]
        for share in SHARES_OF_TWO if two else (most, *SHARES_OF_MORE):
            left = (1 - share) / (len(self._parts) - 1)
            shares += [{other: share if other == part else left for other in self._parts} for part in longest_first]
        for share_of in shares:
            targets = {part: total * share for part, share in share_of.items()}
            largest = max(targets.values())
            equal = [part for part in longest_first if targets[part] >= largest * 0.999]
            # Of two equal ones, either may take the remaining SMs. With more parts, other divisions are more
            # informative.
            allocations += [self._allocation(targets, part) for part in (equal if two else equal[:1])]
        return list(dict.fromkeys(allocations))

    def first_stride(self) -> int:
        """How far from the best to look first, in positions of the list."""
        return max(1, len(self.sizes) // 8)

    def around(self, allocation: Allocation, stride: int) -> list[Allocation]:
        """The allocations next to one: SMs go from one part to another."""
        places = dict(allocation.places)
        if allocation.overlay:
            moved_to = [allocation.places[0][1] + step for step in (stride, -stride)]
            return [
                Allocation(allocation.remainder, tuple((part, place) for part in places), overlay=True)
                for place in moved_to
                if 0 <= place < len(self._bulk) and not self.chosen
            ]
        moves: list[dict[str, int]] = []
        for part in places:
            moves += [{part: stride}, {part: -stride}]
        moves += [{giving: -stride, taking: stride} for giving, taking in permutations(places, 2)]
        allocations = []
        for move in moves:
            moved = {part: place + move.get(part, 0) for part, place in places.items()}
            if all(0 <= place < len(self.sizes) for place in moved.values()):
                allocations.append(Allocation(allocation.remainder, tuple(moved.items())))
        return allocations
