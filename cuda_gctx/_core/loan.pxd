from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport Runtime, SmResourcePtr
from cuda_gctx._core.errors cimport raise_error


cdef extern from "handles/claim.hpp" namespace "gctx":
    cdef cppclass CClaim "gctx::Claim":
        CClaim(
            Runtime&, int, const vector[SmResourcePtr]&, const vector[string]&, cbool, cbool, uint64_t,
            const string&
        ) except +raise_error
        const string& overlap_report() noexcept
        void release() noexcept
