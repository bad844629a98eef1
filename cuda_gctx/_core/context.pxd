from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.resources cimport DeviceResources


cdef class ContextOptions(Options):
    cdef readonly tuple resources
    cdef readonly bint exclusive
    cdef readonly str name


cdef class Context:
    cdef cpp.Slot[cpp.ContextBox] _slot
    cdef uint64_t _number
    cdef DeviceResources _resources
    cdef object _owner
    cdef str _name
    cdef PyObject* _kept_block  # of current(); None: no more
    cdef object __weakref__


cdef Context unmade_context()
cdef Context made_context(Context context)
cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters)
