/* The C interface of cuda_gctx: SMs of a GPU, green contexts over them, and streams.
 *
 * A function that can fail returns 0 or a gctx_error, and gctx_last_error() explains the error. All functions work on
 * any thread. No thread may close an object while another one uses it. A call writes the objects that it creates to its
 * last parameters, and the caller closes them; closing NULL does nothing. A call that fails creates nothing. The
 * interface needs no cuda.h: a CUcontext and a CUstream are void pointers here. */
#ifndef CUDA_GCTX_H
#define CUDA_GCTX_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GCTX_API __attribute__((visibility("default")))

/* The version of the interface in this header. Within a version, functions are added, and never changed. */
#define GCTX_VERSION 2

typedef enum gctx_error {
  GCTX_SUCCESS = 0,
  GCTX_ERROR_DRIVER = 1,        /* a driver call failed: gctx_last_error() has its CUresult */
  GCTX_ERROR_NOT_FOUND = 2,     /* no driver */
  GCTX_ERROR_NOT_SUPPORTED = 3, /* the driver lacks what was requested */
  GCTX_ERROR_VALUE = 4,         /* an argument that is invalid on every driver */
  GCTX_ERROR_STATE = 5,         /* the process or the object is in the wrong state, such as a context that is current */
  GCTX_ERROR_SPLIT = 6,         /* the SMs cannot be split like this: the message names one that fits */
  GCTX_ERROR_OVERLAP = 7,       /* an exclusive context on SMs that a live context uses */
  GCTX_ERROR_MEMORY = 8,        /* the host has no memory left */
  GCTX_ERROR_UNKNOWN = 9
} gctx_error;

typedef struct gctx_sms gctx_sms;         /* a set of SMs of a device; reserves nothing */
typedef struct gctx_context gctx_context; /* a green context */
typedef struct gctx_stream gctx_stream;   /* a stream of a context, which it keeps alive */
typedef struct gctx_event gctx_event;     /* an event of a context */

/* In gctx_partition, the sm_count of at most one group: all SMs that the other groups leave, of any alignment. */
#define GCTX_REST (~0u)

/* The request for one group of a split. */
typedef struct gctx_group {
  unsigned sm_count;             /* rounded up to a size that the device supports; 0 or GCTX_REST: see the functions */
  unsigned coscheduled_sm_count; /* SMs that are guaranteed to be in one GPC; 0: the alignment of the device */
  int backfill;                  /* not 0: complete the group with SMs outside of such sets */
} gctx_group;

/* The version of the interface in the library: GCTX_VERSION of the header that it was built with. */
GCTX_API int gctx_version(void);

/* The message of the last call that failed on this thread, or "". It is valid until the next call fails. cuda_result:
 * if not NULL, receives the CUresult of the driver, or 0. */
GCTX_API const char* gctx_last_error(int* cuda_result);

/* Opens the driver, unless the process has opened one: the path of a library, "sim:h200@13.0" for a software driver by
 * its description, or NULL for CUDA_GCTX_DRIVER and then libcuda.so.1. Without this call, the first use of another
 * function opens it with NULL. */
GCTX_API int gctx_open(const char* driver);

/* All SMs of a device. */
GCTX_API int gctx_device(int device, gctx_sms** sms);
GCTX_API unsigned gctx_sm_count(const gctx_sms* sms);

/* Splits disjoint groups off SMs. groups receives `count` pointers. remainder receives the remaining SMs, which may be
 * none; NULL: not needed. A group or a remainder can be split again. As in the driver, an sm_count of 0 requests the
 * remaining SMs that fill whole units of the alignment. */
GCTX_API int gctx_split(const gctx_sms* sms, const gctx_group* requests, size_t count, gctx_sms** groups,
                        gctx_sms** remainder);

/* Creates a green context over some groups of one split. name: for messages, or NULL. exclusive: not 0 to refuse SMs
 * that another live context of this process uses. */
GCTX_API int gctx_create_context(const gctx_sms* const* sms, size_t count, const char* name, int exclusive,
                                 gctx_context** context);

/* Splits a whole device, and creates a context over each group: all of them or none. exclusive: as above. names: one
 * for each, or NULL. An sm_count of GCTX_REST requests all remaining SMs; an sm_count of 0 is refused. */
GCTX_API int gctx_partition(int device, const gctx_group* requests, const char* const* names, size_t count,
                            int exclusive, gctx_context** contexts);

/* The CUcontext, valid until the context and its streams are closed. */
GCTX_API void* gctx_context_handle(const gctx_context* context);
GCTX_API unsigned gctx_context_sm_count(const gctx_context* context);

/* Creates a non-blocking stream of a context. priority: as in CUDA, 0 is the lowest. No context has to be current. */
GCTX_API int gctx_create_stream(const gctx_context* context, int priority, gctx_stream** stream);

/* The CUstream, which is also a cudaStream_t. */
GCTX_API void* gctx_stream_handle(const gctx_stream* stream);

/* Waits for the work of a stream. is_done receives 1 if none is left, else 0. */
GCTX_API int gctx_sync_stream(const gctx_stream* stream);
GCTX_API int gctx_stream_is_done(const gctx_stream* stream, int* is_done);

/* Creates an event. timing: not 0 for gctx_elapsed_ms(). */
GCTX_API int gctx_create_event(const gctx_context* context, int timing, gctx_event** event);
GCTX_API void* gctx_event_handle(const gctx_event* event); /* the CUevent */

/* Records the work of a stream in an event, and lets a stream wait for an event or for the work of another stream. */
GCTX_API int gctx_record_event(const gctx_stream* stream, const gctx_event* event);
GCTX_API int gctx_wait_event(const gctx_stream* stream, const gctx_event* event);
GCTX_API int gctx_wait_stream(const gctx_stream* stream, const gctx_stream* other);

GCTX_API int gctx_sync_event(const gctx_event* event);
GCTX_API int gctx_event_is_done(const gctx_event* event, int* is_done);
GCTX_API int gctx_elapsed_ms(const gctx_event* start, const gctx_event* end, float* milliseconds);

/* Close an object. A context that is current on a thread stays open, and the call returns GCTX_ERROR_STATE. A context
 * with open streams is destroyed with the last of them. The driver finishes the work of closed streams. */
GCTX_API void gctx_close_sms(gctx_sms* sms);
GCTX_API int gctx_close_context(gctx_context* context);
GCTX_API void gctx_close_stream(gctx_stream* stream);
GCTX_API void gctx_close_event(gctx_event* event);

#ifdef __cplusplus
}
#endif
#endif
