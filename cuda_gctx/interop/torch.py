"""PyTorch in a partition: its operations run on the partition's stream, in order with those before and after."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_gctx._core.extension import Graph, Stream, show_to_device
from cuda_gctx.interop._block import Block
from cuda_gctx.interop._fork import Fork, demand_fork
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT, Target, load, own_stream, refuse_default_of_green
from cuda_gctx.interop.library_sms import LibrarySMs, demand_choice, plan_flashinfer_by_stream, torch_block
from cuda_gctx.partitions import Partition

if TYPE_CHECKING:
    from torch.cuda import Stream as TorchStream

__all__ = ["Fork", "capture_graph", "capture_once", "current", "fork", "graph_of_calls", "torch_stream", "use"]

# The first version that is built for CUDA 12.4, the first with green contexts.
MINIMUM = "2.4"
# The first version whose CUDAGraph provides its graph.
KEEPS_GRAPHS = "2.8"

# torch's objects for streams. They do not keep streams of this package alive.
_external_streams: WeakKeyDictionary[Stream, Any] = WeakKeyDictionary()


def load_any_torch(minimum: str = MINIMUM) -> Any:
    """Import torch, also a build without CUDA."""
    return load("torch", "torch", minimum)


def load_torch(minimum: str = MINIMUM) -> Any:
    torch = load_any_torch(minimum)
    if torch.version.cuda is None:
        raise ImportError(
            f"this needs torch {minimum} or newer built for CUDA; {torch.__version__} is built without it"
        )
    return torch


@cache
def _stream_class(torch: Any) -> Any:
    class PartitionStream(torch.cuda.ExternalStream):  # type: ignore[misc]
        """A torch stream over a stream of this package, ``stream``, which it keeps alive."""

        stream: Stream

        def __new__(cls, stream: Stream) -> PartitionStream:
            self: PartitionStream = super().__new__(cls, stream.handle, device=stream.device.device_id)
            self.stream = stream
            return self

    return PartitionStream


def torch_stream(target: Target) -> TorchStream:
    """The stream of a partition, a context or a stream, as a torch.cuda.Stream that keeps its SMs in use.

    target: the partition, context or stream, or an object with ``__cuda_stream__``.

    The handle stays valid after the object is gone, because torch's allocator needs it: for record_stream, pinned
    memory and others.
    """
    return _as_torchs(load_torch(), own_stream(target))


def _as_torchs(torch: Any, stream: Stream) -> TorchStream:
    external: TorchStream = _default_stream(torch, stream) or _stream_class(torch)(stream)
    return external


def _default_stream(torch: Any, stream: Stream) -> Any:
    """Return torch's own object for the default stream of a device, or None for other streams.

    For handle 0, torch would make a new stream, and for handle 1 a stream of its pool.
    """
    return torch.cuda.default_stream(stream.device.device_id) if stream.handle in LEGACY_DEFAULT else None


class _Streams:
    """The streams of torch, for forks."""

    def name(self) -> str:
        return "torch"

    def current(self) -> Any:
        return load_torch().cuda.current_stream()

    def key(self, stream: Any) -> object:
        return stream.cuda_stream

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)


_streams = _Streams()


def fork() -> Fork:
    """A ``with`` block whose blocks run concurrently: ``with fork() as start: with part.torch(after=start): ...``.

    A block with ``after=start`` waits only for the work that torch enqueued on the current stream before the fork. It
    does not wait for other blocks of the fork, on any thread. At the end of the fork, the stream that was current at
    its start waits for all blocks. Keep the tensors that the blocks read until then. If a partition needs the result of
    another one, make it wait: ``part.wait(other)``.
    """
    return Fork(_streams)


def use(target: Target, library_sms: LibrarySMs = "off", after: Fork | None = None) -> Block:
    """Run torch on a context or a stream within a block, which returns its torch stream.

    Write ``part.torch()`` for a partition.

    The block starts after earlier work of torch on the stream that is current outside. Later work on that stream waits
    for the block. Tensors can therefore be used inside and outside as on a single stream.

    The block can be reused, nested, entered on several threads, and used as a decorator. With an await or a yield
    inside, the blocks of a thread may end in the wrong order; this raises RuntimeError.

    target: the context or stream, or an object with ``__cuda_stream__``.
    library_sms: whether cuBLAS and cuBLASLt get the SM count of the partition as a hint: "on", or "auto" for the GEMMs
    that a measurement shows to be faster with it. after: a fork(); the block starts at its beginning and runs
    concurrently with its other blocks, and the end of the fork waits for it.
    """
    demand_choice(library_sms, ("off", "on", "auto"))
    demand_fork(after, _streams)

    def enter(stream: Stream, undo: ExitStack) -> tuple[Any, Callable[[], None]]:
        torch = load_torch()
        plan_flashinfer_by_stream()
        inner = _as_torchs(torch, stream)
        outer = torch.cuda.current_stream(inner.device)
        if after is None:
            inner.wait_stream(outer)
            join = partial(outer.wait_stream, inner)
        else:
            after.start(inner)
            join = partial(after.end, inner)
        undo.enter_context(torch.cuda.stream(inner))
        undo.enter_context(torch_block(torch, stream, library_sms))
        return inner, join

    return Block(target, enter)


class _TorchGraph:
    """A graph of torch that was captured in a partition (see cuda_gctx.partitions.graphs.Replayable)."""

    def __init__(self, torch: Any, stream: Stream, inner: Any, graph: Any, output: Any) -> None:
        self.output = output
        self.graph = graph
        self._torch = torch
        self._stream = stream
        self._inner = inner

    def launch(self, part: Partition) -> None:
        self.replay()

    def replay(self) -> None:
        """Enqueue the graph on the stream of its capture."""
        with self._torch.cuda.stream(self._inner):
            self.graph.replay()
        show_to_device(self._stream)

    def close(self) -> None:
        self.graph.reset()


def capture_graph(part: Partition, function: Callable[[Partition], Any]) -> _TorchGraph:
    """Capture a function of torch on the stream of a partition, after one call outside of the capture.

    part: where the graph will run. function: called with the partition, before the capture and during it.

    Returns the executable graph.
    """
    torch = load_torch()
    inner = _warmed_up(part, function)
    return _captured(torch, own_stream(part), inner, torch.cuda.CUDAGraph(), lambda: function(part))


def capture_once(part: Partition, function: Callable[[Partition], Any]) -> tuple[Graph, Any]:
    """Capture a function of torch as capture_graph() does, for Graph.in_partition() of any partition.

    part: where it is captured. function: called with the partition, before the capture and during it.

    Returns the graph, which keeps torch's graph and its memory, and the result of the function. torch's generator of
    random numbers does not advance when the graph is launched: a graph with dropout draws the same numbers each time.
    """
    torch = load_torch(KEEPS_GRAPHS)
    inner = _warmed_up(part, function)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    captured = _captured(torch, own_stream(part), inner, graph, lambda: function(part))
    return Graph(captured.graph), captured.output


def _warmed_up(part: Partition, function: Callable[[Partition], Any]) -> Any:
    """Run the function once on the stream of a partition, and return the stream."""
    stream = torch_stream(part)
    with use(part):
        function(part)
    stream.synchronize()
    return stream


def graph_of_calls(stream: Stream, call: Callable[[], object]) -> _TorchGraph:
    """Capture the work that a call enqueues on a stream.

    The stream must outlive the graph, and must have run the call before.
    """
    torch = load_torch()
    with current(stream):
        inner = torch.cuda.current_stream()
    inner.synchronize()
    return _captured(torch, stream, inner, torch.cuda.CUDAGraph(), call)


def _captured(torch: Any, stream: Stream, inner: Any, graph: Any, call: Callable[[], object]) -> _TorchGraph:
    with torch.cuda.graph(graph, stream=inner, capture_error_mode="thread_local"):
        output = call()
    return _TorchGraph(torch, stream, inner, graph, output)


def current(stream: Stream) -> AbstractContextManager[Any]:
    """Make a stream torch's current one in a block, without ordering it; does nothing if torch has no device.

    torch must be imported, and the stream must outlive the block. This is cheap for a stream that was used before.
    """
    torch = sys.modules["torch"]
    external = _external_streams.get(stream)
    if external is None:
        if not torch.cuda.is_available():
            return nullcontext()
        load_torch()
        refuse_default_of_green(stream)
        stream.__cuda_stream__()  # marks the stream as seen by a framework, so that it is never destroyed
        external = _default_stream(torch, stream) or torch.cuda.ExternalStream(
            stream.handle, device=stream.device.device_id
        )
        _external_streams[stream] = external
    block: AbstractContextManager[Any] = torch.cuda.stream(external)
    return block
