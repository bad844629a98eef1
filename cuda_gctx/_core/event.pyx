"""Events: points in the work of a stream or of a whole context."""


cdef class EventOptions(Options):
    """The options of an event. Immutable.

    timing_enabled: whether the event records a timestamp, so that two events can be subtracted.
    blocking_sync: whether `sync` sleeps instead of spinning.
    """

    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync
    cdef unsigned int _flags  # the same for the driver

    _defaults = {"timing_enabled": False, "blocking_sync": False}

    def __cinit__(self, timing_enabled=False, blocking_sync=False):
        self.timing_enabled = as_bool("timing_enabled", timing_enabled)
        self.blocking_sync = as_bool("blocking_sync", blocking_sync)
        self._flags = cpp.CU_EVENT_DEFAULT if self.timing_enabled else cpp.CU_EVENT_DISABLE_TIMING
        if self.blocking_sync:
            self._flags |= cpp.CU_EVENT_BLOCKING_SYNC


cdef EventOptions DEFAULT_EVENT_OPTIONS = EventOptions()


cdef Event unmade_event(EventOptions options):
    """An event without a handle yet."""
    cdef Event event = Event.__new__(Event)
    event._options = options if options is not None else DEFAULT_EVENT_OPTIONS
    return event


cdef class InContext:
    """What is made in a context, which it keeps alive: ``with`` closes it at the end of the block."""

    cdef cpp.ChildSlot* slot(self) noexcept:
        return NULL

    cdef object find_context(self):
        """The context. Streams return the same object each time."""
        return context_of(self)

    @property
    def context(self):
        """The context, which it keeps alive."""
        return self.find_context()

    @property
    def device(self):
        """The device of the context."""
        return Device(self.slot().context().get().device())

    @property
    def is_closed(self):
        """Whether it has been closed."""
        return self.slot().is_empty()

    def close(self):
        """Destroy it, unless it was adopted. Closing twice does nothing."""
        self.slot().drop()
        self._owner = None
        warn_of_failures()

    def __enter__(self):
        self.slot().context()
        return self

    def __exit__(self, *exc):
        self.close()


cdef Event new_event(cpp.Slot[cpp.ContextBox]& context, EventOptions options):
    cdef Event event = unmade_event(options)
    cpp.create_event(event._slot, context, event._options._flags)
    return event


cdef Event new_event_for(cpp.Slot[cpp.StreamBox]& stream, EventOptions options):
    cdef Event event = unmade_event(options)
    cpp.create_event_for(event._slot, stream, event._options._flags)
    return event


cdef class Event(InContext):
    """A point in the work of a stream or of a whole context.

    Example:

        from cuda_gctx import Device, EventOptions
        from cuda_gctx.tune import spin

        timed = EventOptions(timing_enabled=True)
        with Device().create_stream() as stream:
            start = stream.record(options=timed)
            spin(stream, blocks=8, spin_ns=2_000_000)
            end = stream.record(options=timed)
            end.sync()  # the host waits; in a coroutine: await end
            print(end.is_done, round(end - start), "ms")  # True 2 ms
            start.close(), end.close()
    """

    cdef cpp.Slot[cpp.EventBox] _slot
    cdef EventOptions _options

    cdef cpp.ChildSlot* slot(self) noexcept:
        return &self._slot

    @property
    def handle(self):
        """The CUevent, as an int."""
        cdef shared_ptr[cpp.EventBox] box = cpp.live(self._slot)
        box.get().expose()
        return <uintptr_t>box.get().handle()

    @property
    def is_timing_enabled(self):
        """Whether the event records timestamps."""
        cpp.live(self._slot)
        return self._options.timing_enabled

    @property
    def is_blocking_sync(self):
        """Whether `sync` sleeps instead of spinning."""
        cpp.live(self._slot)
        return self._options.blocking_sync

    @property
    def is_done(self):
        """Whether all work before the event has finished."""
        return bool(cpp.event_is_done(self._slot))

    @cython.binding(False)
    def sync(self):
        """Wait on the host until all work before the event has finished."""
        cpp.synchronize_event(self._slot)

    def __await__(self):
        """``await event`` waits in a coroutine until all work before the event has finished; the loop goes on."""
        return until_done(self).__await__()

    def __sub__(self, other):
        """``end - start`` is the milliseconds from `start` to `end`, two events with timing."""
        if not isinstance(other, Event):
            return NotImplemented
        cdef Event start = other
        cpp.present(self._slot)
        cpp.present(start._slot)
        if not (start._options.timing_enabled and self._options.timing_enabled):
            raise RuntimeError(
                "only events with timing can be subtracted: create both with EventOptions(timing_enabled=True), as in "
                "stream.record(options=EventOptions(timing_enabled=True))"
            )
        return cpp.elapsed_ms(start._slot, self._slot)

    def __repr__(self):
        cdef shared_ptr[cpp.EventBox] box = self._slot.get()
        if box.get() == NULL:
            return "<Event: closed>"
        timing = " with timing" if self._options.timing_enabled else ""
        return f"<Event {<uintptr_t>box.get().handle():#x}{timing}>"


make_only_here(Event, "an Event comes from create_event() or record() of a device, context or stream")
