"""The contestants of a race: every kind of plan, and partitions of sizes that are far apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cuda_gctx._core.extension import Device, SMResourceOptions, SplitError, as_int
from cuda_gctx.partitions import PartitionSize
from cuda_gctx.partitions import plan as planned
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.tune._plans import Plan, partition_names

__all__ = ["Space"]

# The shares of the device for one of two parts, which leave the rest to the other one.
SHARES_OF_TWO = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)
# The shares for one of more parts, of which the others divide the rest.
SHARES_OF_MORE = (3 / 4, 1 / 2, 1 / 4, 1 / 8)
# The shares that an overlay leaves to the bulk parts.
SHARES_OF_BULK = (7 / 8, 3 / 4, 1 / 2)


class Space:
    """The plans that can be made for some parts on a device.

    sizes: all that partitions may have. counts: those to try; None for a few that are far apart.
    """

    def __init__(
        self, device: Device, parts: Sequence[str], counts: Iterable[int] | None, sizes: Iterable[PartitionSize]
    ) -> None:
        self._device = device
        self._parts = tuple(parts)
        self._names = partition_names(parts)
        offered = {size.sm_count: size for size in sizes}
        aligned = [size for size in offered.values() if size.aligned]
        self._chosen = counts is not None
        self._sizes = aligned if counts is None else [offered[count] for count in self._checked(counts, offered)]
        # What an overlay can leave to the bulk parts.
        self._bulk = [size for size in aligned if size.sm_count < device.sm_count]

    def _checked(self, given: object, offered: Mapping[int, PartitionSize]) -> list[int]:
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise TypeError(f"sizes must be numbers of SMs, like [8, 16], not {type(given).__name__}")
        listed = list(given)
        if not listed:
            raise ValueError("sizes must name at least one number of SMs, or be None for a few that are far apart")
        counts = sorted({as_int(f"sizes[{place}]", count) for place, count in enumerate(listed)})
        for count in counts:
            if count not in offered:
                near = ", ".join(map(str, sorted(sorted(offered, key=lambda size: abs(size - count))[:2])))
                raise ValueError(f"a partition of {self._device.name} cannot have {count} SMs; near to it are {near}")
        return counts

    def contestants(
        self, durations: Mapping[str, float], urgent: Sequence[str], ways: Sequence[str], hints: Sequence[bool]
    ) -> list[Plan]:
        """The plans to race, the sequence first.

        durations: what the calls of a step of each part take alone. urgent: the parts that priorities and
        overlays may put first. ways: further ways to do the work. hints: the settings of the SM count hint to try.
        """
        parts = self._parts
        plain = [
            Plan("sequence", parts),
            Plan("streams", parts),
            Plan("streams", parts[::-1]),
            *(Plan("priority", parts, first=name) for name in urgent),
            *(Plan("also", parts, way=way) for way in ways),
        ]
        found: list[Plan] = []
        for library_sms in hints:
            found += self._disjoint(durations, library_sms)
            found += [self._overlay(first, size, library_sms) for first in urgent for size in self._bulk_sizes()]
        return [*plain, *dict.fromkeys(found)]

    def too_large(self) -> list[int]:
        """The sizes asked for with which no layout fits, however small the other partitions are."""
        if not self._chosen:
            return []
        first, *between, last = self._parts
        least = dict.fromkeys(between, self._sizes[0])
        plans = {size.sm_count: self._placed({first: size, **least}, last, False) for size in self._sizes}
        return [count for count, plan in plans.items() if plan is None]

    def _nearest(self, target: float, sizes: Sequence[PartitionSize]) -> PartitionSize:
        return min(sizes, key=lambda size: abs(size.sm_count - target))

    # ---- disjoint partitions

    def _disjoint(self, durations: Mapping[str, float], library_sms: bool) -> list[Plan]:
        if not self._sizes:
            return []
        total = self._device.sm_count
        if len(self._parts) == 2:
            shares = durations[self._parts[0]] / sum(durations.values())
            counts = [share * total for share in (*SHARES_OF_TWO, min(shares, 1 - shares))]
            sizes = self._sizes if self._chosen else [self._nearest(count, self._sizes) for count in counts]
            pairs = [(one, other) for one, other in (self._parts, self._parts[::-1])]
            plans = [self._placed({one: size}, other, library_sms) for size in sizes for one, other in pairs]
        else:
            plans = [self._divided(targets, library_sms) for targets in self._targets(durations)]
        return [plan for plan in plans if plan is not None]

    def _targets(self, durations: Mapping[str, float]) -> list[dict[str, float]]:
        """Divisions of the SMs among more than two parts: by their durations, and with a share for one of them."""
        total, whole = self._device.sm_count, sum(durations.values())
        found = [{part: total * durations[part] / whole for part in self._parts}]
        for share in SHARES_OF_MORE:
            left = (1 - share) / (len(self._parts) - 1)
            found += [{part: total * (share if part == one else left) for part in self._parts} for one in self._parts]
        return found

    def _divided(self, targets: Mapping[str, float], library_sms: bool) -> Plan | None:
        """Partitions of the sizes that are nearest to some counts; the largest one gets all that is left."""
        remainder = max(self._parts, key=targets.__getitem__)
        others = [part for part in self._parts if part != remainder]
        sizes = {part: self._nearest(targets[part], self._sizes) for part in others}
        while sum(size.sm_count for size in sizes.values()) >= self._device.sm_count - self._sizes[0].sm_count:
            largest = max(others, key=lambda part: sizes[part].sm_count)
            place = self._sizes.index(sizes[largest])
            if place == 0:
                return None
            sizes[largest] = self._sizes[place - 1]
        return self._placed(sizes, remainder, library_sms)

    def _placed(self, sizes: Mapping[str, PartitionSize], remainder: str, library_sms: bool) -> Plan | None:
        """Partitions of some sizes, and one of all remaining SMs; None if they do not fit."""
        requests = {self._names[part]: _request(size) for part, size in sizes.items()}
        layout = Layout.of({name: requests.get(name) for name in self._names.values()})
        try:
            got = {partition.name: partition.sm_count for partition in planned(self._device, layout)}
        except SplitError:
            return None
        counts = {part: got[name] for part, name in self._names.items()}
        return Plan("partitions", self._parts, layout, self._names, library_sms=library_sms, sm_counts=counts)

    # ---- overlays

    def _bulk_sizes(self) -> list[PartitionSize]:
        """What overlays leave to the bulk parts: a few shares, or what the sizes that were asked for leave."""
        total = self._device.sm_count
        targets = [total - one.sm_count for one in self._sizes] if self._chosen else [s * total for s in SHARES_OF_BULK]
        return list(dict.fromkeys(self._nearest(target, self._bulk) for target in targets)) if self._bulk else []

    def _overlay(self, first: str, size: PartitionSize, library_sms: bool) -> Plan:
        bulk = [part for part in self._parts if part != first]
        count = size.sm_count
        shared = next(name for name in ("bulk", *map("bulk_{}".format, range(1, 10))) if name not in self._parts)
        name = self._names[bulk[0]] if len(bulk) == 1 else shared
        counts = {**dict.fromkeys(self._parts, count), first: self._device.sm_count}
        return Plan(
            "overlay", self._parts, Layout.of({name: count}), dict.fromkeys(bulk, name), first, library_sms, counts
        )


def _request(size: PartitionSize) -> Request:
    return size.sm_count if size.aligned else SMResourceOptions(size.sm_count, backfill=True)
