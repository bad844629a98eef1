from cpython.object cimport PyObject

cimport cuda_gctx._core.cpp as cpp


cdef class CurrentBlock:
    cdef void* _call  # what Python calls: it enters or leaves the block
    cdef PyObject* _of  # the context, which keeps this block, or is kept by it:
    cdef object _context
    cdef cpp.Slot[cpp.ContextBox]* _slot  # of the context
    cdef cpp.Entry _entry
    cdef list _more  # blocks for this one, which was entered again before it was left

    cdef object enter(self)
    cdef void leave_list(self) noexcept
    cdef object enter_again(self)
    cdef object leave(self)
    cdef object leave_slowly(self, const void* task)


cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject*) noexcept


cdef CurrentBlock make_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context)


cdef inline CurrentBlock new_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context):
    """A block of a context, for its slot. `kept`: one that it keeps, for when nobody has it; or null."""
    if kept[0] != NULL and Py_REFCNT(kept[0]) == 1 and (<CurrentBlock>kept[0])._entry.is_idle():
        return <CurrentBlock>kept[0]
    return make_block(kept, slot, context)


cdef void keep_no_block(PyObject** kept, object context) noexcept
cdef void* task_here() except NULL
cdef dict given_here()
cdef void release_left() noexcept
