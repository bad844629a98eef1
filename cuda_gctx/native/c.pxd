# The C interface, for Cython modules of other packages: "from cuda_gctx.native.c cimport gctx_partition". They are
# compiled with cuda_gctx.get_include() and linked with libcuda_gctx.so next to that folder.
cdef extern from "cuda_gctx.h" nogil:
    int GCTX_VERSION
    unsigned GCTX_REST

    ctypedef enum gctx_error:
        GCTX_SUCCESS
        GCTX_ERROR_DRIVER
        GCTX_ERROR_NOT_FOUND
        GCTX_ERROR_NOT_SUPPORTED
        GCTX_ERROR_VALUE
        GCTX_ERROR_STATE
        GCTX_ERROR_SPLIT
        GCTX_ERROR_OVERLAP
        GCTX_ERROR_MEMORY
        GCTX_ERROR_UNKNOWN

    ctypedef struct gctx_sms
    ctypedef struct gctx_context
    ctypedef struct gctx_stream
    ctypedef struct gctx_event
    ctypedef struct gctx_group:
        unsigned sm_count
        unsigned coscheduled_sm_count
        int backfill

    int gctx_version()
    const char* gctx_last_error(int* cuda_result)
    int gctx_open(const char* driver)
    int gctx_device(int device, gctx_sms** sms)
    unsigned gctx_sm_count(const gctx_sms* sms)
    int gctx_split(
        const gctx_sms* sms, const gctx_group* requests, size_t count, gctx_sms** groups, gctx_sms** remainder
    )
    int gctx_create_context(
        const gctx_sms** sms, size_t count, const char* name, int exclusive, gctx_context** context
    )
    int gctx_partition(
        int device, const gctx_group* requests, const char** names, size_t count, int exclusive, gctx_context** contexts
    )
    void* gctx_context_handle(const gctx_context* context)
    unsigned gctx_context_sm_count(const gctx_context* context)
    int gctx_create_stream(const gctx_context* context, int priority, gctx_stream** stream)
    void* gctx_stream_handle(const gctx_stream* stream)
    int gctx_sync_stream(const gctx_stream* stream)
    int gctx_stream_is_done(const gctx_stream* stream, int* is_done)
    int gctx_create_event(const gctx_context* context, int timing, gctx_event** event)
    void* gctx_event_handle(const gctx_event* event)
    int gctx_record_event(const gctx_stream* stream, const gctx_event* event)
    int gctx_wait_event(const gctx_stream* stream, const gctx_event* event)
    int gctx_wait_stream(const gctx_stream* stream, const gctx_stream* other)
    int gctx_sync_event(const gctx_event* event)
    int gctx_event_is_done(const gctx_event* event, int* is_done)
    int gctx_elapsed_ms(const gctx_event* start, const gctx_event* end, float* milliseconds)
    void gctx_close_sms(gctx_sms* sms)
    int gctx_close_context(gctx_context* context)
    void gctx_close_stream(gctx_stream* stream)
    void gctx_close_event(gctx_event* event)
