from libc.stdint cimport uintptr_t
from libcpp.optional cimport optional

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.event cimport InContext
from cuda_gctx._core.resources cimport DeviceResources


cdef class StreamOptions(Options):
    cdef readonly bint nonblocking
    cdef readonly object priority
    cdef optional[int] _level  # the same for the core


cdef class Stream(InContext):
    cdef cpp.Slot[cpp.StreamBox] _slot
    cdef uintptr_t _number
    cdef object _context
    cdef DeviceResources _resources


cdef Stream new_stream(cpp.Slot[cpp.ContextBox]& context, StreamOptions options)
cdef Stream made_stream(Stream stream)
cdef int note_pinned(cpp.ContextBox* context) except -1
