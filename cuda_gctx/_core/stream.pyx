"""Streams: queues of work in one context."""


# Beyond any device, which has a range of its own.
cdef object MOST_PRIORITIES = 1_000_000


cdef class StreamOptions(Options):
    """The options of a stream. Immutable.

    nonblocking: whether it does not wait for the legacy default stream; streams of green contexts never wait for it.
    priority: smaller numbers have a higher priority; None is the lowest priority.
    """

    cdef readonly bint nonblocking
    cdef readonly object priority
    cdef optional[int] _level  # the same for the core

    _defaults = {"nonblocking": True, "priority": None}

    def __cinit__(self, nonblocking=True, priority=None):
        if priority is not None:
            priority = as_int("priority", priority, -MOST_PRIORITIES, MOST_PRIORITIES)
            self._level = <int>priority
        self.nonblocking = as_bool("nonblocking", nonblocking)
        self.priority = priority


cdef StreamOptions DEFAULT_STREAM_OPTIONS = StreamOptions()


cdef Stream made_stream(Stream stream):
    """A stream whose slot has just been filled."""
    stream._number = <uintptr_t>stream._slot.get().get().handle()
    return stream


cdef Stream new_stream(cpp.Slot[cpp.ContextBox]& context, StreamOptions options):
    cdef Stream stream = Stream.__new__(Stream)
    cdef StreamOptions wanted = options if options is not None else DEFAULT_STREAM_OPTIONS
    cpp.create_stream(stream._slot, context, wanted._level, wanted.nonblocking)
    return made_stream(stream)


cdef Stream adopted_stream(Stream stream, uintptr_t handle, object owner):
    cpp.adopt_stream(stream._slot, active_runtime()[0], <cpp.CUstream>handle)
    stream._owner = owner
    return made_stream(stream)


def show_to_device(Stream stream not None):
    """Make waits of the primary context, such as torch.cuda.synchronize(), cover a graph that other code launched last.

    On a stream of a green context they miss it (seen with driver 13.0). Does nothing on other streams.
    """
    cpp.show_stream(stream._slot)


cdef class Stream(InContext):
    """A queue of GPU work in one context, which it keeps alive.

    ``Stream(obj)`` adopts the stream of any object with ``__cuda_stream__``, and keeps `obj` alive.

    A stream whose raw value has left the package (`handle`, ``__cuda_stream__``) is not destroyed. Once closed, it is
    kept for the next stream of its context with the same options. If the object is dropped without close(), other code
    can go on using the raw value until the context is closed.

    Example:

        from cuda_gctx import Device

        with Device().partition(control=16, rest=None) as parts:
            stream = parts.control.stream
            with stream.record() as event:
                parts.rest.stream.wait(event)  # what is enqueued there from now on
                parts.rest.stream.wait(stream)  # the same without an event
            stream.sync()
            print(stream.is_done, stream.resources.sm.sm_count)  # True 16
    """

    cdef cpp.ChildSlot* slot(self) noexcept:
        return &self._slot

    def __init__(self, obj=None):
        if obj is None:
            raise TypeError(self._made_by)
        if isinstance(obj, Stream):
            adopted_stream(self, obj.handle, obj)
            return
        ask = getattr(obj, "__cuda_stream__", None)
        if not callable(ask):
            raise TypeError(f"{type(obj).__name__} has no __cuda_stream__ method: it is not a stream")
        answer = ask()
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"__cuda_stream__ must return two ints, a version and a handle, not {answer!r}")
        version = as_int("the version of __cuda_stream__", answer[0])
        if version != 0:
            raise ValueError(f"version {version} of the __cuda_stream__ protocol is not supported, only 0")
        adopted_stream(self, as_handle(answer[1]), obj)

    @staticmethod
    def from_handle(handle, owner=None):
        """Adopt a stream of another library, which the object never destroys.

        handle: the CUstream, as an int; 1 is the legacy default stream of the current context. owner: an object to keep
        alive as long as this one.

        Returns a Stream. Raises ValueError for a handle that is not a live stream, and for 0, which is ambiguous.
        """
        number = as_handle(handle, "stream: use 1 for the legacy default stream, 2 for the per-thread one")
        return adopted_stream(Stream.__new__(Stream), number, owner)

    @property
    def handle(self):
        """The CUstream, as an int."""
        cdef shared_ptr[cpp.StreamBox] box = cpp.live(self._slot)
        box.get().show()
        return <uintptr_t>box.get().handle()

    @property
    def context(self):
        """The context of the stream."""
        cpp.live(self._slot)
        context = self._context
        if context is None:
            context = self.find_context()
            with cython.critical_section(self):
                self._context = context
        return context

    @property
    def resources(self):
        """The resources of the context."""
        cpp.live(self._slot)
        with cython.critical_section(self):
            if self._resources is None:
                self._resources = DeviceResources.of_context(cpp.present(self._slot).get().context())
            return self._resources

    @property
    def priority(self):
        """The priority. Smaller numbers have a higher priority."""
        cdef const cpp.StreamKind* made_as = cpp.live(self._slot).get().made_as()
        return made_as.priority if made_as != NULL else cpp.stream_priority(self._slot)

    @property
    def is_nonblocking(self):
        """Whether the stream never waits for the legacy default stream."""
        cdef const cpp.StreamKind* made_as = cpp.live(self._slot).get().made_as()
        return made_as.nonblocking if made_as != NULL else bool(cpp.stream_is_nonblocking(self._slot))

    @property
    def is_owned(self):
        """Whether it was created for this object; False for adopted streams, and for streams that belong to a
        context.
        """
        return cpp.live(self._slot).get().is_owned()

    @property
    def is_done(self):
        """Whether all work of the stream has finished."""
        return bool(cpp.stream_is_done(self._slot))

    @property
    def is_closed(self):
        """Whether the stream has been closed."""
        cdef shared_ptr[cpp.StreamBox] box = self._slot.get()
        return box.get() == NULL or box.get().is_over()

    @cython.binding(False)
    def record(self, Event event=None, options=None):
        """Record an event after all work enqueued so far, and return it.

        event: the event to record; None creates a new event.
        options: the EventOptions of a new event, such as EventOptions(timing_enabled=True).

        Raises ValueError for an event together with options.
        """
        if event is None:
            event = new_event_for(self._slot, as_options(EventOptions, options))
        elif options is not None:
            raise ValueError("options apply only to a new event: omit either the options or the event")
        cpp.record_event(self._slot, event._slot)
        return event

    @cython.binding(False)
    def wait(self, event_or_stream):
        """Make all later work wait on the device; the host does not wait.

        event_or_stream: an event, or a stream whose work enqueued so far must finish first.
        """
        cdef Stream stream
        if isinstance(event_or_stream, Event):
            cpp.wait_event(self._slot, (<Event>event_or_stream)._slot)
        else:
            stream = event_or_stream if isinstance(event_or_stream, Stream) else Stream(event_or_stream)
            cpp.wait_stream(self._slot, stream._slot)

    def capture(self, mode="thread_local"):
        """A ``with`` block in which the stream captures a graph instead of running its work: ``capture.graph``.

        mode: whether calls that could disturb a capture are refused on all threads ("global"), on the calling one
        ("thread_local"), or nowhere ("relaxed").
        """
        cpp.present(self._slot)
        return capture(self, mode)

    @cython.binding(False)
    def sync(self):
        """Wait on the host until all work of the stream has finished."""
        cpp.synchronize_stream(self._slot)

    def close(self):
        """Close the stream; destroy it if it is owned and its raw value has not left the package.

        Closing twice does nothing. Raises CapturingError if that would destroy a stream that is part of a capture.
        """
        cdef shared_ptr[cpp.StreamBox] box = self._slot.get()
        demand_closable(self)
        if box.get() != NULL:
            box.get().note_closed()
            box.reset()
        self._slot.drop()
        with cython.critical_section(self):
            self._owner = None
            self._context = None
            self._resources = None
        warn_of_failures()

    def __cuda_stream__(self):
        """The handle, for a framework."""
        return (0, self.handle)

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        cdef Stream that = other
        if self is that:
            return True
        if self._number != that._number:
            return False
        cdef shared_ptr[cpp.StreamBox] box = self._slot.get()
        cdef shared_ptr[cpp.StreamBox] other_box = that._slot.get()
        if box.get() == NULL or other_box.get() == NULL:
            return False
        return bool(cpp.is_same_stream(self._slot, that._slot))

    def __hash__(self):
        if not self._slot.was_filled():
            cpp.present(self._slot)
        return hash(self._number)

    def __repr__(self):
        cdef shared_ptr[cpp.StreamBox] box = self._slot.get()
        if box.get() == NULL:
            return "<Stream: closed>" if self._slot.was_filled() else "<Stream: never initialized>"
        kind = "" if box.get().is_made_here() else ", adopted"
        context = box.get().context().get().id()
        return f"<Stream {<uintptr_t>box.get().handle():#x} of context {context}{kind}>"


make_here(
    Stream,
    "a Stream comes from create_stream() of a device, context or partition; Stream(obj) adopts one of another library",
)


def lent(Stream stream not None, owner):
    """The same stream as another object, which keeps `owner` alive."""
    cdef Stream found = Stream.__new__(Stream)
    cpp.present(stream._slot)
    found._slot.share(stream._slot)
    found._owner = owner
    return made_stream(found)


cpdef int demand_closable(Stream stream) except -1:
    """Raise CapturingError if close() would destroy a stream that is part of a capture."""
    cdef shared_ptr[cpp.StreamBox] box = stream._slot.get()
    if box.get() != NULL and box.get().is_owned() and box.get().may_capture():
        cpp.demand_closable(stream._slot)


def is_capturing(Stream stream not None):
    """Whether a stream is recording a graph."""
    return bool(cpp.stream_is_capturing(stream._slot))
