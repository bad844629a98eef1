from cuda_gctx._core.cpp cimport Runtime


cdef Runtime* active_runtime() except NULL
