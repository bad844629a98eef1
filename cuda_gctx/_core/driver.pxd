from cuda_gctx._core cimport cpp


cdef cpp.Runtime* active_runtime() except NULL
