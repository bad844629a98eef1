# The C++ core as Cython sees it, declarations alone. Nothing that throws can be called without the GIL: what takes
# place without it goes through call.hpp, and the rest is quick.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "_core/call.hpp" namespace "gctx":
    int raise_error "gctx::calls::raise_in_flight"() except *


cdef extern from "cuda.h" nogil:
    ctypedef int CUdevice
    ctypedef void* CUcontext
    ctypedef void* CUstream
    ctypedef void* CUevent
    ctypedef void* CUgraph
    ctypedef void* CUgraphExec
    ctypedef void* CUfunction
    ctypedef void* CUdevResourceDesc
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
        CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT
    ctypedef enum CUdevWorkqueueConfigScope:
        CU_WORKQUEUE_SCOPE_DEVICE_CTX
        CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
    ctypedef struct CUdevWorkqueueConfigResource:
        CUdevice device
        unsigned int wqConcurrencyLimit
        CUdevWorkqueueConfigScope sharingScope
    ctypedef struct CUdevSmResource:
        unsigned int localityDomainId
    ctypedef struct CUdevResource:
        CUdevSmResource sm
        CUdevWorkqueueConfigResource wqConfig
    unsigned int CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID
    unsigned int CU_EVENT_DEFAULT
    unsigned int CU_EVENT_BLOCKING_SYNC
    unsigned int CU_EVENT_DISABLE_TIMING


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


# Texts are handed over as char*: C++ makes the string in the call, which is guarded. Cython's own conversions, those of
# lists to vectors too, copy where nothing catches an error; tests/house/test_package.py looks for them.
cdef extern from "<vector>" nogil:
    cdef cppclass Names "std::vector<std::string>":
        void emplace_back(const char*) except +raise_error


cdef extern from "_core/call.hpp" namespace "gctx":
    enum class Feature(int):
        locality_domains
        supplemental_sms

    const size_t feature_count

    cdef cppclass FeatureState:
        const char* name_text "name.data"()
        const char* title_text "title.data"()
        int since
        cbool available

    cdef cppclass Driver:
        int version() noexcept
        const char* path "path().c_str"() noexcept
        cbool is_simulated() noexcept
        FeatureState feature(Feature)
        cbool has(Feature) except +raise_error

    string version_text(int) except +raise_error

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
        unsigned int promised() noexcept
        unsigned int flags
        Strategy strategy
        cbool dry_run

    ctypedef shared_ptr[const SmResource] SmResourcePtr

    SmResourcePtr merged(const vector[SmResourcePtr]&) except +raise_error
    SmResourcePtr none_of(const SmResource&) except +raise_error
    cbool same_sms(const SmResource&, const SmResource&) noexcept
    optional[cbool] overlaps(const SmResource&, const SmResource&) except +raise_error
    void demand_sms(const SmResource&) except +raise_error

    cdef cppclass SplitResult:
        size_t groups()
        SmResourcePtr group(size_t)
        SmResourcePtr last()

    void begin_exit() noexcept

    enum class ContextKind(int):
        primary
        green
        foreign

    cdef cppclass DriverContext:
        void expose() noexcept
        cbool is_exposed() noexcept

    cdef cppclass ContextBox:
        Runtime& runtime() noexcept
        int device() noexcept
        CUcontext handle() noexcept
        ContextKind kind() noexcept
        cbool is_green() noexcept
        cbool is_partition() noexcept
        uint64_t id() noexcept
        cbool is_closed() noexcept
        cbool is_current() except +raise_error
        const char* name_text "name().c_str"() noexcept
        DriverContext& in_driver() noexcept
        shared_ptr[Lease] lease_handle() noexcept

    ctypedef shared_ptr[ContextBox] ContextHandle

    struct PriorityRange:
        int least
        int greatest

    cdef cppclass StreamKind:
        cbool nonblocking
        int priority

    cdef cppclass StreamBox:
        const StreamKind* made_as() noexcept
        const ContextHandle& context() noexcept
        CUstream handle() noexcept
        cbool is_owned() noexcept
        cbool is_over() noexcept
        cbool is_made_here() noexcept
        cbool may_capture() noexcept
        void show() noexcept
        void note_closed() noexcept

    ctypedef shared_ptr[StreamBox] StreamHandle

    cdef cppclass EventBox:
        const ContextHandle& context() noexcept
        void expose() noexcept
        CUevent handle() noexcept

    cdef cppclass GraphBox:
        const ContextHandle& context() noexcept
        CUgraph handle() noexcept

    cdef cppclass GraphExecBox:
        const ContextHandle& context() noexcept
        vector[ContextHandle] contexts() except +raise_error
        CUgraphExec handle() noexcept

    cdef cppclass KernelSms:
        string name
        uint64_t context
        vector[unsigned int] sm_ids

    cdef cppclass Runtime:
        @staticmethod
        Runtime& active() except +raise_error

        @staticmethod
        cbool is_any_open() noexcept

        const Driver& driver() noexcept
        int device_count() noexcept
        void demand_usable() except +raise_error
        SmResourcePtr known_device_sm(int) noexcept

    struct ContextCounts:
        uint64_t contexts
        uint64_t open
        uint64_t lingering
        uint64_t idle
        uint64_t exposed

    struct ReleasedContexts:
        uint64_t destroyed
        uint64_t exposed
        uint64_t at_work
        uint64_t in_use

    cdef cppclass SmClaims:
        vector[int] are_free(int, const vector[SmResourcePtr]&) except +raise_error

    SmClaims& sm_claims(Runtime&) except +raise_error

    cdef cppclass ContextPool:
        vector[SmResourcePtr] idle_sms(int) except +raise_error
        ContextCounts counts(int) except +raise_error

    ContextPool& context_pool(Runtime&) except +raise_error
    ReleasedContexts release_contexts "gctx::call<&gctx::release_contexts>"(Runtime&, cbool) except *

    cdef cppclass LeaseGroup:
        cbool is_open() noexcept
        cbool close() noexcept

    cdef cppclass Lease:
        void abandon() noexcept

    void demand_not_forked() except +raise_error
    shared_ptr[LeaseGroup] make_group "std::make_shared<gctx::LeaseGroup>"() except +raise_error

    SmResourcePtr known_sm_resource(ContextBox&) except +raise_error

    cdef cppclass NewContext:
        NewContext() except +raise_error
        vector[SmResourcePtr] groups
        optional[CUdevResource] workqueue

    void name_context "gctx::name_context"(NewContext&, const char*) except +raise_error

    cdef cppclass OpeningTerms "gctx::Opening::Terms":
        OpeningTerms() noexcept
        cbool exclusive
        cbool only_free
        cbool are_partitions
        shared_ptr[Lease] inside
        shared_ptr[LeaseGroup] group

    void advise "gctx::advise"(OpeningTerms&, const char*) except +raise_error

    cdef cppclass Opening:
        Opening(Runtime&, int, const vector[NewContext]&, const OpeningTerms&) except +raise_error
        const char* overlap_report "overlap_report().c_str"() noexcept

    cdef cppclass OpenedContexts:
        shared_ptr[Lease] lease
        vector[ContextHandle] contexts

    cdef cppclass Block:
        pass

    ctypedef shared_ptr[Block] BlockHandle

    cdef cppclass ThreadBlocks:
        BlockHandle enter(ContextHandle, const void*) except +raise_error
        void leave(const BlockHandle&, const void*) except +raise_error
        void end() noexcept

    ThreadBlocks* this_thread "&gctx::ThreadBlocks::here"() except +raise_error

    cdef cppclass ProbeBlock:
        uint64_t sm
        uint64_t start_ns
        uint64_t end_ns
        uint64_t index

    cdef cppclass Stamps:
        pass

    const unsigned int probe_threads

    cdef cppclass LaunchShape:
        LaunchShape(CUfunction, unsigned int, unsigned int) noexcept

    cdef cppclass NewUse "gctx::Switching::NewUse":
        NewUse() except +raise_error
        ContextHandle context
        StreamHandle stream
        SmResourcePtr sms

    void name_use "gctx::name_use"(NewUse&, const char*) except +raise_error

    cdef cppclass Switching:
        unsigned int current() noexcept

    cdef cppclass Sequence:
        pass

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

    cdef cppclass ChildSlot:
        cbool is_empty() noexcept
        ContextHandle context() except *
        cbool drop() noexcept

    # Where an object keeps its handle: a call works on a copy of it, and closing takes it away.
    cdef cppclass Slot "gctx::ObjectSlot"[Box](ChildSlot):
        cbool put(shared_ptr[Box]&) noexcept
        void share(const Slot[Box]&) noexcept
        shared_ptr[Box] get() noexcept
        cbool was_filled() noexcept

    shared_ptr[Box] live[Box](Slot[Box]&) except *
    shared_ptr[Box] present[Box](Slot[Box]&) except *
    # What follows works without the GIL. The driver in use:
    Runtime* open_active "gctx::call<&gctx::Runtime::active>"() except NULL
    Runtime* open_runtime "gctx::call<&gctx::Runtime::open>"(const char*) except NULL
    int register_software_driver "gctx::call<&gctx::register_software_driver>"(const char*) except -1
    int close_driver "gctx::call<&gctx::close_driver>"(Runtime&) except -1
    int set_aside_active "gctx::call<&gctx::Runtime::set_aside_active>"() except -1
    int resume "gctx::call<&gctx::Runtime::resume>"() except -1

    SmResourcePtr device_sm "gctx::call<&gctx::Runtime::device_sm>"(Runtime*, int) except *
    CUdevResource device_workqueue "gctx::call<&gctx::Runtime::device_workqueue>"(Runtime*, int) except *
    SplitResult split_resource "gctx::call<&gctx::split_resource>"(
        Runtime&, const SmResourcePtr&, const vector[GroupRequest]&, cbool
    ) except *
    CUdevResourceDesc descriptor_of "gctx::call<&gctx::descriptor_of>"(const Driver&, const SmResource&) except? NULL

    # Devices:
    int primary_context "gctx::make<&gctx::primary_context>"(Slot[ContextBox]&, Runtime&, int) except -1
    PriorityRange priorities "gctx::call<&gctx::priorities>"(Runtime&, int) except *
    string device_name "gctx::call<&gctx::device_name>"(Runtime&, int) except *
    string device_pci_bus_id "gctx::call<&gctx::device_pci_bus_id>"(Runtime&, int) except *
    CUuuid device_uuid "gctx::call<&gctx::device_uuid>"(Runtime&, int) except *
    int device_attribute "gctx::call<&gctx::device_attribute>"(Runtime&, int, CUdevice_attribute) except? 0
    pair[size_t, size_t] device_memory "gctx::call<&gctx::device_memory>"(Runtime&, int) except *
    string capturing_stream "gctx::call<&gctx::capturing_stream>"(Runtime&, int) except *

    # Contexts:
    int granted_context "gctx::make<&gctx::granted_context>"(Slot[ContextBox]&, Runtime&, int) except -1
    int adopt_context "gctx::make<&gctx::adopt_context>"(Slot[ContextBox]&, Runtime&, CUcontext) except -1
    int current_device "gctx::call<&gctx::current_device>"(Runtime&) except? 0
    int forget_current_of "gctx::call<&gctx::ThreadBlocks::forget>"(ThreadBlocks*, const Runtime&) except -1
    int demand_there "gctx::call<&gctx::ContextBox::demand_there>"(Slot[ContextBox]&) except -1
    int set_current "gctx::make<&gctx::ThreadBlocks::set>"(
        Slot[ContextBox]&, ThreadBlocks*, Slot[ContextBox]&
    ) except -1
    int share_queues "gctx::call<&gctx::Opening::share_queues>"(Opening&, Slot[ContextBox]&) except -1
    OpenedContexts lease_contexts "gctx::call<&gctx::Opening::lease>"(Opening&) except *
    int close_together "gctx::call<&gctx::close_together>"(vector[ContextHandle]&) except -1
    int context_is_idle "gctx::call<&gctx::context_is_idle>"(Slot[ContextBox]&) except -1
    vector[unsigned int] seen_sm_ids "gctx::call<&gctx::seen_sm_ids>"(Slot[ContextBox]&) except *
    int note_sm_ids "gctx::call<&gctx::note_sm_ids>"(Slot[ContextBox]&, const vector[unsigned int]&) except -1
    int synchronize_context "gctx::call<&gctx::synchronize_context>"(Slot[ContextBox]&) except -1
    int any_has_capture "gctx::call<&gctx::any_has_capture>"(vector[ContextHandle]&) except -1
    SmResourcePtr context_sm "gctx::call<&gctx::sm_resource>"(Slot[ContextBox]&) except *
    CUdevResource context_workqueue "gctx::call<&gctx::workqueue_config>"(Slot[ContextBox]&) except *
    CUdevResource existing_workqueue "gctx::call<&gctx::existing_workqueue>"(Slot[ContextBox]&) except *

    # Streams and events:
    int create_stream "gctx::make<&gctx::create_stream>"(
        Slot[StreamBox]&, Slot[ContextBox]&, optional[int], cbool
    ) except -1
    int context_stream "gctx::make<&gctx::context_stream>"(
        Slot[StreamBox]&, Slot[ContextBox]&, optional[int], size_t
    ) except -1
    int adopt_stream "gctx::make<&gctx::adopt_stream>"(Slot[StreamBox]&, Runtime&, CUstream) except -1
    int stream_priority "gctx::call<&gctx::stream_priority>"(Slot[StreamBox]&) except? 0
    int stream_is_nonblocking "gctx::call<&gctx::stream_is_nonblocking>"(Slot[StreamBox]&) except -1
    int stream_is_capturing "gctx::call<&gctx::stream_is_capturing>"(Slot[StreamBox]&) except -1
    int is_same_stream "gctx::call<&gctx::is_same_stream>"(Slot[StreamBox]&, Slot[StreamBox]&) except -1
    int stream_is_done "gctx::call<&gctx::stream_is_done>"(Slot[StreamBox]&) except -1
    int synchronize_stream "gctx::call<&gctx::synchronize_stream>"(Slot[StreamBox]&) except -1
    int record_event "gctx::call<&gctx::record_event>"(Slot[StreamBox]&, Slot[EventBox]&) except -1
    int wait_event "gctx::call<&gctx::wait_event>"(Slot[StreamBox]&, Slot[EventBox]&) except -1
    int wait_stream "gctx::call<&gctx::wait_stream>"(Slot[StreamBox]&, Slot[StreamBox]&) except -1
    int demand_closable "gctx::call<&gctx::demand_closable>"(Slot[StreamBox]&) except -1
    int show_stream "gctx::call<&gctx::show_to_device>"(Slot[StreamBox]&) except -1

    int create_event "gctx::make<&gctx::create_event>"(Slot[EventBox]&, Slot[ContextBox]&, unsigned int) except -1
    int create_event_for "gctx::make<&gctx::create_stream_event>"(
        Slot[EventBox]&, Slot[StreamBox]&, unsigned int
    ) except -1
    int event_is_done "gctx::call<&gctx::event_is_done>"(Slot[EventBox]&) except -1
    int synchronize_event "gctx::call<&gctx::synchronize_event>"(Slot[EventBox]&) except -1
    float elapsed_ms "gctx::call<&gctx::elapsed_ms>"(Slot[EventBox]&, Slot[EventBox]&) except? 0
    int record_context_event "gctx::call<&gctx::record_context_event>"(Slot[ContextBox]&, Slot[EventBox]&) except -1
    int wait_context_event "gctx::call<&gctx::wait_context_event>"(Slot[ContextBox]&, Slot[EventBox]&) except -1
    int wait_context "gctx::call<&gctx::wait_context>"(Slot[ContextBox]&, Slot[ContextBox]&) except -1

    # Graphs:
    uint64_t begin_capture "gctx::call<&gctx::begin_capture>"(Slot[StreamBox]&, CUstreamCaptureMode) except? 0
    int end_capture "gctx::make<&gctx::end_capture>"(Slot[GraphBox]&, Slot[StreamBox]&) except -1
    int abandon_capture "gctx::call<&gctx::abandon_capture>"(Slot[StreamBox]&, uint64_t) except -1
    size_t node_count "gctx::call<&gctx::GraphBox::node_count>"(Slot[GraphBox]&) except? 0
    int adopt_graph "gctx::make<&gctx::adopt_graph>"(Slot[GraphBox]&, Runtime&, CUgraph) except -1
    int instantiate "gctx::make<&gctx::instantiate>"(Slot[GraphExecBox]&, Slot[GraphBox]&, cbool) except -1
    int move_graph "gctx::make<&gctx::move_graph>"(
        Slot[GraphExecBox]&, Slot[GraphBox]&, Slot[ContextBox]&, cbool
    ) except -1
    vector[KernelSms] probe_graph "gctx::call<&gctx::probe_graph>"(
        Slot[GraphExecBox]&, Slot[StreamBox]&, uint64_t, uint64_t
    ) except *
    int upload "gctx::call<&gctx::upload>"(Slot[GraphExecBox]&, Slot[StreamBox]&) except -1
    int launch "gctx::call<&gctx::launch>"(Slot[GraphExecBox]&, Slot[StreamBox]&) except -1

    # Where kernels run, and how much of one fits:
    vector[vector[ProbeBlock]] run_probe "gctx::call<&gctx::run_probe>"(
        vector[StreamHandle]&, const vector[unsigned int]&, uint64_t, uint64_t, unsigned int
    ) except *
    int spin "gctx::call<&gctx::spin>"(Slot[StreamBox]&, unsigned int, uint64_t) except -1

    int make_stamps "gctx::make<&gctx::make_stamps>"(Slot[Stamps]&, Slot[StreamBox]&, size_t) except -1
    int write_stamp "gctx::call<&gctx::Stamps::write>"(Slot[Stamps]&, Slot[StreamBox]&, size_t) except -1
    vector[ProbeBlock] read_stamps "gctx::call<&gctx::Stamps::read>"(Slot[Stamps]&) except *

    unsigned int blocks_per_sm "gctx::call<&gctx::blocks_per_sm>"(Slot[ContextBox]&, const LaunchShape&) except? 0
    unsigned int max_cluster_size "gctx::call<&gctx::max_cluster_size>"(Slot[StreamBox]&, const LaunchShape&) except? 0
    unsigned int max_active_clusters "gctx::call<&gctx::max_active_clusters>"(
        Slot[StreamBox]&, const LaunchShape&, unsigned int
    ) except? 0

    # The order between arrangements:
    unsigned int add_arrangement "gctx::call<&gctx::Switching::add_arrangement>"(Switching&, vector[NewUse]&) except? 0
    int remove_arrangement "gctx::call<&gctx::Switching::remove_arrangement>"(Switching&, unsigned int) except -1
    int clear_arrangements "gctx::call<&gctx::Switching::clear>"(Switching&) except -1
    int switch_to "gctx::call<&gctx::Switching::switch_to>"(Switching&, unsigned int) except -1
    uint64_t last_switch "gctx::call<&gctx::Switching::last_switch>"(Switching&, unsigned int) except? 0

    # Sequences of launches:
    int make_sequence "gctx::make<&gctx::make_sequence>"(Slot[Sequence]&) except -1
    int add_stream "gctx::call<&gctx::Sequence::add_stream>"(Slot[Sequence]&, Slot[StreamBox]&) except -1
    int add_kernel "gctx::call<&gctx::Sequence::add_kernel>"(
        Slot[Sequence]&, const KernelShape&, const vector[uint8_t]&, const vector[Patch]&
    ) except -1
    int add_copy "gctx::call<&gctx::Sequence::add_copy>"(
        Slot[Sequence]&, unsigned int, const Place&, const Place&, uint64_t
    ) except -1
    int add_wait "gctx::call<&gctx::Sequence::add_wait>"(Slot[Sequence]&, unsigned int, unsigned int) except -1
    int launch_sequence "gctx::call<&gctx::Sequence::launch>"(
        Slot[Sequence]&, Slot[StreamBox]&, const vector[uint64_t]&, uint64_t
    ) except -1
