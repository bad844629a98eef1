# The core's exceptions become Python's here and nowhere else.
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "resources/outcome.hpp" namespace "gctx" nogil:
    cdef cppclass GroupRequest:
        GroupRequest() except +
        optional[unsigned int] count
        unsigned int coscheduled
        unsigned int preferred
        cbool backfill
        optional[unsigned int] locality_domain
        cbool supplemental

    cdef cppclass SplitFailure:
        optional[vector[GroupRequest]] suggestion
        string advice

    const SplitFailure* caught_split() noexcept


cdef extern from "cuda.h" nogil:
    unsigned int ANY_DOMAIN "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY"


cdef extern from "driver/error.hpp" namespace "gctx" nogil:
    enum class ErrorKind(int):
        driver
        not_found
        not_supported
        bad_value
        bad_state
        closed
        current
        forked
        capturing
        split
        overlap
        out_of_memory
        unknown

    cdef cppclass Error:
        ErrorKind kind
        int code
        string message
        string code_name
        string call
        string needs
        string found

    unique_ptr[Error] caught_error()


cdef object optional_count(const optional[unsigned int]& value)
cdef int raise_error() except *
cdef int warn_of_failures() except -1
cdef void report_failures() noexcept
