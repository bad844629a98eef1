cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.arguments cimport Options


cdef class EventOptions(Options):
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync
    cdef unsigned int _flags  # the same for the driver


cdef class InContext:
    cdef object _owner  # of what was adopted: kept as long as this
    cdef object __weakref__

    cdef cpp.ChildSlot* slot(self) noexcept
    cdef object find_context(self)


cdef class Event(InContext):
    cdef cpp.Slot[cpp.EventBox] _slot
    cdef EventOptions _options


cdef Event new_event(cpp.Slot[cpp.ContextBox]& context, EventOptions options)
cdef Event new_event_for(cpp.Slot[cpp.StreamBox]& stream, EventOptions options)
