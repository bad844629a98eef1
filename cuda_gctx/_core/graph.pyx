"""CUDA graphs: work that is captured once, and then launched as a whole, in any context of its device."""


cdef dict MODE_OF_NAME = {
    "global": <int>cpp.CU_STREAM_CAPTURE_MODE_GLOBAL,
    "thread_local": <int>cpp.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    "relaxed": <int>cpp.CU_STREAM_CAPTURE_MODE_RELAXED,
}


cdef Graph adopted_graph(Graph graph, uintptr_t handle, object owner):
    cpp.adopt_graph(graph._slot, active_runtime()[0], <cpp.CUgraph>handle)
    graph._owner = owner
    return graph


cdef uintptr_t graph_of(object obj) except? 0:
    """The CUgraph of an object of another library."""
    of_torch = getattr(obj, "raw_cuda_graph", None)
    if of_torch is not None:
        try:
            return as_handle(of_torch())
        except RuntimeError as error:
            raise ValueError(
                "torch provides the graph of a CUDAGraph only after its capture, and only if it was created with "
                "torch.cuda.CUDAGraph(keep_graph=True)"
            ) from error
    handle = getattr(getattr(obj, "graph_definition", obj), "handle", None)
    if type(handle).__name__ != "CUgraph":
        raise TypeError(
            "a Graph is created from torch's CUDAGraph, from a GraphDefinition or a GraphBuilder of cuda.core, or by "
            f"Graph.from_handle(), not from {type(obj).__name__}; the driver provides no graph of an executable one"
        )
    return as_handle(int(handle))


cdef Context target_context(object where):
    context = where if isinstance(where, Context) else getattr(where, "context", None)
    if not isinstance(context, Context):
        raise TypeError(
            "a graph is moved to a Partition, a Context, or the Device for all of its SMs, not to "
            f"{type(where).__name__}"
        )
    return context


cdef class Graph(InContext):
    """Captured work. Its kernels run in the contexts in which they were captured; in_partition() moves them.

    Stream.capture() makes one. ``Graph(obj)`` adopts that of another library, in the context of its first kernel.
    Its executable forms outlive it.

    Example:

        from cuda_gctx import Device
        from cuda_gctx.tune import spin

        with Device().partition(control=16, rest=None) as parts:
            with parts.rest.stream.capture() as capture:
                spin(parts.rest.stream, blocks=8, spin_ns=10_000)
            with capture.graph.in_partition(parts.control) as step:
                step.launch(parts.control.stream)
                parts.control.sync()
            print(capture.graph.node_count)  # 1
            capture.graph.close()
    """

    cdef cpp.Slot[cpp.GraphBox] _slot

    cdef cpp.ChildSlot* slot(self) noexcept:
        return &self._slot

    def __init__(self, obj):
        """Adopt the graph of an object, which lives as long as this one and what is made of it.

        obj: torch's CUDAGraph (``keep_graph=True``), or a GraphDefinition or GraphBuilder of cuda.core.
        """
        adopted_graph(self, graph_of(obj), obj)

    @staticmethod
    def from_handle(handle, owner=None):
        """Adopt a graph of another library, which the object never destroys.

        handle: the CUgraph, as an int; ValueError for 0. owner: an object to keep alive as long as this one and what is
        made of it.
        """
        return adopted_graph(Graph.__new__(Graph), as_handle(handle, "graph"), owner)

    @property
    def handle(self):
        """The CUgraph, as an int."""
        return <uintptr_t>cpp.present(self._slot).get().handle()

    @property
    def node_count(self):
        """The number of nodes: kernels, copies and others."""
        return cpp.node_count(self._slot)

    def instantiate(self, *, ordered=True):
        """Make the executable graph, which takes device memory and no longer needs this graph. Returns a GraphExec.

        ordered: whether its launches wait for those of the other executable graphs of this capture (see in_partition).
        """
        cdef GraphExec made = GraphExec.__new__(GraphExec)
        cpp.instantiate(made._slot, self._slot, as_bool("ordered", ordered))
        made._owner = self._owner
        return made

    def in_partition(self, part, *, ordered=True):
        """Make an executable graph whose kernels, fills and copies run in another context. Returns a GraphExec.

        part: the Partition, a Context, or the Device for all of its SMs. ordered: its launches and those of the other
        executable graphs of this capture run one behind the other on the device, because they use the same memory;
        False leaves the order to the program.

        The graph stays as it is. The executable graph keeps it and its owner alive. Raises ValueError, before anything
        is made, if a kernel cannot run there: a cooperative launch or a cluster that is too large, or a node that the
        driver does not copy (memory, conditions).
        """
        cdef GraphExec made = GraphExec.__new__(GraphExec)
        cdef Context context = target_context(part)
        cpp.move_graph(made._slot, self._slot, context._slot, as_bool("ordered", ordered))
        made._owner = self._owner
        return made

    def __repr__(self):
        cdef shared_ptr[cpp.GraphBox] box = self._slot.get()
        if box.get() == NULL:
            return "<Graph: closed>"
        return f"<Graph {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_here(Graph, "a Graph comes from Stream.capture(); Graph(obj) adopts that of another library")


cdef class GraphExec(InContext):
    """A graph to launch on streams of the context in which its kernels run. It must not run when it is closed."""

    cdef cpp.Slot[cpp.GraphExecBox] _slot

    cdef cpp.ChildSlot* slot(self) noexcept:
        return &self._slot

    @property
    def handle(self):
        """The CUgraphExec, as an int."""
        return <uintptr_t>cpp.present(self._slot).get().handle()

    def upload(self, Stream stream not None):
        """Upload the graph to the device before the first launch.

        stream: on which the upload is enqueued.
        """
        cpp.upload(self._slot, stream._slot)

    def verify(self, *, timeout=10.0):
        """Prove where the kernels of a moved graph run. Returns a VerifyReport, whose ``kernels`` has each of them.

        A copy of the graph runs in which each kernel is a probe, in the context of the node. Kernels and copies of the
        graph itself do not run. Raises IsolationError if one ran outside of the SMs of the context.

        timeout: in seconds, for the probe.
        """
        from cuda_gctx.partitions.verification import verify_graph

        return verify_graph(self, timeout)

    @cython.binding(False)
    def launch(self, Stream stream not None):
        """Launch the graph behind the work of a stream of its device. Its kernels run in their own contexts.

        A launch on a stream of another context waits for what these contexts wait for, such as a switch of a pool, and
        counts as their work.
        """
        cpp.launch(self._slot, stream._slot)

    def __repr__(self):
        cdef shared_ptr[cpp.GraphExecBox] box = self._slot.get()
        if box.get() == NULL:
            return "<GraphExec: closed>"
        return f"<GraphExec {<uintptr_t>box.get().handle():#x} of context {box.get().context().get().id()}>"


make_only_here(GraphExec, "a GraphExec comes from Graph.instantiate() or Graph.in_partition()")


cdef class Capture:
    """A ``with`` block in which a stream captures. Afterwards it has the graph."""

    cdef Stream _stream
    # Its own handle while a block begins, is open or ends, so that the capture ends also if the stream is closed there.
    cdef cpp.Slot[cpp.StreamBox] _capturing
    cdef bint _is_open
    # The driver's number of the capture.
    cdef uint64_t _number
    cdef int _mode
    cdef object _thread
    cdef Graph _graph

    @property
    def graph(self):
        """The graph, once the block has been left without an error."""
        if self._graph is None:
            raise RuntimeError("the graph exists only after the block of Stream.capture() has ended")
        return self._graph

    def __enter__(self):
        cpp.present(self._stream._slot)
        if self._capturing.get().get() != NULL:
            raise RuntimeError("this block is already open: each block needs a Stream.capture() of its own")
        self._capturing.share(self._stream._slot)
        self._graph = None
        try:
            self._number = cpp.begin_capture(self._capturing, <cpp.CUstreamCaptureMode>self._mode)
            self._thread = get_ident()
            self._is_open = True
        finally:
            if not self._is_open:
                self._capturing.drop()
        return self

    def __exit__(self, kind, error, traceback):
        cdef Graph graph = Graph.__new__(Graph)
        if not self._is_open:
            raise RuntimeError("this block is not open")
        # The driver ends a capture of these modes only on its own thread, and an attempt on another one harms it.
        # The block stays open for its thread.
        if self._mode != MODE_OF_NAME["relaxed"] and self._thread != get_ident():
            if kind is not None:
                return
            raise CapturingError(
                f"the capture of {self._stream!r} began on another thread: leave its block on that thread"
            )
        self._is_open = False
        try:
            cpp.end_capture(graph._slot, self._capturing)
        except RuntimeError:
            # After an exception the capture is often invalid: the exception of the block takes precedence.
            if kind is None:
                raise
            return
        finally:
            self._capturing.drop()
        if kind is None:
            self._graph = graph

    def __del__(self):
        # Nobody else can end the capture, and while it lasts, the device takes no new context.
        if self._is_open and cpp.abandon_capture(self._capturing, self._number):
            self._is_open = False
            warnings.warn(
                f"the block of a capture of {self._stream!r} was dropped before it was left: the capture has ended "
                "without a graph; use Stream.capture() in a with statement",
                CUDAWarning,
                stacklevel=2,
            )


make_only_here(Capture, "a Capture comes from Stream.capture()")


def capture(Stream stream not None, str mode):
    """The block of Stream.capture()."""
    if mode not in MODE_OF_NAME:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODE_OF_NAME))}, not {mode!r}")
    cdef Capture made = Capture.__new__(Capture)
    made._stream = stream
    made._mode = MODE_OF_NAME[mode]
    return made


def contexts_of_exec(GraphExec graph not None):
    """The contexts in which the kernels of an executable graph run."""
    cpp.present(graph._slot)
    cdef vector[cpp.ContextHandle] contexts = graph._slot.get().get().contexts()
    cdef size_t at
    return [context_of_handle(contexts[at], None) for at in range(contexts.size())]


def probe_kernels(GraphExec graph not None, Stream stream not None, uint64_t spin_ns, uint64_t timeout_ns):
    """For each kernel of a graph, its name, the id of its context, and the ids of the SMs on which the probe ran in its
    place.

    stream: one of the primary context, for the own use of the call.
    """
    cdef vector[cpp.KernelSms] seen = cpp.probe_graph(graph._slot, stream._slot, spin_ns, timeout_ns)
    cdef size_t i
    # By number: a variable would be a copy, which can raise where nothing catches it.
    return [(seen[i].name.decode(), seen[i].context, tuple(seen[i].sm_ids)) for i in range(seen.size())]
