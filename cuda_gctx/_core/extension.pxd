# The classes that cuda_gctx.comm uses without the calls of Python.
from libc.stdint cimport uint64_t, uintptr_t

cimport cuda_gctx._core.cpp as cpp


cdef class InContext:
    cdef object _owner  # of an adopted handle: it lives as long as this object
    cdef object __weakref__

    cdef cpp.ChildSlot* slot(self) noexcept
    cdef object find_context(self)


cdef class Stream(InContext):
    cdef cpp.Slot[cpp.StreamBox] _slot
    cdef uintptr_t _number
    cdef object _context
    cdef object _resources  # DeviceResources


cdef class Counter:
    cdef uint64_t _count

    cpdef uint64_t take(self, uint64_t launches)


cdef class LaunchSequence:
    cdef cpp.Slot[cpp.Sequence] _slot

    cpdef launch(self, Stream stream, given, uint64_t count)
