from cuda_gctx._core cimport ContextBox, ContextHandle
from cuda_gctx._resources cimport DeviceResources


cdef class ContextOptions:
    cdef readonly tuple resources
    cdef readonly bint exclusive
    cdef readonly str name


cdef class Context:
    cdef ContextHandle _box
    cdef DeviceResources _resources
    cdef object _current
    cdef object _owner
    cdef object __weakref__

    cdef ContextBox* live(self) except NULL


cdef Context wrap_context(const ContextHandle& box)
cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters)
