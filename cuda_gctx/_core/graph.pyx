"""CUDA graphs: work that is captured on a stream once, and then launched as a whole."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport make_only_here, refuse_copy
from cuda_gctx._core.context cimport wrap_context
from cuda_gctx._core.cpp cimport (
    CU_STREAM_CAPTURE_MODE_GLOBAL,
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode,
    GraphBox,
    GraphExecBox,
    GraphExecHandle,
    GraphHandle,
    Slot,
    StreamHandle,
    begin_capture,
    end_capture,
    instantiate,
    launch,
    upload,
)
from cuda_gctx._core.errors cimport report_failures, warn_of_failures
from cuda_gctx._core.stream cimport Stream

from cuda_gctx._core.above import above

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
        cdef GraphHandle box = self._slot.take()
        with nogil:
            box.reset()
        report_failures()

    @property
    def handle(self):
        """The CUgraph, as an int."""
        return <uintptr_t>self._slot.demand(b"graph").get().handle()

    @property
    def context(self):
        """The context of the stream that captured it, which it keeps alive."""
        return wrap_context(self._slot.demand(b"graph").get().context())

    @property
    def device(self):
        """The device of the graph."""
        return above.Device(self._slot.demand(b"graph").get().context().get().device())

    @property
    def node_count(self):
        """The number of nodes: kernels, copies and others."""
        return self._slot.demand(b"graph").get().node_count()

    @property
    def is_closed(self):
        """Whether the graph has been closed."""
        return not self._slot.get()

    def instantiate(self):
        """Make the executable graph, which takes device memory and no longer needs this graph. Returns a GraphExec."""
        cdef GraphHandle box = self._slot.demand(b"graph")
        cdef GraphExec made = GraphExec.__new__(GraphExec)
        cdef GraphExecHandle exec_box
        with nogil:
            exec_box = instantiate(box)
        made._slot.put(exec_box)
        return made

    def close(self):
        """Destroy the graph, but not its executable form. Closing twice does nothing."""
        cdef GraphHandle box = self._slot.take()
        with nogil:
            box.reset()
        warn_of_failures()

    def __enter__(self):
        self._slot.demand(b"graph")
        return self

    def __exit__(self, *exc):
        self.close()

    def __reduce__(self):
        refuse_copy(self, "capture it there")

    def __repr__(self):
        cdef GraphHandle box = self._slot.get()
        if not box:
            return "<Graph: closed>"
        return f"<Graph {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_only_here(Graph, "a Graph comes from Stream.capture()")


cdef class GraphExec:
    """A graph that can be launched, on streams of the context in which it was captured."""

    cdef Slot[GraphExecBox] _slot
    cdef object __weakref__

    def __dealloc__(self):
        cdef GraphExecHandle box = self._slot.take()
        with nogil:
            box.reset()
        report_failures()

    @property
    def handle(self):
        """The CUgraphExec, as an int."""
        return <uintptr_t>self._slot.demand(b"executable graph").get().handle()

    @property
    def context(self):
        """The context of the stream that captured it, which it keeps alive."""
        return wrap_context(self._slot.demand(b"executable graph").get().context())

    @property
    def device(self):
        """The device of the graph."""
        return above.Device(self._slot.demand(b"executable graph").get().context().get().device())

    @property
    def is_closed(self):
        """Whether the graph has been closed."""
        return not self._slot.get()

    def upload(self, Stream stream not None):
        """Upload the graph to the device before the first launch.

        stream: on which the upload is enqueued.
        """
        cdef GraphExecHandle box = self._slot.copy(b"executable graph")
        cdef StreamHandle on = stream._slot.copy(b"stream")
        with nogil:
            upload(box, on)
        self._slot.keep_copy(box)
        stream._slot.keep_copy(on)

    @cython.binding(False)
    def launch(self, Stream stream not None):
        """Runs it behind what the stream was given so far.

        ValueError for a stream of another context: the kernels would run on the SMs of the one that captured them, in
        the order of the other one.
        """
        cdef GraphExecHandle box = self._slot.copy(b"executable graph")
        cdef StreamHandle on = stream._slot.copy(b"stream")
        with nogil:
            launch(box, on)
        self._slot.keep_copy(box)
        stream._slot.keep_copy(on)

    def close(self):
        """Destroy the executable graph, which must not be running. Closing twice does nothing."""
        cdef GraphExecHandle box = self._slot.take()
        with nogil:
            box.reset()
        warn_of_failures()

    def __enter__(self):
        self._slot.demand(b"executable graph")
        return self

    def __exit__(self, *exc):
        self.close()

    def __reduce__(self):
        refuse_copy(self, "capture it there")

    def __repr__(self):
        cdef GraphExecHandle box = self._slot.get()
        if not box:
            return "<GraphExec: closed>"
        return f"<GraphExec {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_only_here(GraphExec, "a GraphExec comes from Graph.instantiate()")


cdef class Capture:
    """A ``with`` block in which a stream captures. Afterwards it has the graph."""

    cdef Stream _stream
    cdef int _mode
    cdef Graph _graph

    @property
    def graph(self):
        """The graph, once the block has been left without an error."""
        if self._graph is None:
            raise RuntimeError("the graph exists only after the block of Stream.capture() has ended")
        return self._graph

    def __enter__(self):
        cdef StreamHandle box = self._stream._slot.demand(b"stream")
        cdef CUstreamCaptureMode mode = <CUstreamCaptureMode>self._mode
        self._graph = None
        with nogil:
            begin_capture(box, mode)
        return self

    def __exit__(self, kind, error, traceback):
        cdef StreamHandle box = self._stream._slot.demand(b"stream")
        cdef Graph graph = Graph.__new__(Graph)
        cdef GraphHandle made
        try:
            with nogil:
                made = end_capture(box)
        except RuntimeError:
            # After an exception the capture is often invalid: the exception of the block takes precedence.
            if kind is None:
                raise
            return
        if kind is None:
            graph._slot.put(made)
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
