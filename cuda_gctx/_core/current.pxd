from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport ContextHandle, CurrentToken


cdef int watch_thread() except -1


cdef class CurrentBlock:
    cdef ContextHandle _box
    cdef object _context
    cdef CurrentToken _token
    cdef bint _is_entered
    cdef vector[CurrentToken] _more  # of a block that was entered again before it was left
    cdef dict _waits

    cdef int do_enter(self) except -1
    cdef int do_exit(self, bint is_well) except -1
    cdef int enter(self, found) except -1
    cdef int watch(self) except -1
    cdef int leave(self, bint is_well) except -1


cdef CurrentBlock new_block(ContextHandle& box, object context)
