from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport Runtime, SmResourcePtr, StreamHandle
from cuda_gctx._core.errors cimport raise_error


cdef extern from "handles/lease.hpp" namespace "gctx" nogil:
    cdef cppclass CClaim "gctx::Claim":
        CClaim(
            Runtime&, int, const vector[SmResourcePtr]&, const vector[string]&, cbool, uint64_t
        ) except +raise_error
        const string& overlap_report() noexcept

    string c_capturing_stream "gctx::capturing_stream"(Runtime&, int) except +raise_error

    cdef cppclass CDeviceMemory "gctx::DeviceMemory":
        size_t free
        size_t total

    cdef cppclass CContextCounts "gctx::ContextCounts":
        uint64_t made
        uint64_t destroyed

    CDeviceMemory c_device_memory "gctx::device_memory"(Runtime&, int) except +raise_error
    CContextCounts c_context_counts "gctx::context_counts"(Runtime&, int) except +raise_error


cdef extern from "handles/lease.hpp" namespace "gctx" nogil:
    cdef cppclass LentContextBox "gctx::ContextBox":
        void demand_not_current() except +raise_error
        cbool keeps_capture() except +raise_error
