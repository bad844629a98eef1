cimport cython

from cuda_gctx._core.cpp cimport ContextHandle, StreamBox, StreamHandle
from cuda_gctx._core.driver cimport Closable
from cuda_gctx._core.resources cimport DeviceResources


cdef class StreamOptions:
    cdef readonly bint nonblocking
    cdef readonly object priority


cdef class Stream(Closable):
    cdef StreamHandle _box
    cdef object _context
    cdef DeviceResources _resources
    cdef object _owner
    cdef object __weakref__

    # Not closed; what is called in the core then asks whether the driver is still there.
    @cython.final
    cdef inline StreamBox* live(self) except NULL:
        self.demand_unclosed()
        return self._box.get()

    cdef void let_go(self) noexcept

    # The same for what is answered without the core.
    @cython.final
    cdef inline StreamBox* usable(self) except NULL:
        self.live().context().get().runtime().demand_usable()
        return self._box.get()


cdef Stream new_stream(const ContextHandle& context, object context_object, StreamOptions options)
