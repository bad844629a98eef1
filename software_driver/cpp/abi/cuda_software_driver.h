/* What a test can do with the software driver in addition to CUDA calls: choose the machine, read the ledger, inject
 * faults, register kernels. Plain C, so that Python reaches it with ctypes. Every answer describes a simulated machine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SOFTWARE_DRIVER_API __attribute__((visibility("default")))
#else
#define SOFTWARE_DRIVER_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One block of a running kernel, as a registered host function sees it. `arguments` points at the values of the launch,
 * one pointer per parameter; `argument_sizes` holds their sizes in bytes. */
typedef struct softwareDriverBlock {
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
} softwareDriverBlock;

/* Returns 0. Any other status fails the launch: its results are unknown, and the next wait that covers the launch
 * answers CUDA_ERROR_LAUNCH_FAILED. */
typedef int (*softwareDriverKernelFunction)(void* user, const softwareDriverBlock* block);

/* Starts a fresh machine: `spec` is PROFILE[@MAJOR.MINOR][,devices=N][,key=value...]; null or "" means "h200".
 * Returns 0, or -1 with a message in `error`. Handles of an older machine then answer errors. */
SOFTWARE_DRIVER_API int softwareDriverConfigure(const char* spec, char* error, size_t error_size);
/* A fresh machine of the same spec. */
SOFTWARE_DRIVER_API int softwareDriverReset(void);
/* Sets the present machine aside, and brings the one last set aside back (the present one is dropped). Returns 0, or -1
 * if there is none. */
SOFTWARE_DRIVER_API int softwareDriverPush(void);
SOFTWARE_DRIVER_API int softwareDriverPop(void);

/* JSON texts. The pointer is valid until the next call of the same thread. */
SOFTWARE_DRIVER_API const char* softwareDriverLedger(void); /* live objects, misuse, lost memory */
SOFTWARE_DRIVER_API const char* softwareDriverCalls(void);  /* calls per function, by base name */
SOFTWARE_DRIVER_API const char* softwareDriverMemory(
    void); /* per device: total, free, allocated, contexts, lost, resident */
SOFTWARE_DRIVER_API const char* softwareDriverFaults(void);   /* the rules in force, and how often each has fired */
SOFTWARE_DRIVER_API const char* softwareDriverProfiles(void); /* the cards that can be simulated */
SOFTWARE_DRIVER_API const char* softwareDriverDrivers(void);  /* the driver versions that can be simulated */
SOFTWARE_DRIVER_API const char* softwareDriverExplain(void);  /* each modelled behaviour and where it is known from */
SOFTWARE_DRIVER_API const char* softwareDriverInstructions(void); /* of PTX that kernels are executed with */
SOFTWARE_DRIVER_API const char* softwareDriverMachine(void); /* the present machine: profile, driver version, devices */

/* Faults. `function` is a base name ("cuMemAlloc"), an exported name ("cuMemAlloc_v2") or "*". `code` is the CUresult
 * that the call answers instead of doing anything. Each returns 0, or -1 if no such function or code is known. */
SOFTWARE_DRIVER_API int softwareDriverFailNth(const char* function, unsigned long long nth,
                                              int code); /* the nth call from now, once */
SOFTWARE_DRIVER_API int softwareDriverFailEvery(const char* function, int code);
SOFTWARE_DRIVER_API int softwareDriverFailRandomly(const char* function, double probability, unsigned long long seed,
                                                   int code);
/* From now on, creating a context when `count` are alive answers CUDA_ERROR_OUT_OF_MEMORY. */
SOFTWARE_DRIVER_API void softwareDriverLimitContexts(unsigned count);
SOFTWARE_DRIVER_API void softwareDriverClearFaults(void);

/* What a block of a kernel costs. Blocks on one SM share its throughput, and all share the memory's bandwidth. Without
 * times and bytes, an executed kernel takes the time of its instructions, and any other one 5 us per block: a read of a
 * time that includes these fails. */
typedef struct softwareDriverKernelCost {
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
} softwareDriverKernelCost;

/* Gives a kernel of this name a cost and, if `function` is not null, code that runs on the host at the end of each
 * block: it must not wait for the driver. `argument_sizes` is needed only for images that do not say it (machine code);
 * null otherwise. */
SOFTWARE_DRIVER_API int softwareDriverKernel(const char* name, softwareDriverKernelFunction function, void* user,
                                             const softwareDriverKernelCost* cost, const size_t* argument_sizes,
                                             unsigned argument_count);

/* The arguments through which a registered kernel reads and writes memory, by number; null instead of a list: every
 * one. What it writes is unknown if it has no function or reads something unknown, and is known otherwise. */
SOFTWARE_DRIVER_API int softwareDriverKernelAccess(const char* name, const unsigned* reads, unsigned read_count,
                                                   const unsigned* writes, unsigned write_count);

/* Where the library itself reaches memory of a device, at whose address the host can read nothing: for the functions of
 * kernels. Null if the machine has not all of the range; valid until the memory is freed or unmapped. */
SOFTWARE_DRIVER_API void* softwareDriverView(uint64_t address, size_t size);

/* Where objects are made. For each object that the calling thread makes from now on, `schedule(record, id)` is called
 * in the middle of the making: it must only note the request and return at once. Made for CPython's Py_AddPendingCall,
 * which runs `record` on the main thread when the call into the driver is over, so that no lock is held when it asks
 * for the interpreter. Null ends it. */
typedef int (*softwareDriverRecord)(void* id);
typedef int (*softwareDriverSchedule)(softwareDriverRecord record, void* id);
SOFTWARE_DRIVER_API void softwareDriverTrace(softwareDriverSchedule schedule, softwareDriverRecord record);

/* One thing that a device did, or a call that profilers record: cuDriverGetVersion, and those that launch. Times are
 * virtual nanoseconds. A context is reported when it is made, the rest at its end. */
typedef enum softwareDriverActivityKind {
  softwareDriverContextActivity = 1,
  softwareDriverKernelActivity = 2,
  softwareDriverCopyActivity = 3,
  softwareDriverFillActivity = 4,
  softwareDriverCallActivity = 5,
  softwareDriverGraphActivity = 6, /* the end of a launch of a graph, after its nodes */
  softwareDriverWaitActivity = 7   /* of the host, for a context, a stream or an event */
} softwareDriverActivityKind;

typedef struct softwareDriverActivity {
  softwareDriverActivityKind kind;
  int device;
  uint64_t context;
  uint64_t parent;   /* the primary context of a green one; 0: none */
  unsigned sm_count; /* of a context */
  int is_green;
  uint64_t stream;
  uint64_t launch; /* the same for all nodes of a launched graph */
  uint64_t graph;  /* 0: not in a graph */
  uint64_t started;
  uint64_t ended;
  uint64_t bytes;   /* that a fill or a copy within the device moves */
  const char* name; /* of a kernel or a call; valid during the call */
} softwareDriverActivity;

/* Calls `observer` for each activity of this process from now on, and for each context that exists; null ends it. The
 * machine is locked meanwhile, so the observer must not call the driver. */
typedef void (*softwareDriverObserver)(const softwareDriverActivity* activity);
SOFTWARE_DRIVER_API void softwareDriverObserve(softwareDriverObserver observer);

SOFTWARE_DRIVER_API uint64_t softwareDriverTime(void); /* virtual nanoseconds since the machine started */
SOFTWARE_DRIVER_API void softwareDriverAdvance(uint64_t ns);
/* The number of a CUresult's name ("CUDA_ERROR_OUT_OF_MEMORY"), or -1. */
SOFTWARE_DRIVER_API int softwareDriverErrorCode(const char* name);

#ifdef __cplusplus
}
#endif
