/* What a test can do with the software driver in addition to CUDA calls: choose the machine, read the ledger, inject
 * faults, register kernels. Plain C, so that Python reaches it with ctypes. Every answer describes a simulated machine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GCTX_SIM_API __attribute__((visibility("default")))
#else
#define GCTX_SIM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One block of a running kernel, as a registered host function sees it. `arguments` points at the values of the launch,
 * one pointer per parameter; `argument_sizes` holds their sizes in bytes. */
typedef struct gctxSimBlock {
  unsigned block[3];
  unsigned grid[3];
  unsigned threads[3];
  unsigned index; /* of the block in the grid */
  unsigned smid;
  int device;
  unsigned argument_count;
  uint64_t start_ns;
  uint64_t end_ns;
  void* const* arguments;
  const size_t* argument_sizes;
} gctxSimBlock;

typedef void (*gctxSimKernelFunction)(void* user, const gctxSimBlock* block);

/* Starts a fresh machine: `spec` is PROFILE[@MAJOR.MINOR][,devices=N][,key=value...]; null or "" means "h200".
 * Returns 0, or -1 with a message in `error`. Handles of an older machine then answer errors. */
GCTX_SIM_API int gctxSimConfigure(const char* spec, char* error, size_t error_size);
/* A fresh machine of the same spec. */
GCTX_SIM_API int gctxSimReset(void);
/* Sets the present machine aside, and brings the one last set aside back (the present one is dropped). Returns 0, or -1
 * if there is none. */
GCTX_SIM_API int gctxSimPush(void);
GCTX_SIM_API int gctxSimPop(void);

/* JSON texts. The pointer is valid until the next call of the same thread. */
GCTX_SIM_API const char* gctxSimLedger(void);   /* live objects, misuse, unknown results, lost memory */
GCTX_SIM_API const char* gctxSimCalls(void);    /* calls per function, by base name */
GCTX_SIM_API const char* gctxSimMemory(void);   /* per device: total, free, allocated, contexts, lost, resident */
GCTX_SIM_API const char* gctxSimFaults(void);   /* the rules in force, and how often each has fired */
GCTX_SIM_API const char* gctxSimProfiles(void); /* the cards that can be simulated */
GCTX_SIM_API const char* gctxSimDrivers(void);  /* the driver versions that can be simulated */
GCTX_SIM_API const char* gctxSimExplain(void);  /* each modelled behaviour and where it is known from */
GCTX_SIM_API const char* gctxSimMachine(void);  /* the present machine: profile, driver version, devices */

/* Faults. `function` is a base name ("cuMemAlloc"), an exported name ("cuMemAlloc_v2") or "*". `code` is the CUresult
 * that the call answers instead of doing anything. Each returns 0, or -1 if no such function or code is known. */
GCTX_SIM_API int gctxSimFailNth(const char* function, unsigned long long nth,
                                int code); /* the nth call from now, once */
GCTX_SIM_API int gctxSimFailEvery(const char* function, int code);
GCTX_SIM_API int gctxSimFailRandomly(const char* function, double probability, unsigned long long seed, int code);
/* From now on, creating a context when `count` are alive answers CUDA_ERROR_OUT_OF_MEMORY. */
GCTX_SIM_API void gctxSimLimitContexts(unsigned count);
GCTX_SIM_API void gctxSimClearFaults(void);

/* What a block of a kernel costs. Blocks on one SM share its throughput, and all share the memory's bandwidth. Without
 * times and bytes, 5 us per block are assumed, and times that include them are counted in the ledger. */
typedef struct gctxSimKernelCost {
  uint64_t block_ns;    /* alone on an SM, if it waits for no memory */
  uint64_t block_bytes; /* to and from device memory */
  double
      throughput; /* the part of the SM's throughput that it uses then, 0 to 1; below 0: all of it from four warps on */
  unsigned registers; /* of a thread; 0: as its image says */
  /* A persistent kernel: when its time above is over, a block takes tiles until none of the launch's is left, and stays
   * on its SM meanwhile. 0: none */
  uint64_t tiles;
  uint64_t tile_ns;    /* like block_ns */
  uint64_t tile_bytes; /* like block_bytes */
} gctxSimKernelCost;

/* Gives a kernel of this name a cost and, if `function` is not null, code that runs on the host at the end of each
 * block: it must not wait for the driver. `argument_sizes` is needed only for images that do not say it (machine code);
 * null otherwise. */
GCTX_SIM_API int gctxSimKernel(const char* name, gctxSimKernelFunction function, void* user,
                               const gctxSimKernelCost* cost, const size_t* argument_sizes, unsigned argument_count);

/* The arguments through which a registered kernel reads and writes memory, by number; null instead of a list: every
 * one. What it writes is unknown if it has no function or reads something unknown, and is known otherwise. */
GCTX_SIM_API int gctxSimKernelAccess(const char* name, const unsigned* reads, unsigned read_count,
                                     const unsigned* writes, unsigned write_count);

/* Where the library itself reaches memory of a device, at whose address the host can read nothing: for the functions of
 * kernels. Null if the machine has not all of the range; valid until the memory is freed or unmapped. */
GCTX_SIM_API void* gctxSimView(uint64_t address, size_t size);

/* Where objects are made. For each object that the calling thread makes from now on, `schedule(record, id)` is called
 * in the middle of the making: it must only note the request and return at once. Made for CPython's Py_AddPendingCall,
 * which runs `record` on the main thread when the call into the driver is over, so that no lock is held when it asks
 * for the interpreter. Null ends it. */
typedef int (*gctxSimRecord)(void* id);
typedef int (*gctxSimSchedule)(gctxSimRecord record, void* id);
GCTX_SIM_API void gctxSimTrace(gctxSimSchedule schedule, gctxSimRecord record);

GCTX_SIM_API uint64_t gctxSimTime(void); /* virtual nanoseconds since the machine started */
GCTX_SIM_API void gctxSimAdvance(uint64_t ns);
/* The number of a CUresult's name ("CUDA_ERROR_OUT_OF_MEMORY"), or -1. */
GCTX_SIM_API int gctxSimErrorCode(const char* name);

#ifdef __cplusplus
}
#endif
