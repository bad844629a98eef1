"""CUDA graphs: work that is captured on a stream once, and then launched as a whole."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport make_only_here, refuse_copy
from cuda_gctx._core.context cimport Context, made_context, unmade_context
from cuda_gctx._core.cpp cimport (
    CU_STREAM_CAPTURE_MODE_GLOBAL,
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Borrowed,
    CUstreamCaptureMode,
    GraphBox,
    GraphExecBox,
    Slot,
    StreamBox,
    begin_capture,
    drop,
    end_capture,
    instantiate,
    launch,
    node_count,
    present,
    share_context,
    upload,
)
from cuda_gctx._core.errors cimport report_failures, warn_of_failures
from cuda_gctx._core.resources cimport device_of
from cuda_gctx._core.stream cimport Stream

cdef dict MODE_OF_NAME = {
    "global": <int>CU_STREAM_CAPTURE_MODE_GLOBAL,
    "thread_local": <int>CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    "relaxed": <int>CU_STREAM_CAPTURE_MODE_RELAXED,
}


cdef class Graph:
    """The work that a stream captured. Its kernels run in the contexts in which they were captured."""

    cdef Slot[GraphBox] _slot
    cdef object __weakref__

    def __dealloc__(self):
        if drop(self._slot):
            report_failures()

    @property
    def handle(self):
        """The CUgraph, as an int."""
        return <uintptr_t>present(self._slot).get().handle()

    @property
    def context(self):
        """The context of the stream that captured it, which it keeps alive."""
        cdef Context context = unmade_context()
        share_context(context._slot, self._slot)
        return made_context(context)

    @property
    def device(self):
        """The device of the graph."""
        return device_of(present(self._slot).get().context().get().device())

    @property
    def node_count(self):
        """The number of nodes: kernels, copies and others."""
        return node_count(self._slot)

    @property
    def is_closed(self):
        """Whether the graph has been closed."""
        return self._slot.borrow().get() == NULL

    def instantiate(self):
        """Make the executable graph, which takes device memory and no longer needs this graph. Returns a GraphExec."""
        cdef GraphExec made = GraphExec.__new__(GraphExec)
        instantiate(made._slot, self._slot)
        return made

    def close(self):
        """Destroy the graph, but not its executable form. Closing twice does nothing."""
        drop(self._slot)
        warn_of_failures()

    def __enter__(self):
        present(self._slot)
        return self

    def __exit__(self, *exc):
        self.close()

    def __reduce__(self):
        refuse_copy(self, "capture it there")

    def __repr__(self):
        cdef Borrowed[GraphBox] box = self._slot.borrow()
        if box.get() == NULL:
            return "<Graph: closed>"
        return f"<Graph {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_only_here(Graph, "a Graph comes from Stream.capture()")


cdef class GraphExec:
    """A graph that can be launched, on streams of the context in which it was captured."""

    cdef Slot[GraphExecBox] _slot
    cdef object __weakref__

    def __dealloc__(self):
        if drop(self._slot):
            report_failures()

    @property
    def handle(self):
        """The CUgraphExec, as an int."""
        return <uintptr_t>present(self._slot).get().handle()

    @property
    def context(self):
        """The context of the stream that captured it, which it keeps alive."""
        cdef Context context = unmade_context()
        share_context(context._slot, self._slot)
        return made_context(context)

    @property
    def device(self):
        """The device of the graph."""
        return device_of(present(self._slot).get().context().get().device())

    @property
    def is_closed(self):
        """Whether the graph has been closed."""
        return self._slot.borrow().get() == NULL

    def upload(self, Stream stream not None):
        """Upload the graph to the device before the first launch.

        stream: on which the upload is enqueued.
        """
        upload(self._slot, stream._slot)

    @cython.binding(False)
    def launch(self, Stream stream not None):
        """Runs it behind what the stream was given so far.

        ValueError for a stream of another context: the kernels would run on the SMs of the one that captured them, in
        the order of the other one.
        """
        launch(self._slot, stream._slot)

    def close(self):
        """Destroy the executable graph, which must not be running. Closing twice does nothing."""
        drop(self._slot)
        warn_of_failures()

    def __enter__(self):
        present(self._slot)
        return self

    def __exit__(self, *exc):
        self.close()

    def __reduce__(self):
        refuse_copy(self, "capture it there")

    def __repr__(self):
        cdef Borrowed[GraphExecBox] box = self._slot.borrow()
        if box.get() == NULL:
            return "<GraphExec: closed>"
        return f"<GraphExec {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_only_here(GraphExec, "a GraphExec comes from Graph.instantiate()")


cdef class Capture:
    """A ``with`` block in which a stream captures. Afterwards it has the graph."""

    cdef Stream _stream
    # Its own handle, so that the capture ends also if the stream is closed in the block.
    cdef Slot[StreamBox] _capturing
    cdef int _mode
    cdef Graph _graph

    def __dealloc__(self):
        drop(self._capturing)

    @property
    def graph(self):
        """The graph, once the block has been left without an error."""
        if self._graph is None:
            raise RuntimeError("the graph exists only after the block of Stream.capture() has ended")
        return self._graph

    def __enter__(self):
        self._graph = None
        present(self._stream._slot)
        self._capturing.share(self._stream._slot)
        begin_capture(self._capturing, <CUstreamCaptureMode>self._mode)
        return self

    def __exit__(self, kind, error, traceback):
        cdef Graph graph = Graph.__new__(Graph)
        try:
            end_capture(graph._slot, self._capturing)
        except RuntimeError:
            # After an exception the capture is often invalid: the exception of the block takes precedence.
            if kind is None:
                raise
            return
        finally:
            drop(self._capturing)
        if kind is None:
            self._graph = graph

    def __reduce__(self):
        refuse_copy(self, "capture there")


make_only_here(Capture, "a Capture comes from Stream.capture()")


def capture(Stream stream not None, str mode):
    """The block of Stream.capture()."""
    if mode not in MODE_OF_NAME:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODE_OF_NAME))}, not {mode!r}")
    cdef Capture made = Capture.__new__(Capture)
    made._stream = stream
    made._mode = MODE_OF_NAME[mode]
    return made
