"""Calls whose tensors the other ranks cannot reach: what is copied between ranks before and after the kernel, in parts.

Before the kernel, each rank copies from its input into the workspaces of the other ranks what they sum. The kernel
reads it there, and stores its sums to its own output and once to its own workspace, from which the other ranks copy
them to their outputs. Between GPUs, copy engines make these copies. The parts of a call follow each other, so that the
copies of one run next to the kernel of another. For small messages, one kernel makes the copies and sums.

Why no copy overwrites what is still needed:
- A rank copies into the workspace of another one when its previous call has ended. By then it has seen END of all
  ranks, which read nothing more of that call. The parts of a call have places of their own.
- A kernel stores sums into its workspace when it has seen START of all ranks. They send it after they have copied the
  sums of the previous call, because a call begins on the stream when the copies of the previous one have ended.

A call that is larger than what the workspaces hold goes in rounds, which follow each other like calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import NamedTuple

from cuda_gctx.comm._protocol import ALIGNMENT, Geometry, share_of
from cuda_gctx.comm._structs import Address
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = ["Copy", "Part", "Place", "Span", "Staging"]

# Each part costs some microseconds; what nothing hides is the copies before the first one and behind the last one.
# So the best number of parts grows with the root of the size. With 3.5 MiB here it was the best, or close to it, at
# each of eight sizes in 8, 16 and 132 SMs of two H100s.
PART_BYTES = 3584 * 1024
MOST_PARTS = 8
# Where copies before the kernels and behind them run next to each other, two parts are worth it from here on.
PAIR_BYTES = 2 * 1024 * 1024
# Of the beginnings of parts, where they are large: bulk copies of addresses that 16 alone divides are slower.
GRAIN = 4096

# An address that never changes, or that is known when a call is launched.
Place = int | Address


class Span(NamedTuple):
    """A part of a tensor, in bytes. source: the rank whose data alone a call writes there; None: sums of several."""

    begin: Place
    size: int
    source: int | None = None


class Copy(NamedTuple):
    """A copy: two addresses in this process, and the number of bytes."""

    to: Place
    source: Place
    size: int


class Part(NamedTuple):
    """A part of a call: the copies before its kernel, the kernel, and the copies after it.

    inputs: where the kernel reads the part of each rank; outputs: where it stores the sums for each rank; 0: nowhere.
    """

    sends: tuple[Copy, ...]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    size: int
    fetches: tuple[Copy, ...]


class Staging:
    """The parts of the calls of one operation on one rank.

    workspaces: those of all ranks, at their addresses in this process.
    """

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        geometry: Geometry,
        workspaces: Sequence[int],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._rank = info.world_rank
        self._ranks = [info.at(rank) for rank in range(info.world_size)]
        self._plans = [one.plan(op) for one in self._ranks]
        self._op = op
        self._geometry = geometry
        self._workspaces = workspaces
        self._part_bytes = part_bytes

    def rounds(self, x_in: Place, x_out: Place, block_bytes: int) -> Iterator[list[Part]]:
        """The parts of each round of a call, in order. All ranks divide a call in the same way."""
        shares = [share_of(one, self._op, block_bytes) for one in self._ranks]
        largest = max(size for _, _, size in shares)
        capacity = self._geometry.staged_bytes
        # Of the workspaces, for each source of a sum.
        room = min((capacity + len(shares) * ALIGNMENT) // len(self._plans[0].sources), capacity)
        step = room // GRAIN * GRAIN or room // ALIGNMENT * ALIGNMENT
        for first in [0] if largest <= room else range(0, largest, step):
            last = largest if largest <= room else first + step
            spans = [(min(first, size), min(last, size)) for _, _, size in shares]
            yield list(self._parts(x_in, x_out, shares, [(begin, end - begin) for begin, end in spans]))

    def _parts(
        self, x_in: Place, x_out: Place, shares: Sequence[tuple[int, int, int]], spans: Sequence[tuple[int, int]]
    ) -> Iterator[Part]:
        """spans: where the round lies in the share of each rank."""
        firsts, sizes = zip(*spans, strict=True)
        largest = max(sizes)
        count = self._count_of_parts(largest)
        # The first and the last part are the smallest: 1 2 3 3 2 1.
        weights = [min(number + 1, count - number) for number in range(count)]
        grain = GRAIN if largest >= sum(weights) * GRAIN else ALIGNMENT
        for number in range(count):
            begins, ends = (
                [size * sum(weights[:part]) // sum(weights) // grain * grain for size in sizes]
                for part in (number, number + 1)
            )
            if number == count - 1:
                ends = list(sizes)
            cut = [(first + begin, end - begin) for first, begin, end in zip(firsts, begins, ends, strict=True)]
            yield self._part(x_in, x_out, shares, largest, firsts, cut)

    def _count_of_parts(self, size: int) -> int:
        plan = self._plans[0]
        pair_bytes = self._part_bytes * PAIR_BYTES // PART_BYTES
        fewest = 2 if len(plan.sources) > 1 and len(plan.targets) > 1 and size >= pair_bytes else 1
        return min(MOST_PARTS, max(fewest, isqrt(size // self._part_bytes)))

    def _part(
        self,
        x_in: Place,
        x_out: Place,
        shares: Sequence[tuple[int, int, int]],
        largest: int,
        firsts: Sequence[int],
        spans: Sequence[tuple[int, int]],
    ) -> Part:
        """firsts, spans: where the round begins in the share of each rank, and where the part lies in it."""
        this_rank, plan = self._rank, self._plans[self._rank]
        begin, size = spans[this_rank]

        def place(of_sum: int, source: int) -> int:
            """Where a source's part of a share lies in the workspace of the rank that sums it."""
            sources = self._plans[of_sum].sources
            return (
                self._workspaces[of_sum]
                + self._geometry.staged_input
                + sources.index(source) * largest
                + spans[of_sum][0]
                - firsts[of_sum]
            )

        def sums(of_rank: int) -> int:
            return self._workspaces[of_rank] + self._geometry.staged_output + spans[of_rank][0] - firsts[of_rank]

        others = [rank for rank in range(len(shares)) if rank != this_rank]
        sends = tuple(
            Copy(place(rank, this_rank), x_in + shares[rank][0] + spans[rank][0], spans[rank][1])
            for rank in others
            if this_rank in self._plans[rank].sources and spans[rank][1]
        )
        fetches = tuple(
            Copy(x_out + shares[rank][1] + spans[rank][0], sums(rank), spans[rank][1])
            for rank in others
            if this_rank in self._plans[rank].targets and spans[rank][1]
        )
        inputs: list[Place] = [0] * len(shares)
        outputs: list[Place] = [0] * len(shares)
        for source in plan.sources:
            inputs[source] = x_in + shares[this_rank][0] + begin if source == this_rank else place(this_rank, source)
        for target in plan.targets:
            if target == this_rank:
                outputs[target] = x_out + shares[this_rank][1] + begin
        elsewhere = [target for target in plan.targets if target != this_rank]
        if elsewhere:
            # Once, wherever it goes from there.
            outputs[elsewhere[0]] = sums(this_rank)
        return Part(sends, tuple(inputs), tuple(outputs), size, fetches)
