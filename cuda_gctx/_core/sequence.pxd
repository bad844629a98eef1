from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.stream cimport Stream


cdef extern from "cuda.h":
    ctypedef void* CUfunction


cdef extern from "handles/sequence.hpp" namespace "gctx":
    cdef cppclass Place:
        uint32_t given
        uint64_t offset

    cdef cppclass Patch:
        uint32_t at
        Place place

    cdef cppclass KernelShape:
        CUfunction function
        unsigned int blocks
        unsigned int threads
        unsigned int shared_bytes
        cbool is_programmatic
        uint32_t number_at

    cdef cppclass CSequence "gctx::Sequence":
        pass


cdef extern from "_core/call.hpp" namespace "gctx":
    int make_sequence "gctx::make<&gctx::make_sequence>"(cpp.Slot[CSequence]&) except -1
    int add_stream "gctx::call<&gctx::Sequence::add_stream>"(cpp.Slot[CSequence]&, cpp.Slot[cpp.StreamBox]&) except -1
    int add_kernel "gctx::call<&gctx::Sequence::add_kernel>"(
        cpp.Slot[CSequence]&, const KernelShape&, const vector[uint8_t]&, const vector[Patch]&
    ) except -1
    int add_copy "gctx::call<&gctx::Sequence::add_copy>"(
        cpp.Slot[CSequence]&, unsigned int, const Place&, const Place&, uint64_t
    ) except -1
    int add_wait "gctx::call<&gctx::Sequence::add_wait>"(cpp.Slot[CSequence]&, unsigned int, unsigned int) except -1
    int launch_sequence "gctx::call<&gctx::Sequence::launch>"(
        cpp.Slot[CSequence]&, cpp.Slot[cpp.StreamBox]&, const vector[uint64_t]&, uint64_t
    ) except -1


cdef class Counter:
    cdef uint64_t _count

    cpdef uint64_t take(self, uint64_t launches)


cdef class Sequence:
    cdef cpp.Slot[CSequence] _slot

    cpdef launch(self, Stream stream, given, uint64_t count)
