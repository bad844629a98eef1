"""What a split must give, by the documented rules (docs/guide.md, "What a request means").

The rules are written down here a second time, without the planner: by plain arithmetic over the layout of the chip, and
by asking the driver itself how many groups of a size it gives.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from cuda_gctx import SMResource, SMResourceOptions, system

from ..raw import RESOURCE_BYTES, Raw, RawError

SM_COUNT_OFFSET = 96  # of smCount in CUdevResource
STRUCTURED_SINCE = (13, 1)
PAIR = 2


@dataclass(frozen=True)
class Group:
    """What is asked for one group."""

    count: int | None = None
    coscheduled: int | None = None
    backfill: bool = False


def groups_of(options: SMResourceOptions) -> list[Group]:
    counts = options.count if isinstance(options.count, tuple) else (options.count,)
    coscheduled, backfill = options.coscheduled_sm_count, options.backfill
    return [
        Group(
            count,
            coscheduled[i] if isinstance(coscheduled, tuple) else coscheduled,
            backfill[i] if isinstance(backfill, tuple) else backfill,
        )
        for i, count in enumerate(counts)
    ]


def options_of(groups: Sequence[Group]) -> SMResourceOptions:
    return SMResourceOptions(
        [group.count for group in groups],
        coscheduled_sm_count=[group.coscheduled for group in groups],
        backfill=[group.backfill for group in groups],
    )


@cache
def layouts() -> dict[str, tuple[int, ...]]:
    """SMs in each GPC, by profile."""
    ask = ctypes.CDLL(system.driver_path).softwareDriverProfiles
    ask.restype = ctypes.c_char_p
    listed = json.loads(ask())
    return {
        card["key"]: tuple(card["sms_per_gpc"]) for card in (listed if isinstance(listed, list) else listed["profiles"])
    }


@dataclass(frozen=True, eq=False)
class Card:
    """A device before any split, and the driver that splits it."""

    whole: SMResource
    gpcs: tuple[int, ...]
    driver: tuple[int, int]

    @property
    def sms(self) -> int:
        return self.whole.sm_count

    @property
    def alignment(self) -> int:
        return self.whole.coscheduled_alignment

    @property
    def is_structured(self) -> bool:
        return self.driver >= STRUCTURED_SINCE

    def together(self, size: int) -> int:
        """How many SMs sit in sets of `size` inside one GPC."""
        return sum(gpc // size * size for gpc in self.gpcs)

    @cached_property
    def _known(self) -> dict[tuple[int, int], bool]:
        return {}

    def has_groups(self, size: int, number: int) -> bool:
        """Whether one split by count gives so many groups of exactly this size."""
        key = (size, number)
        if key not in self._known:
            groups = (ctypes.c_ubyte * (RESOURCE_BYTES * number))()
            got = ctypes.c_uint(number)
            try:
                Raw().call(
                    "cuDevSmResourceSplitByCount",
                    groups,
                    ctypes.byref(got),
                    ctypes.c_void_p(self.whole.handle),
                    None,
                    0,
                    ctypes.c_uint(size),
                )
            except RawError:
                self._known[key] = False
            else:
                starts = range(SM_COUNT_OFFSET, RESOURCE_BYTES * number, RESOURCE_BYTES)
                counts = [int.from_bytes(bytes(groups[at : at + 4]), "little") for at in starts]
                self._known[key] = got.value == number and counts == [size] * number
        return self._known[key]

    # ---- one group

    def is_loose(self, group: Group) -> bool:
        """Whether its SMs may sit anywhere, in pairs."""
        return group.backfill or group.coscheduled == PAIR or (group.coscheduled is None and self.alignment <= PAIR)

    def is_promise(self, group: Group) -> bool:
        """Whether a co-scheduling is promised for it."""
        return not self.is_loose(group) and group.coscheduled is not None

    def grain(self, group: Group) -> int:
        if group.backfill:
            return PAIR
        return group.coscheduled or self.alignment

    def least(self, group: Group) -> int:
        if group.backfill or group.coscheduled == PAIR:
            return PAIR
        return rounded_up(self.whole.min_partition_size, self.grain(group))

    def size(self, group: Group) -> int:
        """What a group with a count gets."""
        assert group.count is not None
        if group.backfill:
            return group.count
        return max(rounded_up(group.count, self.grain(group)), self.least(group))

    def can_promise(self, group: Group) -> bool:
        """Whether the driver has a way to keep the co-scheduling that is asked for, whatever the layout."""
        if not self.is_promise(group):
            return True
        assert group.coscheduled is not None
        if self.alignment <= PAIR or group.coscheduled > 32:
            return False
        if self.is_structured:
            return True
        if group.count is None:
            return group.coscheduled == self.alignment
        return self.alignment % group.coscheduled == 0 and self.size(group) % self.alignment == 0

    # ---- several groups

    def sets_fit(self, sets: Sequence[tuple[int, int]]) -> bool:
        """Whether groups of (co-scheduling, SMs) fit into the GPCs.

        A set of 16 takes two places for sets of 8 wherever it sits, so that counting places is enough as long as each
        size divides the next.
        """
        return all(
            sum(sms for coscheduled, sms in sets if coscheduled >= least) <= self.together(least) for least, _ in sets
        )

    def sets_suffice(self, groups: Sequence[Group], sizes: Sequence[int]) -> bool:
        """Whether groups of these sizes consist of sets that sit in one GPC each, and not of larger units."""
        if self.is_structured and self.sets_fit([(self.grain(g), n) for g, n in zip(groups, sizes, strict=True)]):
            return True
        return all(size % self.alignment == 0 for size in sizes) and self.has_groups(
            self.alignment, sum(sizes) // self.alignment
        )

    def aligned_fit(self, groups: Sequence[Group], sizes: Sequence[int]) -> bool:
        """Whether groups of these sizes can all be aligned at once."""
        if self.is_structured and self.sets_fit([(self.grain(g), n) for g, n in zip(groups, sizes, strict=True)]):
            return True
        promised = any(map(self.is_promise, groups))
        if any(size % self.alignment for size in sizes):
            return False
        if any(self.is_promise(group) and self.alignment % self.grain(group) for group in groups):
            return False
        largest = self.alignment if promised else min(sizes)
        return any(
            all(size % unit == 0 for size in sizes) and self.has_groups(unit, sum(sizes) // unit)
            for unit in range(self.alignment, largest + 1, self.alignment)
        )

    def promises_fit(self, groups: Sequence[Group], sizes: Sequence[int]) -> bool:
        promised = [(g, n) for g, n in zip(groups, sizes, strict=True) if self.is_promise(g)]
        if self.is_structured:
            return self.sets_fit([(self.grain(g), n) for g, n in promised])
        return sum(n for _, n in promised) <= self.together(self.alignment)

    def expected(self, groups: Sequence[Group]) -> list[int] | None:
        """The sizes that the groups must get; None if the request must be refused."""
        if not all(map(self.can_promise, groups)):
            return None
        if any(g.backfill and g.count is not None and g.count % PAIR for g in groups):
            return None
        finite = [g for g in groups if g.count is not None]
        left = self.sms - sum(map(self.size, finite))
        if left < 0 or not self.promises_fit(finite, [self.size(g) for g in finite]):
            return None
        rest = 0
        for everything in groups:
            if everything.count is None:
                rest = self._everything_left(everything, finite, left)
                if rest == 0:
                    return None
        return [rest if g.count is None else self.size(g) for g in groups]

    def _everything_left(self, group: Group, finite: Sequence[Group], left: int) -> int:
        grain = self.grain(group)
        if self.is_loose(group):
            return left // PAIR * PAIR
        others = [g for g in finite if not self.is_loose(g)]
        sizes = [self.size(g) for g in others]
        # As large as one that is asked for by its count, at least.
        for size in range(left // grain * grain, self.least(group) - 1, -grain):
            if self.aligned_fit([*others, group], [*sizes, size]):
                return size
        return 0

    def step(self, group: Group) -> int:
        """By how much the sizes differ that a group may have."""
        if self.is_structured or not self.is_promise(group):
            return self.grain(group)
        return max(self.grain(group), self.alignment)

    def smallest(self, groups: Sequence[Group]) -> list[Group]:
        """The same request with the smallest counts."""
        return [
            group
            if group.count is None
            else Group(rounded_up(self.least(group), self.step(group)), group.coscheduled, group.backfill)
            for group in groups
        ]


def rounded_up(count: int, grain: int) -> int:
    return -(-count // grain) * grain
