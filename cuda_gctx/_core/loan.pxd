from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport Runtime, SmResourcePtr
from cuda_gctx._core.errors cimport raise_error


# Texts are handed over as char*: C++ makes the string in the call, which is guarded. Cython's own conversion is not.
cdef extern from "<vector>" nogil:
    cdef cppclass Names "std::vector<std::string>":
        void emplace_back(const char*) except +raise_error


cdef extern from "handles/claim.hpp" namespace "gctx":
    cdef cppclass CClaim "gctx::Claim":
        CClaim(
            Runtime&, int, const vector[SmResourcePtr]&, const Names&, cbool, cbool, uint64_t, const char*
        ) except +raise_error
        const char* overlap_report "overlap_report().c_str"() noexcept
        void release() noexcept
