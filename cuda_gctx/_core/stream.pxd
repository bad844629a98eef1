from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.cpp cimport ContextHandle, Slot, StreamBox, StreamHandle
from cuda_gctx._core.resources cimport DeviceResources


cdef class StreamOptions(Options):
    cdef readonly bint nonblocking
    cdef readonly object priority


cdef class Stream:
    cdef Slot[StreamBox] _slot
    cdef uintptr_t _number
    cdef object _context
    cdef DeviceResources _resources
    cdef object _owner
    cdef object __weakref__


cdef Stream new_stream(const ContextHandle& context, object context_object, StreamOptions options)
cdef Stream made_stream(Stream stream, const StreamHandle& box)
cdef int pin_stream(const StreamHandle& box) except -1
cdef int note_pinned(const ContextHandle& context) except -1
