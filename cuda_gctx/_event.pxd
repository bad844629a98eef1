from cuda_gctx._core cimport ContextHandle, EventBox, EventHandle


cdef class EventOptions:
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync


cdef class Event:
    cdef EventHandle _box
    cdef EventOptions _options
    cdef object __weakref__

    cdef EventBox* live(self) except NULL


cdef Event new_event(const ContextHandle& context, EventOptions options)
