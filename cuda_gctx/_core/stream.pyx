"""Streams: queues of work in one context."""

from libc.stdint cimport uintptr_t
from libcpp.optional cimport optional

from cuda_gctx._core.arguments cimport as_bool, as_handle, as_int
from cuda_gctx._core.cpp cimport (
    CUstream,
    Runtime,
    adopt_stream,
    create_stream,
    is_same_stream,
    record_event,
    stream_is_done,
    stream_is_nonblocking,
    stream_priority,
    synchronize_stream,
    wait_event,
)
from cuda_gctx._core.driver cimport active_runtime
from cuda_gctx._core.errors cimport report_failures, warn_of_failures
from cuda_gctx._core.event cimport Event, EventOptions, new_event_for

from cuda_gctx._core.above import above


cdef class StreamOptions:
    """How a stream is made. Immutable.

    nonblocking: it does not wait for the legacy default stream; streams of green contexts never do.
    priority: lower numbers come first; None for the lowest priority.
    """

    def __cinit__(self, nonblocking=True, priority=None):
        if priority is not None:
            priority = as_int("priority", priority)
            if abs(priority) > 1_000_000:
                raise ValueError(f"priority {priority} is out of any range")
        self.nonblocking = as_bool("nonblocking", nonblocking)
        self.priority = priority

    def __reduce__(self):
        return StreamOptions, (self.nonblocking, self.priority)

    def __eq__(self, other):
        if not isinstance(other, StreamOptions):
            return NotImplemented
        return (self.nonblocking, self.priority) == (other.nonblocking, other.priority)

    def __hash__(self):
        return hash((self.nonblocking, self.priority))

    def __repr__(self):
        return f"StreamOptions(nonblocking={self.nonblocking}, priority={self.priority})"


cdef Stream new_stream(const ContextHandle& context, object context_object, StreamOptions options):
    cdef Stream stream = Stream.__new__(Stream)
    cdef optional[int] priority
    cdef bint nonblocking = True
    if options is not None:
        nonblocking = options.nonblocking
        if options.priority is not None:
            priority = <int>options.priority
    stream._context = context_object
    with nogil:
        stream._box = create_stream(context, priority, nonblocking)
    return stream


cdef Stream adopted(Stream stream, uintptr_t handle, object owner):
    cdef Runtime* runtime = active_runtime()
    with nogil:
        stream._box = adopt_stream(runtime[0], <CUstream>handle)
    stream._owner = owner
    return stream


cdef Stream stream_of(object obj):
    """`obj` itself, or the stream that it stands for."""
    return obj if isinstance(obj, Stream) else Stream(obj)


cdef class Stream:
    """A queue of GPU work in one context, which it keeps alive.

    ``Stream(obj)`` adopts the stream of anything with ``__cuda_stream__``, and keeps `obj` alive.
    """

    def __init__(self, obj):
        ask = getattr(obj, "__cuda_stream__", None)
        if not callable(ask):
            raise TypeError(f"{type(obj).__name__} has no __cuda_stream__ method: it is not a stream")
        answer = ask()
        if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(part, int) for part in answer):
            raise TypeError(f"__cuda_stream__ must return two ints, a version and a handle, not {answer!r}")
        if answer[0] != 0:
            raise ValueError(f"version {answer[0]} of the __cuda_stream__ protocol is not known, only 0")
        adopted(self, as_handle(answer[1]), obj)

    @staticmethod
    def from_handle(handle, owner=None):
        """The stream of a raw handle, which `owner` (if given) is kept alive for."""
        number = as_handle(handle)
        if number == 0:
            raise ValueError("handle 0 is no stream: use 1 for the legacy default stream, 2 for the per-thread one")
        return adopted(Stream.__new__(Stream), number, owner)

    cdef void let_go(self) noexcept:
        # Out of reach first: with the GIL away, another thread may look.
        cdef StreamHandle box
        box.swap(self._box)
        # Destroying may wait in the driver; nobody else should wait with it.
        with nogil:
            box.reset()

    def __dealloc__(self):
        self.let_go()
        report_failures()

    @property
    def handle(self):
        """The CUstream, as an int."""
        return <uintptr_t>self.usable().handle()

    @property
    def context(self):
        """The context that it belongs to."""
        self.usable()
        if self._context is None:
            self._context = above.context_of(self)
        return self._context

    @property
    def device(self):
        """The device that it is on."""
        return above.Device(self.usable().context().get().device())

    @property
    def resources(self):
        """The resources of its context."""
        self.usable()
        if self._resources is None:
            self._resources = DeviceResources.of_context(self._box.get().context())
        return self._resources

    @property
    def priority(self):
        """Lower numbers come first."""
        self.live()
        return stream_priority(self._box)

    @property
    def is_nonblocking(self):
        """Whether it never waits for the legacy default stream."""
        self.live()
        return stream_is_nonblocking(self._box)

    @property
    def is_owned(self):
        """Whether closing it destroys the stream; False for an adopted one, and for one that its context keeps."""
        return self.usable().is_owned()

    @property
    def is_done(self):
        """Whether all its work has finished."""
        self.live()
        return stream_is_done(self._box)

    @property
    def is_closed(self):
        """Whether it has been closed."""
        return self._closing

    def record(self, Event event=None, EventOptions options=None):
        """Records `event`, or a new one made with `options`, behind all work given so far; returns it."""
        self.pin()
        try:
            if event is None:
                event = new_event_for(self._box, options)
            elif options is not None:
                raise ValueError("options are for a new event: leave them out, or leave the event out")
            event.pin()
            try:
                with nogil:
                    record_event(self._box, event._box)
            finally:
                event.unpin()
        finally:
            self.unpin()
        return event

    def wait(self, event_or_stream):
        """Lets all later work wait for an event, or for what another stream was given so far."""
        cdef Event event
        if isinstance(event_or_stream, Event):
            event = event_or_stream
        else:
            self.live()
            event = stream_of(event_or_stream).record()
        self.pin()
        try:
            event.pin()
            try:
                with nogil:
                    wait_event(self._box, event._box)
            finally:
                event.unpin()
        finally:
            self.unpin()

    def sync(self):
        """Waits until all its work has finished."""
        self.pin()
        try:
            with nogil:
                synchronize_stream(self._box)
        finally:
            self.unpin()

    def torch(self, library_sms="off"):
        """A ``with`` block in which torch works on the stream (see cuda_gctx.interop.torch.use)."""
        self.live()
        return above.torch_block(self, library_sms)

    def cupy(self, library_sms="off"):
        """A ``with`` block in which CuPy works on the stream (see cuda_gctx.interop.cupy.use)."""
        self.live()
        return above.cupy_block(self, library_sms)

    def close(self):
        """Destroys the stream if it is owned, else lets it go. Closing twice does nothing."""
        self.close_unless_pinned()
        self._owner = None
        self._context = None
        self._resources = None
        warn_of_failures()

    def __cuda_stream__(self):
        return (0, <uintptr_t>self.usable().handle())

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        cdef Stream that = other
        if self is that:
            return True
        if self._closing or that._closing:
            return False
        return is_same_stream(self._box, that._box)

    def __hash__(self):
        return hash(<uintptr_t>self.usable().handle())

    def __enter__(self):
        self.usable()
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        if self._closing:
            return "<Stream: closed>"
        kind = "" if self._box.get().is_made_here() else ", adopted"
        context = self._box.get().context().get().id()
        return f"<Stream {<uintptr_t>self._box.get().handle():#x} of context {context}{kind}>"
