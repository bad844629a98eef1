"""Free SMs: SMs that no live context of the process uses or may use.

The driver does not report the SMs of a resource, so the SMs of two splits cannot be compared. All requests for free SMs
of a device therefore share one split of it: its smallest aligned groups (the units), and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from cuda_gctx._core.extension import (
    Context,
    CUDAError,
    Device,
    ResourceOverlapError,
    SMResource,
    SMResourceOptions,
    SplitError,
    are_free,
    before_driver_closes,
    driver_and_device,
    idle_identities,
    sm_identity,
    together,
)
from cuda_gctx.partitions.layout import Layout, PartitionSpec
from cuda_gctx.partitions.opening import Wanted, claim_all, known_split
from cuda_gctx.partitions.split import count_of

__all__ = ["FreeSMs", "free_sms", "open_free", "pieces_of", "wanted_among_free"]

# Other threads may take the SMs that were found. After so many times in a row, something else is wrong.
MOST_TRIES = 1000

# Drivers that refuse a context out of units and the rest together: their alignments differ.
_keeps_rest_apart: set[int] = set()
before_driver_closes(_keeps_rest_apart.discard)


def _split_into_units(whole: SMResource) -> list[SMResource]:
    size = max(whole.coscheduled_alignment, whole.min_partition_size)
    # SMs outside of the GPCs can make the number of units smaller than the number of SMs suggests.
    for number in range(whole.sm_count // size, 0, -1):
        # With the promise of their alignment, all of them come out of one call of the driver.
        options = SMResourceOptions([size] * number, coscheduled_sm_count=whole.coscheduled_alignment)
        with suppress(SplitError):
            units, rest = whole.split(options)
            return [*units, rest]
    return [whole]


def pieces_of(whole: SMResource) -> tuple[list[SMResource], SMResource]:
    """The units of a device or a part of it, from a single split, and the rest, which may have no SMs."""
    *units, rest = known_split(whole.device, (whole, "units"), lambda: _split_into_units(whole))
    return units, rest


class FreeSMs:
    """A snapshot of the free units of a device, or a part of it, and, if it is free, of the rest. Requests take SMs."""

    def __init__(self, whole: SMResource) -> None:
        self.whole = whole
        self.all_units, self.rest = pieces_of(whole)
        *units, rest = are_free([*self.all_units, self.rest])
        self.units = [unit for unit, free in zip(self.all_units, units, strict=True) if free]
        self.has_rest = bool(rest and self.rest.sm_count)
        self._is_rest_whole = True
        self.driver, _ = driver_and_device(whole)

    @property
    def is_whole(self) -> bool:
        """Tells whether all SMs of the device are free."""
        has_rest = (self.has_rest and self._is_rest_whole) or not self.rest.sm_count
        return len(self.units) == len(self.all_units) and has_rest

    @property
    def sm_count(self) -> int:
        """The number of free SMs."""
        return sum(piece.sm_count for piece in self._pieces())

    def _pieces(self) -> list[SMResource]:
        return [*self.units, *([self.rest] if self.has_rest else [])]

    def all_of_one_context(self, *, aligned: bool = False) -> list[SMResource]:
        """All free pieces that can be in one context; aligned: without the rest."""
        if aligned or (self.units and self.has_rest and not self._mixes):
            return list(self.units)
        return self._pieces()

    @property
    def _mixes(self) -> bool:
        """Tells whether a context can have units and the rest."""
        return self._is_rest_whole and self.driver not in _keeps_rest_apart

    def take(self, pieces: Sequence[SMResource]) -> SMResource:
        """Take pieces out, and return them as one resource: that of the device if they are all of its SMs."""
        was_whole = self.is_whole
        self.units = [unit for unit in self.units if unit not in pieces]
        self.has_rest = self.has_rest and self.rest not in pieces
        if was_whole and not self.units and not self.has_rest:
            return self.whole
        return together(self.whole, pieces)

    def fitting(self, count: int) -> list[SMResource] | None:
        """The pieces for a number of SMs; None if there are too few.

        The pieces are whole units, or all free pieces if there are too few units. Units of an idle context come
        first.
        """
        size = self.all_units[0].sm_count if self.all_units else 1
        number = -(-count // size)
        if number <= len(self.units):
            return self._idle_units(number) or self.units[:number]
        pieces = self.all_of_one_context()
        return pieces if sum(piece.sm_count for piece in pieces) >= count else None

    def at_most(self, count: int) -> list[SMResource]:
        """The pieces with the largest number of SMs that is not above `count`; none if too few are free.

        Part of the rest becomes a separate piece if it has more SMs than the whole units.
        """
        size = self.all_units[0].sm_count if self.all_units else 1
        if self.sm_count < count // size * size:
            return []
        rest = self.rest.sm_count if self.has_rest else 0
        number = min(count // size, len(self.units))
        with_rest = min((count - rest) // size, len(self.units)) if self._mixes or not self.units else 0
        part = min(count, rest) // size * size
        most = max(number * size, part, with_rest * size + rest if rest <= count else 0)
        if most == number * size:
            return self._idle_units(number) or self.units[:number]
        if most == part:
            [piece], self.rest = self.rest.split(SMResourceOptions([part]))
            self._is_rest_whole = False
            self.has_rest = self.rest.sm_count > 0
            return [piece]
        return [*self.units[:with_rest], self.rest]

    def _idle_units(self, number: int) -> list[SMResource] | None:
        free = {sm_identity(unit): unit for unit in self.units}
        size = len(next(iter(free)))
        for idle in idle_identities(self.whole):
            if len(idle) == number * size:
                units = [free.get(idle[at : at + size]) for at in range(0, len(idle), size)]
                if None not in units:
                    return [unit for unit in units if unit is not None]
        return None

    def words(self) -> str:
        return f"{self.sm_count} of {self.whole.sm_count} SMs are known to be free"


def free_sms(whole: SMResource) -> SMResource:
    """The value of SMResource.free."""
    device = whole.device
    if whole != device.resources.sm:
        raise ValueError("free SMs are known only for a whole device: read device.resources.sm.free")
    found = FreeSMs(whole)
    return found.take(found._pieces())


def _group(free: FreeSMs, name: str, spec: PartitionSpec, layout: Layout) -> SMResource:
    """The SMs of a partition that requests a number of them."""
    options = spec.sms if isinstance(spec.sms, SMResourceOptions) else None
    count: Any = options.count if options is not None else count_of(name, spec, free.whole)
    if isinstance(count, tuple):
        [count] = count
    pieces = free.at_most(count) if isinstance(spec.sms, float) else free.fitting(count)
    if not pieces:
        raise SplitError(
            f"{layout} does not fit: {free.words()} when {name} requests {count}: close other contexts, or request "
            "fewer. SMs of a context whose ids are unknown also count as taken"
        )
    if options is None:
        return free.take(pieces)
    # Special conditions are for the driver: it splits the units that are enough, or else all that are free.
    for candidates in (pieces, free.all_of_one_context()):
        try:
            [group], _ = together(free.whole, candidates).split(options)
        except SplitError as error:
            refusal = error
        else:
            free.take(candidates)
            return group
    raise SplitError(f"{layout} does not fit among the free SMs: {refusal.args[0]}") from None


def wanted_among_free(whole: SMResource, layout: Layout) -> tuple[Wanted, ...]:
    """The contexts of a layout on free SMs only; SplitError if there are too few."""
    free = FreeSMs(whole)
    groups: dict[str, SMResource] = {}
    requests = list(zip(layout.names, layout.specs, strict=True))
    for name, spec in requests:
        if not spec.takes_the_remainder:
            groups[name] = _group(free, name, spec, layout)
    for name, spec in requests:
        if spec.takes_the_remainder:
            if spec.sms is not None:
                raise ValueError(
                    f"partition {name}: with among='free', request the remaining SMs with None, not {spec.sms!r}"
                )
            pieces = free.all_of_one_context(aligned=spec.aligned)
            if not pieces:
                raise SplitError(f"{layout} does not fit: no SMs are known to be free for {name}")
            groups[name] = free.take(pieces)
    return tuple(Wanted(name, (groups[name],), spec) for name, spec in requests)


def open_free(
    device: Device,
    find: Callable[[], tuple[Wanted, ...]],
    *,
    exclusive: bool = False,
    are_partitions: bool = True,
) -> tuple[tuple[Wanted, ...], list[Context]]:
    """The free SMs that `find` chooses, and contexts over them; the other arguments are those of open_contexts().

    If another thread claims one of the SMs between the two steps, the function calls `find` again.
    """
    driver, _ = driver_and_device(device.resources.sm)
    for _ in _tries():
        wanted = find()
        try:
            opening = claim_all(device, wanted, exclusive=exclusive, only_free=True, are_partitions=are_partitions)
        except ResourceOverlapError:
            continue
        with opening:
            try:
                return wanted, opening.lease()
            except CUDAError as error:
                if error.call != "cuDevResourceGenerateDesc" or driver in _keeps_rest_apart:
                    raise
        _keeps_rest_apart.add(driver)
    raise AssertionError("unreachable")


def _tries() -> Iterator[int]:
    yield from range(MOST_TRIES)
    raise ResourceOverlapError("other threads repeatedly claimed the free SMs: close contexts, or try again")
