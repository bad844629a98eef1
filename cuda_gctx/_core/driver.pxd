cimport cuda_gctx._core.cpp as cpp


cdef cpp.Runtime* active_runtime() except NULL
