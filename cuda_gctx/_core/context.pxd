cimport cython

from cuda_gctx._core.cpp cimport ContextBox, ContextHandle
from cuda_gctx._core.driver cimport Closable
from cuda_gctx._core.resources cimport DeviceResources


cdef class ContextOptions:
    cdef readonly tuple resources
    cdef readonly bint exclusive
    cdef readonly str name


cdef class Context(Closable):
    cdef ContextHandle _box
    cdef DeviceResources _resources
    cdef object _current
    cdef object _owner
    cdef object __weakref__

    # Neither closed nor of a driver that is gone.
    @cython.final
    cdef inline ContextBox* live(self) except NULL:
        self.demand_unclosed()
        self._box.get().demand_open()
        return self._box.get()

    cdef void let_go(self) noexcept


cdef Context wrap_context(const ContextHandle& box)
cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters)
