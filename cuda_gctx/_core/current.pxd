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

    cdef object enter(self)
    cdef object enter_again(self)
    cdef object leave(self)
    cdef object leave_slowly(self, const void* task)


cdef extern from *:
    object as_new "(PyObject*)"(PyObject*)  # a reference that the caller has


cdef CurrentBlock make_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context)


cdef inline object new_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context):
    """A block of a context, which it keeps for its slot. `kept`: where one that is not in use may be."""
    cdef PyObject* block = kept[0]
    if block == NULL:
        return make_block(kept, slot, context)
    kept[0] = NULL
    (<CurrentBlock>block)._kept = kept
    (<CurrentBlock>block)._context = context
    return as_new(block)


cdef void drop_kept_block(PyObject** kept) noexcept
cdef void* task_here() except NULL
cdef dict given_here()
cdef void release_left() noexcept
