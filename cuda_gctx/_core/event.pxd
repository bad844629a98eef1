from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.cpp cimport ContextHandle, EventBox, EventHandle, Slot, StreamHandle


cdef class EventOptions(Options):
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync


cdef class Event:
    cdef Slot[EventBox] _slot
    cdef EventOptions _options
    cdef uintptr_t _number
    cdef object __weakref__


cdef Event new_event(const ContextHandle& context, EventOptions options)
cdef Event new_event_for(const StreamHandle& stream, EventOptions options)
