"""The launches of a call, noted once for its sizes, and then launched for each call with the addresses of its tensors.

What fills the arguments of kernels is run twice, with other addresses. The words that differ are those that depend on
an address, each on one, by addition: `Prepared` replaces them at each call, without Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cuda_gctx import Stream
from cuda_gctx.comm._calls import Steps
from cuda_gctx.comm._staging import Copy
from cuda_gctx.comm._topology import MixedCommOp
from cuda_gctx.extending import Counter
from cuda_gctx.extending import LaunchSequence as Launches

__all__ = ["AFTER", "BEFORE", "MAIN", "Kernel", "Launches", "Numbers", "Prepared", "Record"]

# Streams by number: that of the call, and those of the copies before and after its kernels.
MAIN, BEFORE, AFTER = range(3)
# What stands for an address, the first and the second time: more than anything is away from it.
APART = 1 << 44


class Numbers(Counter):
    """The numbers of a handler's launches, by which a kernel knows the call that runs: an operation and a count."""

    COUNT_BITS = 16
    COUNTS = 0xFFFF

    def next(self, op: MixedCommOp) -> int:
        """The number of a launch: not 0, and not that of any of the 65,534 before it."""
        return op << self.COUNT_BITS | (self.take(1) % self.COUNTS + 1)

    @classmethod
    def name(cls, number: int) -> str:
        """What a number says of its launch."""
        op, count = number >> cls.COUNT_BITS, number & cls.COUNTS
        return f"{MixedCommOp(op).name} (launch {count})"


class Kernel(NamedTuple):
    """A kernel as it was noted."""

    function: int
    blocks: int
    threads: int
    shared_bytes: int
    is_programmatic: bool
    number_at: int
    words: tuple[int, ...]  # of 64 bits: the struct that it takes


class _OfStream(NamedTuple):
    """A copy on a stream, or a stream that waits for another one."""

    stream: int
    other: int = 0
    copy: Copy | None = None


class Record:
    """Where a mode notes the launches of a call, in order."""

    def __init__(self) -> None:
        self.steps: list[Kernel | _OfStream | Callable[[], object]] = []
        # Whether the first kernel has taken the control words for the kernels that follow.
        self.is_held = False

    def kernel(
        self,
        function: Any,
        arguments: Any,
        blocks: int,
        threads: int,
        shared_bytes: int = 0,
        *,
        is_programmatic: bool = False,
    ) -> None:
        """A kernel whose one argument is a struct, as it is filled now, which begins with those of every call."""
        arguments.call.is_held = self.is_held
        number_at = type(arguments.call).number.offset
        content = bytearray(bytes(arguments).ljust(-(-len(bytes(arguments)) // 8) * 8, b"\0"))
        content[number_at : number_at + 2] = b"\0\0"  # the count
        words = struct.unpack(f"<{len(content) // 8}Q", content)
        how = blocks, threads, shared_bytes, is_programmatic
        self.steps.append(Kernel(int(function), *how, number_at, words))

    def copy(self, one: Copy, stream: int = MAIN) -> None:
        self.steps.append(_OfStream(stream, copy=one))

    def wait(self, stream: int, other: int) -> None:
        """What follows on a stream waits for what is on the other one."""
        self.steps.append(_OfStream(stream, other))

    def call(self, function: Callable[[], object]) -> None:
        """A function of a library, which enqueues work on the current stream itself; it depends on no address."""
        self.steps.append(function)


class Prepared(Steps):
    """The launches of calls that differ in addresses alone.

    note: notes those of a call with these addresses. given: how many addresses there are. copying: the streams BEFORE
    and AFTER.
    """

    def __init__(
        self,
        note: Callable[[Record, tuple[int, ...]], None],
        given: int,
        numbers: Numbers,
        copying: Sequence[Stream] = (),
    ) -> None:
        super().__init__(numbers)
        self.launches = Launches(copying)
        first, second = Record(), Record()
        for factor, record in enumerate((first, second), 1):
            note(record, tuple(APART * factor * number for number in range(1, 1 + given)))
        for one, other in zip(first.steps, second.steps, strict=True):
            if isinstance(one, Kernel):
                assert isinstance(other, Kernel)
                self._add_kernel(one, other)
            elif not isinstance(one, _OfStream):
                self.add(self.launches)
                self.add(one)
                self.launches = Launches(copying)
            elif one.copy is None:
                self.launches.wait(one.stream, one.other)
            else:
                assert isinstance(other, _OfStream)
                assert other.copy is not None
                to, source = map(_place, one.copy[:2], other.copy[:2])
                self.launches.copy(one.stream, to, source, one.copy.size)
        self.add(self.launches)

    def _add_kernel(self, one: Kernel, other: Kernel) -> None:
        places = {
            8 * at: _place(*words)
            for at, words in enumerate(zip(one.words, other.words, strict=True))
            if words[0] != words[1]
        }
        how = one.function, one.blocks, one.threads, one.shared_bytes
        arguments = struct.pack(f"<{len(one.words)}Q", *one.words)
        self.launches.kernel(*how, arguments, places, one.number_at, one.is_programmatic)


def _place(first: int, second: int) -> tuple[int | None, int]:
    """The number of the address that a word depends on, and what is added to it."""
    if first == second:
        return None, first
    number, rest = divmod(second - first, APART)
    assert not rest
    return number - 1, first - APART * number
