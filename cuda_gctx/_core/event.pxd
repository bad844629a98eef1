from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.cpp cimport ContextBox, EventBox, Slot, StreamBox


cdef class EventOptions(Options):
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync


cdef class Event:
    cdef Slot[EventBox] _slot
    cdef EventOptions _options
    cdef uintptr_t _number
    cdef object __weakref__


cdef object context_of_child(object child)
cdef Event new_event(Slot[ContextBox]& context, EventOptions options)
cdef Event new_event_for(Slot[StreamBox]& stream, EventOptions options)
