cdef object as_int(str name, object value)
cdef object as_bool(str name, object value)
cdef object as_handle(object value)
cdef object as_options(type kind, object value)
cdef int make_only_here(type kind, str advice) except -1
cdef object refuse_copy(object thing, str advice)


cdef class Options:
    pass
