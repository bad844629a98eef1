/* The C interface of cuda_gctx: SMs of a GPU, green contexts over them, and streams.
 *
 * Every function that can fail returns 0 or one of gctx_error, and gctx_last_error() explains it. Functions may be
 * called from any thread; two threads must not use one object while a third closes it. What a call creates it writes to
 * its last parameters, and the caller closes it; NULL may be closed. Nothing is created by a call that fails. The
 * interface needs no cuda.h: a CUcontext and a CUstream are void pointers here. */
#ifndef CUDA_GCTX_H
#define CUDA_GCTX_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GCTX_API __attribute__((visibility("default")))

/* The interface that this header describes. Within one number, functions are added and never changed. */
#define GCTX_VERSION 1

typedef enum gctx_error {
  GCTX_SUCCESS = 0,
  GCTX_ERROR_DRIVER = 1,        /* a driver call failed: gctx_last_error() has its CUresult */
  GCTX_ERROR_NOT_FOUND = 2,     /* no driver */
  GCTX_ERROR_NOT_SUPPORTED = 3, /* the driver lacks what was requested */
  GCTX_ERROR_VALUE = 4,         /* an argument that no driver could serve */
  GCTX_ERROR_STATE = 5,         /* the process or the object is in the wrong state, such as a context that is current */
  GCTX_ERROR_SPLIT = 6,         /* the SMs cannot be split like this: the message names the nearest request */
  GCTX_ERROR_OVERLAP = 7,       /* an exclusive context over SMs that a live context uses */
  GCTX_ERROR_MEMORY = 8,        /* the host has no memory left */
  GCTX_ERROR_UNKNOWN = 9
} gctx_error;

typedef struct gctx_sms gctx_sms;         /* a set of SMs of a device; reserves nothing */
typedef struct gctx_context gctx_context; /* a green context */
typedef struct gctx_stream gctx_stream;   /* a stream of a context, which it keeps alive */

/* What one group of a split requests. A zeroed one requests all SMs that the others leave. */
typedef struct gctx_group {
  unsigned sm_count;             /* rounded up to what the device can give; 0: all that the other groups leave */
  unsigned coscheduled_sm_count; /* SMs that are guaranteed to be in one GPC; 0: the alignment of the device */
  int backfill;                  /* not 0: complete the group with SMs outside of such sets */
} gctx_group;

/* The version of the interface in the library: GCTX_VERSION of the header that it was built with. */
GCTX_API int gctx_version(void);

/* The message of the last call that failed on this thread, valid until the next one fails; "" without one. cuda_result:
 * if not NULL, receives the CUresult of the driver, or 0. */
GCTX_API const char* gctx_last_error(int* cuda_result);

/* Opens the driver, unless the process has opened one: the library of that path, "sim:h200@13.0" for a software driver
 * by its description, or NULL for CUDA_GCTX_DRIVER and then libcuda.so.1. The other functions do it with NULL at first
 * use. */
GCTX_API int gctx_open(const char* driver);

/* All SMs of a device. */
GCTX_API int gctx_device(int device, gctx_sms** sms);
GCTX_API unsigned gctx_sm_count(const gctx_sms* sms);

/* Splits disjoint groups off SMs. groups receives `count` pointers, remainder (NULL: not needed) what is left, perhaps
 * none. A group or a remainder can be split again. */
GCTX_API int gctx_split(const gctx_sms* sms, const gctx_group* requests, size_t count, gctx_sms** groups,
                        gctx_sms** remainder);

/* A green context over some sets of SMs of one split. name: for messages, or NULL. exclusive: not 0 to refuse SMs that
 * another live context of this process uses. */
GCTX_API int gctx_create_context(const gctx_sms* const* sms, size_t count, const char* name, int exclusive,
                                 gctx_context** context);

/* A split of a whole device, and a context over each group, exclusive as above: all of them or none. names: one for
 * each, or NULL. */
GCTX_API int gctx_partition(int device, const gctx_group* requests, const char* const* names, size_t count,
                            int exclusive, gctx_context** contexts);

/* The CUcontext, valid until the context and its streams are closed. */
GCTX_API void* gctx_context_handle(const gctx_context* context);
GCTX_API unsigned gctx_context_sm_count(const gctx_context* context);

/* A non-blocking stream of a context. priority: as in CUDA, 0 is the lowest. No context has to be current. */
GCTX_API int gctx_create_stream(const gctx_context* context, int priority, gctx_stream** stream);

/* The CUstream, which is also a cudaStream_t. */
GCTX_API void* gctx_stream_handle(const gctx_stream* stream);

/* A context that is current on any thread cannot be closed (GCTX_ERROR_STATE) and stays open. A context of which
 * streams are open is destroyed with the last of them. Work of a stream that is closed is finished by the driver. */
GCTX_API void gctx_close_sms(gctx_sms* sms);
GCTX_API int gctx_close_context(gctx_context* context);
GCTX_API void gctx_close_stream(gctx_stream* stream);

#ifdef __cplusplus
}
#endif
#endif
