cimport cython

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

    # Neither closed nor of a driver that is gone.
    @cython.final
    cdef inline ContextBox* live(self) except NULL:
        if not self._box:
            raise RuntimeError("the context has been closed")
        self._box.get().demand_open()
        return self._box.get()

    # The same as a handle of its own, for calls without the GIL: another thread may close the context meanwhile.
    @cython.final
    cdef inline ContextHandle held(self) except *:
        self.live()
        return self._box


cdef Context wrap_context(const ContextHandle& box)
cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters)
