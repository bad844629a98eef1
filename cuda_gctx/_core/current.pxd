from cpython.object cimport PyObject

cimport cuda_gctx._core.cpp as cpp


cdef class CurrentBlock:
    cdef void* _call  # what Python calls: it enters or leaves the block
    cdef PyObject* _of  # the context, which keeps this block, or is kept by it:
    cdef object _context
    cdef bint _is_live  # nothing has to be asked of the context: it is green, and keeps this block until it is closed
    cdef cpp.Slot[cpp.ContextBox]* _slot  # of the context
    cdef cpp.Entry _entry
    cdef list _more  # blocks for this one, which was entered again before it was left

    cdef void leave_list(self) noexcept
    cdef object enter_again(self)
    cdef object leave_slowly(self, const void* task)


cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject*) noexcept


cdef inline bint is_free(PyObject* kept) noexcept:
    """Whether a block that a context keeps, if it has one, is there and nobody else has it."""
    return kept != NULL and Py_REFCNT(kept) == 1 and (<CurrentBlock>kept)._entry.is_idle()


cdef CurrentBlock new_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context)
cdef void keep_no_block(PyObject** kept, object context) noexcept
cdef void* task_here() except NULL
cdef dict given_here()
cdef void release_left() noexcept
