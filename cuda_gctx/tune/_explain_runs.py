"""Runs of two pieces of work, alone and together, between stamps in their streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from cuda_gctx._core import clock
from cuda_gctx._core.probe import Stamps, spin
from cuda_gctx._core.stream import Stream
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.measure.loop import hold

__all__ = ["Runs", "Work"]

Work = Callable[[Stream], object]


def _time(stamp: tuple[int, int] | None) -> int:
    return 0 if stamp is None else stamp[1]


class Runs:
    """The runs of two pieces of work, each on its stream."""

    def __init__(self, streams: Sequence[Stream], works: Sequence[Work]) -> None:
        self.streams, self._works = streams, works
        self._stamps = Stamps(streams[0].device, 4)
        self.call_ns = [0, 0]  # of the last run
        self.held = [False, False]  # whether a call ever waited for the device

    def call(self, which: int) -> None:
        stream = self.streams[which]
        began = clock.now()
        with current_stream_of_frameworks(stream):
            self._works[which](stream)
        self.call_ns[which] = round((clock.now() - began) * 1e9)

    def sync(self) -> None:
        for stream in self.streams:
            stream.sync()

    def run(self, order: Sequence[int], *, gate_s: float = 0) -> dict[int, tuple[int, int]]:
        """When each piece of work began and ended. With a gate, the device starts none before all are queued."""
        self.sync()
        with ExitStack() as closing:
            gate = None
            if gate_s:
                gate = closing.enter_context(hold([self.streams[which] for which in order], gate_s))
            for which in order:
                self._stamps.write(self.streams[which], 2 * which)
                gated = gate is not None and not gate.is_done
                self.call(which)
                if gated and gate is not None and gate.is_done:
                    self.held[which] = True
                self._stamps.write(self.streams[which], 2 * which + 1)
            self.sync()
        return self._read(order)

    def finds_room(self, other: Stream, repeats: int) -> bool:
        """Whether a block that needs half an SM finds room on `other` while the first work runs so many times."""
        self.sync()
        stream = self.streams[0]
        self._stamps.write(stream, 0)
        for _ in range(repeats):
            self.call(0)
        self._stamps.write(stream, 1)
        spin(other, 1, 0)
        self._stamps.write(other, 2)
        self.sync()
        other.sync()
        begin, end, through, _ = map(_time, self._stamps.read())
        return through - begin < 0.9 * (end - begin)

    def _read(self, order: Sequence[int]) -> dict[int, tuple[int, int]]:
        times = list(map(_time, self._stamps.read()))
        return {which: (times[2 * which], times[2 * which + 1]) for which in order}
