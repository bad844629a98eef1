from cuda_gctx._core cimport Runtime


cdef Runtime* active_runtime() except NULL
