from libc.stdint cimport uint64_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from cuda_gctx._core.cpp cimport ContextHandle, Probe, ProbeBlock, StreamHandle
from cuda_gctx._core.errors cimport raise_error


cdef extern from "cuda.h" nogil:
    ctypedef void* CUfunction


cdef extern from "handles/probe.hpp" namespace "gctx" nogil:
    shared_ptr[Probe] probe_of(const StreamHandle&) except +raise_error

    cdef cppclass CStamps "gctx::Stamps":
        CStamps(StreamHandle, shared_ptr[Probe], size_t) except +raise_error
        void write(const StreamHandle&, size_t) except +raise_error
        vector[ProbeBlock] read() except +raise_error

    const unsigned int probe_threads

    cdef cppclass LaunchShape:
        CUfunction function
        unsigned int threads
        unsigned int shared_bytes

    unsigned int c_blocks_per_sm "gctx::blocks_per_sm"(const ContextHandle&, const LaunchShape&) except +raise_error
    unsigned int c_max_cluster_size "gctx::max_cluster_size"(
        const StreamHandle&, const LaunchShape&
    ) except +raise_error
    unsigned int c_max_active_clusters "gctx::max_active_clusters"(
        const StreamHandle&, const LaunchShape&, unsigned int
    ) except +raise_error
