# The C++ core as Cython sees it: declarations alone, each error translated by raise_error.
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.errors cimport GroupRequest, raise_error


cdef extern from "cuda.h" nogil:
    ctypedef int CUdevice
    ctypedef void* CUcontext
    ctypedef void* CUgreenCtx
    ctypedef void* CUstream
    ctypedef void* CUevent
    ctypedef void* CUgraph
    ctypedef void* CUgraphExec
    ctypedef enum CUstreamCaptureMode:
        CU_STREAM_CAPTURE_MODE_GLOBAL
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        CU_STREAM_CAPTURE_MODE_RELAXED
    ctypedef struct CUuuid:
        char bytes[16]
    ctypedef enum CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    ctypedef enum CUdevWorkqueueConfigScope:
        CU_WORKQUEUE_SCOPE_DEVICE_CTX
        CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
    ctypedef struct CUdevWorkqueueConfigResource:
        CUdevice device
        unsigned int wqConcurrencyLimit
        CUdevWorkqueueConfigScope sharingScope
    ctypedef struct CUdevResource:
        CUdevWorkqueueConfigResource wqConfig
    unsigned int CU_EVENT_DEFAULT
    unsigned int CU_EVENT_BLOCKING_SYNC
    unsigned int CU_EVENT_DISABLE_TIMING
    unsigned int CU_STREAM_NON_BLOCKING


cdef extern from "driver/driver.hpp" namespace "gctx" nogil:
    enum class Feature(int):
        pass

    const size_t feature_count

    cdef cppclass FeatureState:
        const char* name_text "name.data"()
        const char* title_text "title.data"()
        int since
        cbool available

    cdef cppclass Driver:
        int version() noexcept
        const string& path() noexcept
        FeatureState feature(Feature)

    string version_text(int) except +raise_error


cdef extern from "resources/sm_resource.hpp" namespace "gctx" nogil:
    enum class Strategy(int):
        pass

    const char* strategy_name(Strategy) noexcept

    cdef cppclass Units:
        const CUdevResource* data() noexcept
        size_t size() noexcept

    cdef cppclass SmResource:
        Units units
        int device
        unsigned int sm_count
        optional[unsigned int] requested
        unsigned int min_partition_size
        unsigned int alignment
        unsigned int flags
        Strategy strategy
        cbool dry_run

    ctypedef shared_ptr[const SmResource] SmResourcePtr

    SmResourcePtr merged(const vector[SmResourcePtr]&) except +raise_error
    cbool same_sms(const SmResource&, const SmResource&) noexcept
    SmResourcePtr merged(const vector[SmResourcePtr]&) except +raise_error
    SmResourcePtr none_of(const SmResource&) except +raise_error
    optional[cbool] overlaps(const SmResource&, const SmResource&) except +raise_error


cdef extern from "resources/outcome.hpp" namespace "gctx" nogil:
    cdef cppclass SplitResult:
        vector[SmResourcePtr] groups
        SmResourcePtr remainder


cdef extern from "driver/process.hpp" namespace "gctx" nogil:
    void begin_exit() noexcept


cdef extern from *:
    """
    #include "handles/slot.hpp"
    #ifdef Py_GIL_DISABLED
    template <typename Box>
    using gctx_slot = gctx::Slot<Box>;
    #else
    template <typename Box>
    using gctx_slot = gctx::LockedSlot<Box>;
    #endif
    template <typename Box>
    using gctx_borrowed = typename gctx_slot<Box>::Borrowed;
    """
    # For what is done before the GIL is given up or other code of Python runs.
    cdef cppclass Borrowed "gctx_borrowed"[Box]:
        Box* get() noexcept

    # Where an object keeps its handle: a call that gives up the GIL works on a copy, and closing takes the handle away.
    cdef cppclass Slot "gctx_slot"[Box]:
        void put(shared_ptr[Box]) noexcept
        shared_ptr[Box] get() noexcept
        shared_ptr[Box] take() noexcept
        cbool was_filled() noexcept
        Borrowed[Box] borrow() noexcept
        shared_ptr[Box] demand(const char*) except +raise_error
        shared_ptr[Box] demand_live(const char*) except +raise_error
        shared_ptr[Box] copy(const char*) except +raise_error
        shared_ptr[Box] copy_live(const char*) except +raise_error
        void keep_copy(shared_ptr[Box]&) noexcept
        Borrowed[Box] live(const char*) except +raise_error


cdef extern from "handles/context.hpp" namespace "gctx" nogil:
    enum class ContextKind(int):
        primary
        green
        foreign

    cdef cppclass ContextBox:
        Runtime& runtime() noexcept
        int device() noexcept
        CUcontext handle() noexcept
        ContextKind kind() noexcept
        cbool is_green() noexcept
        uint64_t id() noexcept
        cbool is_closed() noexcept
        void close() except +raise_error
        void demand_not_current() except +raise_error
        cbool has_capture() except +raise_error
        cbool pin() except +raise_error
        cbool is_pinned() noexcept
        cbool is_current() except +raise_error
        SmResourcePtr sm_resource() except +raise_error
        SmResourcePtr known_sm_resource() except +raise_error
        void serve_as(const SmResource&) except +raise_error
        CUdevResource workqueue_resource() except +raise_error
        string name() except +raise_error
        void rename(string) except +raise_error

    ctypedef shared_ptr[ContextBox] ContextHandle

    ContextHandle adopt_context(Runtime&, CUcontext) except +raise_error
    ContextHandle current_context(Runtime&) except +raise_error
    void synchronize_context(const ContextHandle&) except +raise_error


cdef extern from "handles/claim.hpp" namespace "gctx" nogil:
    cdef cppclass NewContext:
        NewContext(
            Runtime&, int, vector[SmResourcePtr], optional[CUdevResource], string, cbool, cbool
        ) except +raise_error
        const string& overlap_report() noexcept
        ContextHandle create() except +raise_error


cdef extern from "handles/current.hpp" namespace "gctx" nogil:
    cdef struct CurrentToken:
        uint64_t thread
        uint64_t entry
        cbool is_new_thread

    cdef cppclass BlockOwner:
        uint64_t task
        string place

    ContextHandle set_current(Runtime&, ContextHandle) except +raise_error
    cbool set_current_at_once(ContextHandle&) except +raise_error
    CurrentToken push_current(ContextHandle&, const BlockOwner*) except +raise_error
    ContextHandle pop_current(CurrentToken) except +raise_error
    CurrentToken take_token(vector[CurrentToken]&) except +raise_error
    cbool is_new_thread() except +raise_error
    void end_this_thread() noexcept


cdef extern from "handles/event.hpp" namespace "gctx" nogil:
    cdef cppclass EventBox:
        const ContextHandle& context() noexcept
        void expose() noexcept
        CUevent handle() noexcept

    ctypedef shared_ptr[EventBox] EventHandle


cdef extern from "handles/stream.hpp" namespace "gctx" nogil:
    cdef cppclass StreamBox:
        const ContextHandle& context() noexcept
        CUstream handle() noexcept
        cbool is_owned() noexcept
        cbool is_made_here() noexcept
        cbool is_default() noexcept
        cbool pin() noexcept
        void expose() noexcept
        uint64_t id() except +raise_error

    ctypedef shared_ptr[StreamBox] StreamHandle

    StreamHandle create_stream(const ContextHandle&, optional[int], cbool) except +raise_error
    StreamHandle context_stream(const ContextHandle&, optional[int], size_t) except +raise_error
    StreamHandle adopt_stream(Runtime&, CUstream) except +raise_error
    int stream_priority(const StreamHandle&) except +raise_error
    cbool stream_is_nonblocking(const StreamHandle&) except +raise_error
    cbool stream_is_capturing(const StreamHandle&) except +raise_error
    cbool is_same_stream(StreamBox&, StreamBox&) except +raise_error
    cbool stream_is_done(const StreamHandle&) except +raise_error
    void synchronize_stream(const StreamHandle&) except +raise_error
    void record_event(const StreamHandle&, const EventHandle&) except +raise_error
    void wait_event(const StreamHandle&, const EventHandle&) except +raise_error


cdef extern from "handles/event.hpp" namespace "gctx" nogil:
    EventHandle create_event(const ContextHandle&, unsigned int) except +raise_error
    EventHandle create_event_for(const StreamHandle&, unsigned int) except +raise_error
    cbool event_is_done(const EventHandle&) except +raise_error
    void synchronize_event(const EventHandle&) except +raise_error
    float elapsed_ms(const EventHandle&, const EventHandle&) except +raise_error
    void record_context_event(const ContextHandle&, const EventHandle&) except +raise_error
    void wait_context_event(const ContextHandle&, const EventHandle&) except +raise_error


cdef extern from "handles/graph.hpp" namespace "gctx" nogil:
    cdef cppclass GraphBox:
        const ContextHandle& context() noexcept
        CUgraph handle() noexcept
        size_t node_count() except +raise_error

    cdef cppclass GraphExecBox:
        const ContextHandle& context() noexcept
        CUgraphExec handle() noexcept

    ctypedef shared_ptr[GraphBox] GraphHandle
    ctypedef shared_ptr[GraphExecBox] GraphExecHandle

    void begin_capture(const StreamHandle&, CUstreamCaptureMode) except +raise_error
    GraphHandle end_capture(const StreamHandle&) except +raise_error
    GraphExecHandle instantiate(const GraphHandle&) except +raise_error
    void upload(const GraphExecHandle&, const StreamHandle&) except +raise_error
    void launch(const GraphExecHandle&, const StreamHandle&) except +raise_error


cdef extern from "handles/capture.hpp" namespace "gctx" nogil:
    uint64_t capture_of(const Driver&, CUstream) except +raise_error
    string capturing_stream(Runtime&, int) except +raise_error


cdef extern from "handles/device.hpp" namespace "gctx" nogil:
    string device_name(Runtime&, int) except +raise_error
    string device_pci_bus_id(Runtime&, int) except +raise_error
    CUuuid device_uuid(Runtime&, int) except +raise_error
    int device_attribute(Runtime&, int, CUdevice_attribute) except +raise_error

    cdef struct DeviceMemory:
        size_t free
        size_t total
    DeviceMemory device_memory(Runtime&, int) except +raise_error


cdef extern from "handles/probe.hpp" namespace "gctx" nogil:
    cdef cppclass ProbeBlock:
        uint64_t sm
        uint64_t start_ns
        uint64_t end_ns
        uint64_t index

    cdef cppclass Probe:
        vector[vector[ProbeBlock]] run(
            const vector[StreamHandle]&, const vector[unsigned int]&, uint64_t, uint64_t, unsigned int
        ) except +raise_error
        void launch(const StreamHandle&, unsigned int, unsigned int, uint64_t) except +raise_error


cdef extern from "handles/runtime.hpp" namespace "gctx" nogil:
    struct PriorityRange:
        int least
        int greatest

    cdef cppclass SplitContexts:
        size_t count(int) except +raise_error
        void drop() except +raise_error

    struct ContextCounts:
        uint64_t made
        uint64_t destroyed

    struct PinnedCounts:
        uint64_t pinned
        uint64_t waiting

    cdef cppclass PinnedContexts:
        PinnedCounts counts(int) except +raise_error
        uint64_t total() except +raise_error

    cdef cppclass Runtime:
        SplitContexts& split_contexts() noexcept
        PinnedContexts& pinned() noexcept

        @staticmethod
        Runtime& active() except +raise_error

        @staticmethod
        cbool is_any_open() noexcept

        @staticmethod
        Runtime& open(const char*) except +raise_error

        @staticmethod
        void close(Runtime&) except +raise_error

        @staticmethod
        void set_aside_active() noexcept

        @staticmethod
        void resume() noexcept

        const Driver& driver() noexcept
        int device_count() noexcept
        void demand_usable() except +raise_error
        SmResourcePtr device_sm(int) except +raise_error
        SmResourcePtr known_device_sm(int) except +raise_error
        CUdevResource device_workqueue(int) except +raise_error
        ContextHandle primary(int) except +raise_error
        PriorityRange priorities(int) except +raise_error
        shared_ptr[Probe] probe(int) except +raise_error
        ContextCounts context_counts(int) except +raise_error
        vector[int] are_free(int, const vector[SmResourcePtr]&) except +raise_error

    SplitResult split_resource(Runtime&, const SmResourcePtr&, const vector[GroupRequest]&, cbool) except +raise_error
