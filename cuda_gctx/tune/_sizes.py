"""The sizes of partitions to try: a few that are far apart first, then those around the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, zip_longest

from cuda_gctx._core.extension import Device, SMResourceOptions, SplitError, as_int
from cuda_gctx.partitions import PartitionSize
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


def _nearest(sizes: Sequence[PartitionSize], target: float) -> int:
    """The place of the size that is nearest to a number of SMs."""
    return min(range(len(sizes)), key=lambda place: abs(sizes[place].sm_count - target))


def _request(size: PartitionSize) -> Request:
    return size.sm_count if size.aligned else SMResourceOptions(size.sm_count, backfill=True)


class Sizes:
    """The sizes that partitions may have, and the plans that can be made of them.

    sizes: all that are possible. counts: those to try instead of all aligned ones. chosen: whether counts were given.
    """

    def __init__(
        self, device: Device, parts: Sequence[str], counts: Iterable[int] | None, sizes: Iterable[PartitionSize]
    ) -> None:
        self._device = device
        self._parts = tuple(parts)
        self._names = partition_names(parts)
        offered = {size.sm_count: size for size in sizes}
        aligned = [size for size in offered.values() if size.aligned]
        self.chosen = counts is not None
        self.sizes = aligned if counts is None else [offered[count] for count in self._checked(counts, offered)]
        # What an overlay can leave to the bulk parts.
        self._bulk = [size for size in aligned if size.sm_count < device.sm_count]

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

    def plan(self, allocation: Allocation, library_sms: bool) -> Plan | None:
        """The plan with an allocation; None if it does not fit."""
        if allocation.overlay:
            return self._overlay(allocation, library_sms)
        sizes = {part: self.sizes[place] for part, place in allocation.places}
        requests = {self._names[part]: _request(size) for part, size in sizes.items()}
        layout = Layout.of({name: requests.get(name) for name in self._names.values()})
        try:
            got = {partition.name: partition.sm_count for partition in planned(self._device, layout)}
        except SplitError:
            return None
        counts = {part: got[name] for part, name in self._names.items()}
        if not self.chosen and counts[allocation.remainder] < max(size.sm_count for size in sizes.values()):
            return None
        return Plan("partitions", self._parts, layout, self._names, library_sms=library_sms, sm_counts=counts)

    def _overlay(self, allocation: Allocation, library_sms: bool) -> Plan:
        bulk = [part for part in self._parts if part != allocation.remainder]
        count = self._bulk[allocation.places[0][1]].sm_count
        name = self._names[bulk[0]] if len(bulk) == 1 else next(n for n in BULK_NAMES if n not in self._parts)
        counts = {**dict.fromkeys(self._parts, count), allocation.remainder: self._device.sm_count}
        places, layout = dict.fromkeys(bulk, name), Layout.of({name: count})
        return Plan("overlay", self._parts, layout, places, allocation.remainder, library_sms, counts)

    def _overlays(self, urgent: Sequence[str]) -> list[Allocation]:
        """Overlays that are far apart: for sizes that were asked for, what these leave."""
        total = self._device.sm_count
        targets = [total - size.sm_count for size in self.sizes] if self.chosen else [s * total for s in SHARES_OF_BULK]
        nearest = [_nearest(self._bulk, target) for target in targets if self._bulk]
        return [self._over(first, place) for first in urgent for place in nearest]

    def _over(self, first: str, place: int) -> Allocation:
        return Allocation(first, tuple((part, place) for part in self._parts if part != first), overlay=True)

    def _allocation(self, targets: Mapping[str, float], remainder: str) -> Allocation:
        places = {part: _nearest(self.sizes, targets[part]) for part in self._parts if part != remainder}
        counts = [self.sizes[place].sm_count for place in places.values()]
        if len(self._parts) > 2 and sum(counts) + max(counts) > self._device.sm_count:
            # Rounded up, the others leave too little.
            for part, place in places.items():
                places[part] -= place > 0 and self.sizes[place].sm_count > targets[part]
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
        two, total = len(self._parts) == 2, self._device.sm_count
        if self.chosen and two:  # these are all there are
            turns = permutations(sorted(self._parts, key=lambda part: part not in urgent))
            return [Allocation(other, ((part, at),)) for part, other in turns for at in range(len(self.sizes))]
        whole = sum(durations.values())
        by_duration = {part: durations[part] / whole for part in self._parts}
        longest_first = sorted(self._parts, key=durations.__getitem__, reverse=True)
        # One part has what the smallest partitions of the others leave.
        most = 1 - (len(self._parts) - 1) * self.sizes[0].sm_count / total
        shares = [by_duration]
        for share in SHARES_OF_TWO if two else (most, *SHARES_OF_MORE):
            left = (1 - share) / (len(self._parts) - 1)
            shares += [{other: share if other == part else left for other in self._parts} for part in longest_first]
        allocations: list[Allocation] = []
        for share_of in shares:
            targets = {part: total * share for part, share in share_of.items()}
            largest = max(targets.values())
            equal = [part for part in longest_first if targets[part] >= largest * 0.999]
            # Of two equal ones, either may take the remaining SMs. With more parts, other divisions are more
            # informative.
            allocations += [self._allocation(targets, part) for part in (equal if two else equal[:1])]
        return list(dict.fromkeys(allocations))

    def around(self, allocation: Allocation, stride: int) -> list[Allocation]:
        """The allocations next to one: SMs go from one part to another."""
        places = dict(allocation.places)
        if allocation.overlay:
            moved_to = [] if self.chosen else [allocation.places[0][1] + step for step in (stride, -stride)]
            return [self._over(allocation.remainder, place) for place in moved_to if 0 <= place < len(self._bulk)]
        moves: list[dict[str, int]] = [{part: step} for part in places for step in (stride, -stride)]
        moves += [{giving: -stride, taking: stride} for giving, taking in permutations(places, 2)]
        moved = [{part: place + move.get(part, 0) for part, place in places.items()} for move in moves]
        return [
            Allocation(allocation.remainder, tuple(one.items()))
            for one in moved
            if all(0 <= place < len(self.sizes) for place in one.values())
        ]
