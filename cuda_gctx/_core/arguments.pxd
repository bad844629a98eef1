cpdef object as_int(str name, object value, object least=*, object most=*)
cpdef object as_sm_count(str name, object value, object most=*)
cpdef object as_number(str name, object value, str allowed=*)
cpdef object as_seconds(str name, object value, object least=*, object most=*)
cpdef object as_bool(str name, object value)
cdef object as_handle(object value, str what=*)
cpdef object of_fields(type kind, object values)
cdef object as_options(type kind, object value)
cdef int make_here(type kind, str advice) except -1
cdef int make_only_here(type kind, str advice) except -1


cdef class Options:
    cdef dict values(self)
