cimport cython

from cuda_gctx._core cimport ContextHandle, EventBox, EventHandle, StreamHandle


cdef class EventOptions:
    cdef readonly bint timing_enabled
    cdef readonly bint blocking_sync


cdef class Event:
    cdef EventHandle _box
    cdef EventOptions _options
    cdef object __weakref__

    # Not closed; what is called in the core then asks whether the driver is still there.
    @cython.final
    cdef inline EventBox* live(self) except NULL:
        if not self._box:
            raise RuntimeError("the event has been closed")
        return self._box.get()

    # The same as a handle of its own, for calls without the GIL: another thread may close the event meanwhile.
    @cython.final
    cdef inline EventHandle held(self) except *:
        self.live()
        return self._box

    # The same for what is answered without the core.
    @cython.final
    cdef inline EventBox* usable(self) except NULL:
        self.live().context().get().runtime().demand_usable()
        return self._box.get()


cdef Event new_event(const ContextHandle& context, EventOptions options)
cdef Event new_event_for(const StreamHandle& stream, EventOptions options)
