from cuda_gctx._core cimport ContextHandle, StreamBox, StreamHandle
from cuda_gctx._resources cimport DeviceResources


cdef class StreamOptions:
    cdef readonly bint nonblocking
    cdef readonly object priority


cdef class Stream:
    cdef StreamHandle _box
    cdef object _context
    cdef DeviceResources _resources
    cdef object _owner
    cdef object __weakref__

    cdef StreamBox* live(self) except NULL


cdef Stream new_stream(const ContextHandle& context, object context_object, StreamOptions options)
