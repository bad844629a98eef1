"""Calls whose tensors the other ranks cannot reach: what is copied between ranks before and after the kernel, in parts.

Before the kernel, each rank copies from its input into the workspaces of the other ranks what they sum. The kernel
reads it there, and stores its sums to its own output and once to its own workspace, from which the other ranks copy
them to their outputs. Between GPUs, copy engines make these copies. The parts of a call follow each other, so that the
copies of one run next to the kernel of another.

Why no copy overwrites what is still needed:
- A rank copies into the workspace of another one when its previous call has ended. By then it has seen END of all
  ranks, which read nothing more of that call. The parts of a call have places of their own.
- A kernel stores sums into its workspace when it has seen START of all ranks. They send it after they have copied the
  sums of the previous call, because a call begins on the stream when the copies of the previous one have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cuda_gctx.comm._protocol import ALIGNMENT, Geometry, share_of
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = ["Copy", "Part", "Staging"]

# A part is worth its kernel from here on; more parts would not hide more of the copies.
PART_BYTES = 4 * 1024 * 1024
MOST_PARTS = 8
# Of the beginnings of parts, where they are large: bulk copies of addresses that 16 alone divides are slower.
GRAIN = 4096


class Copy(NamedTuple):
    """A copy: two addresses in this process, and the number of bytes."""

    to: int
    source: int
    size: int


class Part(NamedTuple):
    """A part of a call: the copies before its kernel, the kernel, and the copies after it.

    inputs: where the kernel reads the part of each rank; outputs: where it stores the sums for each rank; 0: nowhere.
    """

    sends: tuple[Copy, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
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

    def parts(self, x_in: int, x_out: int, block_bytes: int) -> Iterator[Part]:
        """The parts of a call, in order. All ranks divide a call into the same number of parts."""
        shares = [share_of(one, self._op, block_bytes) for one in self._ranks]
        largest = -(-block_bytes // ALIGNMENT // self._plans[0].shares) * ALIGNMENT
        count = min(MOST_PARTS, max(1, largest // self._part_bytes))
        grain = GRAIN if largest >= count * GRAIN else ALIGNMENT
        for number in range(count):
            begins, ends = (
                [size * part // count // grain * grain for _, _, size in shares] for part in (number, number + 1)
            )
            if number == count - 1:
                ends = [size for _, _, size in shares]
            spans = [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
            yield self._part(x_in, x_out, shares, largest, spans)

    def _part(
        self,
        x_in: int,
        x_out: int,
        shares: Sequence[tuple[int, int, int]],
        largest: int,
        spans: Sequence[tuple[int, int]],
    ) -> Part:
        """spans: where the part lies in the share of each rank."""
        own, plan = self._rank, self._plans[self._rank]
        begin, size = spans[own]

        def place(of_sum: int, source: int) -> int:
            """Where a source's part of a share lies in the workspace of the rank that sums it."""
            sources = self._plans[of_sum].sources
            return (
                self._workspaces[of_sum]
                + self._geometry.staged_input
                + sources.index(source) * largest
                + spans[of_sum][0]
            )

        def sums(of_rank: int) -> int:
            return self._workspaces[of_rank] + self._geometry.staged_output + spans[of_rank][0]

        others = [rank for rank in range(len(shares)) if rank != own]
        sends = tuple(
            Copy(place(rank, own), x_in + shares[rank][0] + spans[rank][0], spans[rank][1])
            for rank in others
            if own in self._plans[rank].sources and spans[rank][1]
        )
        fetches = tuple(
            Copy(x_out + shares[rank][1] + spans[rank][0], sums(rank), spans[rank][1])
            for rank in others
            if own in self._plans[rank].targets and spans[rank][1]
        )
        inputs, outputs = [0] * len(shares), [0] * len(shares)
        for source in plan.sources:
            inputs[source] = x_in + shares[own][0] + begin if source == own else place(own, source)
        for target in plan.targets:
            if target == own:
                outputs[target] = x_out + shares[own][1] + begin
        elsewhere = [target for target in plan.targets if target != own]
        if elsewhere:
            # Once, wherever it goes from there.
            outputs[elsewhere[0]] = sums(own)
        return Part(sends, tuple(inputs), tuple(outputs), size, fetches)
