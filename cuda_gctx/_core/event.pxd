cimport cython

from cuda_gctx._core.cpp cimport ContextHandle, EventBox, EventHandle, StreamHandle
from cuda_gctx._core.driver cimport Closable


cdef class EventOptions:
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync


cdef class Event(Closable):
    cdef EventHandle _box
    cdef EventOptions _options
    cdef object __weakref__

    # Not closed; what is called in the core then asks whether the driver is still there.
    @cython.final
    cdef inline EventBox* live(self) except NULL:
        self.demand_unclosed()
        return self._box.get()

    cdef void let_go(self) noexcept

    # The same for what is answered without the core.
    @cython.final
    cdef inline EventBox* usable(self) except NULL:
        self.live().context().get().runtime().demand_usable()
        return self._box.get()


cdef Event new_event(const ContextHandle& context, EventOptions options)
cdef Event new_event_for(const StreamHandle& stream, EventOptions options)
