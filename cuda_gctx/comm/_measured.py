"""The calls of a handler, timed: every mode and several grids, on tensors of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from math import prod
from statistics import median
from typing import Any

from cuda_gctx import Stream
from cuda_gctx.comm._backends import CommBackend
from cuda_gctx.comm._message import Messages
from cuda_gctx.comm._modes import Modes
from cuda_gctx.comm._protocol import ALIGNMENT
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp
from cuda_gctx.comm._tuning import Case
from cuda_gctx.extending import clock

__all__ = ["Measured"]

# The number of calls in a graph, for messages of up to so many bytes.
CALLS_OF_A_GRAPH = ((1 << 20, 50), (1 << 24, 10), (1 << 62, 4))
MOST_GRIDS = 3


@contextmanager
def _of_this_package(torch_stream: Any, work: Callable[[], None], calls: int) -> Iterator[Callable[[], None]]:
    """A graph of calls that torch does not know of.

    Threads that capture at once share torch's registry of graphs: ranks that are threads have ended the process there.
    """
    stream = Stream.from_handle(torch_stream.cuda_stream)
    with stream.capture() as captured:
        for _ in range(calls):
            work()
    with captured.graph, captured.graph.instantiate() as graph:
        yield partial(graph.launch, stream)
        stream.sync()


class Measured:
    """The cases that run_autotune() measures of a MixedCommHandler. Every rank makes one at the same time."""

    def __init__(
        self,
        handler: Any,
        modes: Modes,
        messages: Messages,
        backend: CommBackend,
        message_bytes: Sequence[int],
        rounds: int,
    ) -> None:
        self._handler = handler
        self._modes = modes
        self._messages = messages
        self._backend = backend
        self._info = handler.para_info
        self._rounds = rounds
        self._torch: Any = import_module("torch")
        self._element_bytes = self._torch.zeros(1, dtype=handler.dtype, device=handler.device).element_size()
        grain = self._info.dp_size**2 * ALIGNMENT
        # What this topology can divide, next below each size.
        sizes = sorted({size // grain * grain for size in message_bytes} - {0})
        if not sizes or min(message_bytes) < 0:
            raise ValueError(f"message_bytes must contain a size of {grain} or more: {list(message_bytes)}")
        self._buffers = {is_mapped: self._two(max(sizes)) for is_mapped in (False, True)}
        self._must_unmap = False
        self._other_stream: Any = None
        reaches_all = messages.is_reached(self._buffers[False][0])
        if handler.device.type == "cuda" and not reaches_all:
            try:
                handler.map_tensors(*self._buffers[True])
                self._must_unmap = True
            except RuntimeError:  # on all ranks
                del self._buffers[True]
        else:
            del self._buffers[not reaches_all]
        # Where no mode computes an operation, there is nothing to choose.
        ops = [op for op in self._info.every_op if modes.that_compute(op)]
        self.cases = [Case(op, size, is_mapped) for op in ops for size in sizes for is_mapped in self._buffers]

    def _two(self, size: int) -> list[Any]:
        handler = self._handler
        return [
            self._torch.zeros(size // self._element_bytes, dtype=handler.dtype, device=handler.device) for _ in range(2)
        ]

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        rows = self._info.dp_size
        in_bytes = case.message_bytes // (rows if case.op.gathers else 1)
        shape = rows, in_bytes // self._element_bytes // rows
        x_in, x_out = (
            buffer[: prod(one)].view(one)
            for buffer, one in zip(
                self._buffers[case.is_mapped], (shape, self._info.output_shape(case.op, shape)), strict=True
            )
        )
        return x_in, x_out

    def candidates(self, case: Case) -> list[tuple[MixedCommMode, int]]:
        """Modes, each with its grids: all SMs, a half and a quarter of them for kernels of this package."""
        x_in, _ = self._tensors(case)
        grids = [self._handler.grid_size]
        while grids[-1] > 1 and len(grids) < MOST_GRIDS:
            grids.append(grids[-1] // 2)
        sizes = self._messages.sizes(case.op, x_in.shape, x_in.element_size())
        possible = self._modes.possible(sizes, is_reached=case.is_mapped)
        return [(mode, grid) for mode in possible for grid in (grids if self._modes[mode].has_kernels else [0])]

    def microseconds(self, case: Case, mode: MixedCommMode, grid: int) -> float:
        """The time of a call on this rank: the median of several rounds."""
        x_in, x_out = self._tensors(case)
        root = 0 if case.op is MixedCommOp.BROADCAST else None
        message = self._messages.of(case.op, x_in, x_out, is_checked=True, root=root)
        calls = next(count for most, count in CALLS_OF_A_GRAPH if case.message_bytes <= most)

        def work() -> None:
            self._modes[mode].run(message, grid)

        if self._handler.device.type == "cpu":
            return self._on_the_host(work)
        return self._in_graphs(work, calls, is_of_torch=self._modes[mode].is_of_torch)

    def _on_the_host(self, work: Callable[[], None]) -> float:
        taken = []
        for _ in range(1 + self._rounds):
            self._backend.barrier()
            begin = clock.now()
            work()
            taken.append((clock.now() - begin) * 1e6)
        return median(taken[1:])

    def _in_graphs(self, work: Callable[[], None], calls: int, *, is_of_torch: bool) -> float:
        # One at a time, small calls would take as long as Python needs to launch them.
        cuda = self._torch.cuda
        stream = current = cuda.current_stream(self._handler.device)
        if not stream.cuda_stream:
            # The default stream cannot be captured.
            stream = self._other_stream = self._other_stream or cuda.Stream(self._handler.device)
            stream.wait_stream(current)
        with cuda.stream(stream):
            return self._on(stream, work, calls, is_of_torch=is_of_torch)

    def _on(self, stream: Any, work: Callable[[], None], calls: int, *, is_of_torch: bool) -> float:
        handler, cuda = self._handler, self._torch.cuda
        for _ in range(2):
            work()
        stream.synchronize()
        handler.check()
        self._backend.barrier()
        captured = self._of_torch if is_of_torch else _of_this_package
        taken: list[float] = []
        with captured(stream, work, calls) as replay:
            for _ in range(self._rounds):
                begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
                stream.synchronize()
                self._backend.barrier()
                replay()  # in which the ranks meet
                begin.record(stream)
                replay()
                end.record(stream)
                end.synchronize()
                taken.append(begin.elapsed_time(end) * 1000 / calls)
        handler.check()
        return median(taken)

    @contextmanager
    def _of_torch(self, stream: Any, work: Callable[[], None], calls: int) -> Iterator[Callable[[], None]]:
        """A graph of calls of torch's collectives, which allocate from the pool that such a graph has."""
        graph = self._torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                work()
        finally:
            graph.capture_end()
        yield graph.replay

    def close(self) -> None:
        if self._must_unmap:
            self._handler.unmap_tensors(*self._buffers[True])
