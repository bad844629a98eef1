from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport NewUse, Runtime, Slot, StreamHandle
from cuda_gctx._core.errors cimport raise_error


cdef extern from "bench/raw_calls_in_c.hpp" namespace "gctx":
    cdef cppclass CRawCalls "gctx::RawCalls":
        pass

    cdef cppclass CRawSwitch "gctx::RawSwitch":
        pass

    vector[string] raw_call_names "gctx::RawCalls::names"() except +raise_error


cdef extern from "_core/call.hpp" namespace "gctx":
    int make_raw_calls "gctx::make<&gctx::make_raw_calls>"(Slot[CRawCalls]&, Runtime&, int) except -1
    double time_raw_calls "gctx::call<&gctx::RawCalls::time>"(Slot[CRawCalls]&, const char*, unsigned int) except? 0
    int make_raw_switch "gctx::make<&gctx::make_raw_switch>"(
        Slot[CRawSwitch]&, vector[StreamHandle]&, vector[NewUse]&, vector[NewUse]&
    ) except -1
    double time_raw_switch "gctx::call<&gctx::RawSwitch::time>"(Slot[CRawSwitch]&) except? 0
    int settle_raw_calls "gctx::call<&gctx::RawCalls::settle>"(Slot[CRawCalls]&) except -1
