// The driver's side of benchmarks/calls.py: each raw_* function repeats, inside C, what a careful C programmer would
// write for one call of the package, and reads the clock before the first and after the last. Loaded with ctypes.
#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

// The version asked for is the one whose form cuda.h declares under this name.
#define RAW_FUNCTIONS(FUNCTION)                \
  FUNCTION(cuInit, 2000)                       \
  FUNCTION(cuDeviceGet, 2000)                  \
  FUNCTION(cuDevicePrimaryCtxRetain, 7000)     \
  FUNCTION(cuDevicePrimaryCtxRelease, 11000)   \
  FUNCTION(cuCtxSetCurrent, 4000)              \
  FUNCTION(cuCtxPushCurrent, 4000)             \
  FUNCTION(cuCtxPopCurrent, 4000)              \
  FUNCTION(cuCtxSynchronize, 2000)             \
  FUNCTION(cuDeviceGetDevResource, 12040)      \
  FUNCTION(cuCtxGetDevResource, 12040)         \
  FUNCTION(cuStreamGetDevResource, 13010)      \
  FUNCTION(cuDevSmResourceSplitByCount, 12040) \
  FUNCTION(cuDevSmResourceSplit, 13010)        \
  FUNCTION(cuDevResourceGenerateDesc, 12040)   \
  FUNCTION(cuGreenCtxCreate, 12040)            \
  FUNCTION(cuGreenCtxDestroy, 12040)           \
  FUNCTION(cuCtxFromGreenCtx, 12040)           \
  FUNCTION(cuGreenCtxRecordEvent, 12040)       \
  FUNCTION(cuGreenCtxWaitEvent, 12040)         \
  FUNCTION(cuGreenCtxStreamCreate, 12050)      \
  FUNCTION(cuStreamGetCtx, 9020)               \
  FUNCTION(cuStreamDestroy, 4000)              \
  FUNCTION(cuStreamWaitEvent, 3020)            \
  FUNCTION(cuEventCreate, 2000)                \
  FUNCTION(cuEventDestroy, 4000)               \
  FUNCTION(cuEventRecord, 2000)

struct Driver {
#define RAW_MEMBER(name, version) decltype(&::name) name = nullptr;
  RAW_FUNCTIONS(RAW_MEMBER)
#undef RAW_MEMBER

  explicit Driver(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get = reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
    if (get == nullptr) throw std::runtime_error(std::string(path) + " has no cuGetProcAddress_v2");
    void* found = nullptr;
// A function of a newer driver stays null.
#define RAW_LOOKUP(name, version)                                                                   \
  found = nullptr;                                                                                  \
  if (get(#name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) == CUDA_SUCCESS && found) { \
    name = reinterpret_cast<decltype(name)>(found);                                                 \
  }
    RAW_FUNCTIONS(RAW_LOOKUP)
#undef RAW_LOOKUP
  }
};

template <class Function, class... Arguments>
void call(Function function, const char* name, Arguments... arguments) {
  if (function == nullptr) throw std::runtime_error(std::string("this driver has no ") + name);
  const CUresult result = function(arguments...);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(name) + " answered " + std::to_string(static_cast<int>(result)));
  }
}

#define CALL(name, ...) call(driver.name, #name, __VA_ARGS__)

constexpr unsigned grain = 8;
constexpr unsigned uneven_units = 6;  // 8 + 16 + 24

// Two green contexts of 8 SMs with a stream each, one event, and the SMs for more contexts: what the calls work on.
class Bench {
 public:
  const Driver driver;

  Bench(const char* library, int ordinal) : driver(library) {
    CALL(cuInit, 0U);
    CALL(cuDeviceGet, &device, ordinal);
    CALL(cuDevicePrimaryCtxRetain, &primary, device);
    CALL(cuDeviceGetDevResource, device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    auto count = static_cast<unsigned>(groups.size());
    CALL(cuDevSmResourceSplitByCount, groups.data(), &count, &whole, nullptr, 0U, grain);
    if (count < groups.size()) throw std::runtime_error("this device has too few SMs for the benchmark");
    for (unsigned i = 0; i < 2; ++i) {
      green[i] = create_green(i);
      CALL(cuCtxFromGreenCtx, &contexts[i], green[i]);
      CALL(cuGreenCtxStreamCreate, &streams[i], green[i], CU_STREAM_NON_BLOCKING, 0);
    }
    CALL(cuCtxPushCurrent, contexts[0]);
    CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    CUcontext popped = nullptr;
    CALL(cuCtxPopCurrent, &popped);
    // Every contestant works on a thread with the primary context current, as programs with a framework do.
    CALL(cuCtxSetCurrent, primary);
  }

  ~Bench() {
    driver.cuEventDestroy(event);
    for (unsigned i = 0; i < 2; ++i) {
      driver.cuStreamDestroy(streams[i]);
      driver.cuGreenCtxDestroy(green[i]);
    }
    driver.cuDevicePrimaryCtxRelease(device);
  }

  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  CUgreenCtx create_green(unsigned group) {
    CUdevResourceDesc descriptor = nullptr;
    CALL(cuDevResourceGenerateDesc, &descriptor, &groups[group], 1U);
    CUgreenCtx created = nullptr;
    CALL(cuGreenCtxCreate, &created, descriptor, device, CU_GREEN_CTX_DEFAULT_STREAM);
    return created;
  }

  CUdevice device = 0;
  CUcontext primary = nullptr;
  CUdevResource whole{};
  std::array<CUdevResource, 3> groups{};
  std::array<CUgreenCtx, 2> green{};
  std::array<CUcontext, 2> contexts{};
  std::array<CUstream, 2> streams{};
  CUevent event = nullptr;
};

std::unique_ptr<Bench> bench;
std::string error;

// Runs something that may throw; 0, or 1 with the reason in `error`.
template <class Action>
int guarded(Action action) {
  try {
    action();
    return 0;
  } catch (const std::exception& caught) {
    error = caught.what();
    return 1;
  }
}

template <class Call>
int timed(int n, double* ns, Call one_call) {
  return guarded([&] {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) one_call(*bench, bench->driver);
    *ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  });
}

}  // namespace

#define RAW_EXPORT extern "C" __attribute__((visibility("default")))

RAW_EXPORT const char* raw_error() { return error.c_str(); }

RAW_EXPORT int raw_open(const char* library, int ordinal) {
  return guarded([&] { bench = std::make_unique<Bench>(library, ordinal); });
}

RAW_EXPORT void raw_close() { bench.reset(); }

// Waits for all that was recorded, so that no sample pays for the queue that the one before it left. With the primary
// context current the driver waits for its green contexts too.
RAW_EXPORT int raw_settle() {
  return guarded([] { call(bench->driver.cuCtxSynchronize, "cuCtxSynchronize"); });
}

RAW_EXPORT int raw_query(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUdevResource sm;
    CALL(cuDeviceGetDevResource, b.device, &sm, CU_DEV_RESOURCE_TYPE_SM);
  });
}

RAW_EXPORT int raw_split_one(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUdevResource group;
    CUdevResource remainder;
    unsigned count = 1;
    CALL(cuDevSmResourceSplitByCount, &group, &count, &b.whole, &remainder, 0U, grain);
  });
}

// The structured split where the driver has it. Else one split into units of 8: a group is then a run of units, which a
// descriptor takes as they lie, so that composing costs nothing here.
RAW_EXPORT int raw_split_uneven(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUdevResource remainder;
    if (driver.cuDevSmResourceSplit != nullptr) {
      std::array<CUdevResource, 3> groups;
      std::array<CU_DEV_SM_RESOURCE_GROUP_PARAMS, 3> wanted{};
      for (unsigned i = 0; i < 3; ++i) {
        wanted[i].smCount = grain * (i + 1);
        wanted[i].coscheduledSmCount = grain;
      }
      CALL(cuDevSmResourceSplit, groups.data(), 3U, &b.whole, &remainder, 0U, wanted.data());
    } else {
      std::array<CUdevResource, uneven_units> units;
      unsigned count = uneven_units;
      CALL(cuDevSmResourceSplitByCount, units.data(), &count, &b.whole, &remainder, 0U, grain);
    }
  });
}

RAW_EXPORT int raw_context(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    const CUgreenCtx green = b.create_green(2);
    CUcontext context = nullptr;
    CALL(cuCtxFromGreenCtx, &context, green);
    CALL(cuGreenCtxDestroy, green);
  });
}

RAW_EXPORT int raw_stream(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUstream stream = nullptr;
    CALL(cuGreenCtxStreamCreate, &stream, b.green[0], CU_STREAM_NON_BLOCKING, 0);
    CALL(cuStreamDestroy, stream);
  });
}

RAW_EXPORT int raw_stream_sm_count(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUdevResource sm;
    if (driver.cuStreamGetDevResource != nullptr) {
      CALL(cuStreamGetDevResource, b.streams[0], &sm, CU_DEV_RESOURCE_TYPE_SM);
    } else {
      CUcontext context = nullptr;
      CALL(cuStreamGetCtx, b.streams[0], &context);
      CALL(cuCtxGetDevResource, context, &sm, CU_DEV_RESOURCE_TYPE_SM);
    }
  });
}

RAW_EXPORT int raw_push_pop(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CUcontext popped = nullptr;
    CALL(cuCtxPushCurrent, b.contexts[0]);
    CALL(cuCtxPopCurrent, &popped);
  });
}

RAW_EXPORT int raw_record_wait(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CALL(cuEventRecord, b.event, b.streams[0]);
    CALL(cuStreamWaitEvent, b.streams[1], b.event, 0U);
  });
}

RAW_EXPORT int raw_context_record_wait(int n, double* ns) {
  return timed(n, ns, [](Bench& b, const Driver& driver) {
    CALL(cuGreenCtxRecordEvent, b.green[0], b.event);
    CALL(cuGreenCtxWaitEvent, b.green[1], b.event);
  });
}
