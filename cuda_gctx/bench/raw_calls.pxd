from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport Runtime
from cuda_gctx._core.errors cimport raise_error


cdef extern from "bench/raw_calls_in_c.hpp" namespace "gctx" nogil:
    cdef cppclass CRawCalls "gctx::RawCalls":
        CRawCalls(Runtime&, int) except +raise_error
        double time(const string&, unsigned int) except +raise_error
        void settle() except +raise_error

    vector[string] raw_call_names "gctx::RawCalls::names"() except +raise_error
