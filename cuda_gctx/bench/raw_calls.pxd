from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport Runtime, Slot
from cuda_gctx._core.errors cimport raise_error


cdef extern from "bench/raw_calls_in_c.hpp" namespace "gctx":
    cdef cppclass CRawCalls "gctx::RawCalls":
        pass

    vector[string] raw_call_names "gctx::RawCalls::names"() except +raise_error


cdef extern from "_core/call.hpp" namespace "gctx":
    int make_raw_calls "gctx::make<&gctx::make_raw_calls>"(Slot[CRawCalls]&, Runtime&, int) except -1
    double time_raw_calls "gctx::call<&gctx::RawCalls::time>"(Slot[CRawCalls]&, const char*, unsigned int) except? 0
    int settle_raw_calls "gctx::call<&gctx::RawCalls::settle>"(Slot[CRawCalls]&) except -1
