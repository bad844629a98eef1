"""Events: points in the work of a stream or of a whole context."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport Options, as_bool, make_only_here, refuse_copy
from cuda_gctx._core.cpp cimport (
    CU_EVENT_BLOCKING_SYNC,
    CU_EVENT_DEFAULT,
    CU_EVENT_DISABLE_TIMING,
    Borrowed,
    ContextBox,
    EventBox,
    Slot,
    StreamBox,
    create_event,
    create_event_for,
    drop,
    elapsed_ms,
    event_is_done,
    live,
    present,
    synchronize_event,
)
from cuda_gctx._core.errors cimport report_failures, warn_of_failures
from cuda_gctx._core.resources cimport device_of

from cuda_gctx._core.arguments import DataclassFields
from cuda_gctx._core.polling import until_done


cdef class EventOptions(Options):
    """The options of an event. Immutable.

    timing_enabled: whether the event records a timestamp, so that two events can be subtracted.
    blocking_sync: whether `sync` sleeps instead of spinning.
    """

    __dataclass_fields__ = DataclassFields({"timing_enabled": False, "blocking_sync": False})

    def __cinit__(self, timing_enabled=False, blocking_sync=False):
        self.timing_enabled = as_bool("timing_enabled", timing_enabled)
        self.blocking_sync = as_bool("blocking_sync", blocking_sync)

    cdef dict values(self):
        return {"timing_enabled": self.timing_enabled, "blocking_sync": self.blocking_sync}


cdef EventOptions DEFAULT_OPTIONS = EventOptions()


cdef Event unmade_event(EventOptions options, unsigned int* flags):
    """An event without a handle yet, and the driver's flags for it."""
    cdef Event event = Event.__new__(Event)
    event._options = options if options is not None else DEFAULT_OPTIONS
    flags[0] = CU_EVENT_DEFAULT
    if not event._options.timing_enabled:
        flags[0] |= CU_EVENT_DISABLE_TIMING
    if event._options.blocking_sync:
        flags[0] |= CU_EVENT_BLOCKING_SYNC
    return event


# The function context_of of the module of contexts, once something has asked for it.
cdef object context_of = None


cdef object context_of_child(child):
    """The context of an event or a stream. Its module imports theirs, and is imported at first use."""
    global context_of
    if context_of is None:
        from cuda_gctx._core import context

        context_of = context.context_of
    return context_of(child)


cdef Event new_event(Slot[ContextBox]& context, EventOptions options):
    cdef unsigned int flags
    cdef Event event = unmade_event(options, &flags)
    create_event(event._slot, context, flags)
    return made_event(event)


cdef Event new_event_for(Slot[StreamBox]& stream, EventOptions options):
    cdef unsigned int flags
    cdef Event event = unmade_event(options, &flags)
    create_event_for(event._slot, stream, flags)
    return made_event(event)


cdef Event made_event(Event event):
    """An event whose slot has just been filled."""
    event._number = <uintptr_t>event._slot.borrow().get()
    return event


cdef class Event:
    """A point in the work of a stream or of a whole context."""

    def __dealloc__(self):
        if drop(self._slot):
            report_failures()

    @property
    def handle(self):
        """The CUevent, as an int."""
        cdef Borrowed[EventBox] box = live(self._slot)
        box.get().expose()
        return <uintptr_t>box.get().handle()

    @property
    def context(self):
        """The context of the event."""
        live(self._slot)
        return context_of_child(self)

    @property
    def device(self):
        """The device of the event."""
        return device_of(live(self._slot).get().context().get().device())

    @property
    def is_timing_enabled(self):
        """Whether the event records timestamps."""
        live(self._slot)
        return self._options.timing_enabled

    @property
    def is_blocking_sync(self):
        """Whether `sync` sleeps instead of spinning."""
        live(self._slot)
        return self._options.blocking_sync

    @property
    def is_done(self):
        """Whether all work before the event has finished."""
        return bool(event_is_done(self._slot))

    @property
    def is_closed(self):
        """Whether the event has been closed."""
        return self._slot.borrow().get() == NULL

    @cython.binding(False)
    def sync(self):
        """Wait on the host until all work before the event has finished."""
        synchronize_event(self._slot)

    def __await__(self):
        """Waits in a coroutine until all work before it has finished, by asking now and then: the loop goes on."""
        return until_done(self).__await__()

    def close(self):
        """Destroy the event. Closing twice does nothing."""
        drop(self._slot)
        warn_of_failures()

    def __sub__(self, other):
        """The milliseconds from `other` to this event."""
        if not isinstance(self, Event) or not isinstance(other, Event):
            return NotImplemented
        cdef Event end = self
        cdef Event start = other
        present(end._slot)
        present(start._slot)
        if not (start._options.timing_enabled and end._options.timing_enabled):
            raise RuntimeError("both events must be created with EventOptions(timing_enabled=True) to be subtracted")
        return elapsed_ms(start._slot, end._slot)

    def __reduce__(self):
        refuse_copy(self, "create one in the other process with create_event()")

    def __eq__(self, other):
        if not isinstance(other, Event):
            return NotImplemented
        cdef Event that = other
        return self is that

    def __hash__(self):
        return hash(self._number)

    def __enter__(self):
        live(self._slot)
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        cdef Borrowed[EventBox] box = self._slot.borrow()
        if box.get() == NULL:
            return "<Event: closed>"
        timing = " with timing" if self._options.timing_enabled else ""
        return f"<Event {<uintptr_t>box.get().handle():#x}{timing}>"


make_only_here(Event, "an Event comes from create_event() or record() of a device, context or stream")
