from cpython.object cimport PyObject

cimport cuda_gctx._core.cpp as cpp


cdef class CurrentBlock:
    cdef void* _call  # what Python calls: it enters or leaves the block
    cdef object _context
    cdef PyObject** _kept  # where the context keeps a block; null while it keeps this one
    cdef cpp.Slot[cpp.ContextBox]* _slot  # of the context
    cdef cpp.Entry _entry
    cdef object _task  # in which it was entered
    cdef list _more  # blocks for this one, which was entered again before it was left

    cdef int enter(self) except -1
    cdef int enter_again(self) except -1
    cdef int leave(self) except -1
    cdef int leave_slowly(self, const void* task) except -1


cdef CurrentBlock new_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context)
cdef void drop_kept_block(PyObject** kept) noexcept
cdef void* task_here() except NULL
cdef dict given_here()
cdef void release_left() noexcept
