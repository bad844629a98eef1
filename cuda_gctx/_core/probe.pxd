from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport ContextBox, Runtime, Slot, StreamBox, StreamHandle


cdef extern from "cuda.h":
    ctypedef void* CUfunction


cdef extern from "handles/probe.hpp" namespace "gctx":
    cdef cppclass ProbeBlock:
        uint64_t sm
        uint64_t start_ns
        uint64_t end_ns
        uint64_t index

    cdef cppclass CStamps "gctx::Stamps":
        pass

    const unsigned int probe_threads

    cdef cppclass LaunchShape:
        CUfunction function
        unsigned int threads
        unsigned int shared_bytes


cdef extern from "_core/call.hpp" namespace "gctx":
    vector[vector[ProbeBlock]] c_run_probe "gctx::call<&gctx::run_probe>"(
        vector[StreamHandle]&, const vector[unsigned int]&, uint64_t, uint64_t, unsigned int
    ) except *
    int c_spin "gctx::call<&gctx::spin>"(Slot[StreamBox]&, unsigned int, uint64_t) except -1

    int make_stamps "gctx::make<&gctx::make_stamps>"(Slot[CStamps]&, Slot[StreamBox]&, size_t) except -1
    int write_stamp "gctx::call<&gctx::Stamps::write>"(Slot[CStamps]&, Slot[StreamBox]&, size_t) except -1
    vector[ProbeBlock] read_stamps "gctx::call<&gctx::Stamps::read>"(Slot[CStamps]&) except *

    unsigned int c_blocks_per_sm "gctx::call<&gctx::blocks_per_sm>"(Slot[ContextBox]&, const LaunchShape&) except? 0
    unsigned int c_max_cluster_size "gctx::call<&gctx::max_cluster_size>"(
        Slot[StreamBox]&, const LaunchShape&
    ) except? 0
    unsigned int c_max_active_clusters "gctx::call<&gctx::max_active_clusters>"(
        Slot[StreamBox]&, const LaunchShape&, unsigned int
    ) except? 0
