cdef object as_int(str name, object value)
cdef object as_bool(str name, object value)
cdef object as_handle(object value)
