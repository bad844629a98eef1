from cpython.object cimport PyObject
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport ContextBox, ContextHandle, CurrentToken, Slot


cdef extern from *:
    PyObject* PyThreadState_GetDict()


cdef int watch_thread() except -1


cdef class CurrentBlock:
    cdef void* _call  # what Python calls: it enters or leaves the block
    cdef object _context
    cdef Slot[ContextBox]* _slot  # of the context
    cdef CurrentToken _token
    cdef bint _is_entered
    cdef vector[CurrentToken] _more  # of a block that was entered again before it was left
    cdef dict _waits

    cdef int do_enter(self) except -1
    cdef int do_exit(self, bint is_well) except -1
    cdef int pop(self, CurrentToken token) except -1
    cdef int enter(self, ContextHandle& box, found) except -1
    cdef int watch(self) except -1
    cdef int leave(self, bint is_well) except -1


cdef CurrentBlock new_block(Slot[ContextBox]* slot, object context)
