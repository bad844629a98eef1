# The core's exceptions become Python's here and nowhere else.
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "resources/split.hpp" namespace "gctx" nogil:
    cdef cppclass GroupRequest:
        GroupRequest() except +
        optional[unsigned int] count
        unsigned int coscheduled
        unsigned int preferred
        cbool backfill
        optional[unsigned int] locality_domain


cdef extern from "driver/error.hpp" namespace "gctx" nogil:
    enum class ErrorKind(int):
        driver
        not_found
        not_supported
        bad_value
        bad_state
        split
        overlap


cdef extern from "resources/caught.hpp" namespace "gctx" nogil:
    enum class CaughtKind(int):
        core
        out_of_memory
        other

    cdef cppclass CaughtError:
        CaughtKind caught
        ErrorKind kind
        int code
        string message
        string code_name
        string call
        string needs
        string found
        cbool has_suggestion
        vector[GroupRequest] suggestion

    CaughtError caught_error()


cdef int raise_error() except *
cdef int warn_of_failures() except -1
cdef void report_failures() noexcept
