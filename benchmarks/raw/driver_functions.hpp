// The driver functions that the raw calls use, found in a driver library by path.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

// Columns: name as typed by cuda.h, name asked of the driver, version that introduced this form. Missing functions
// stay null.
#define RAW_FUNCTIONS(X)                                               \
  X(cuGetErrorName, "cuGetErrorName", 6000)                            \
  X(cuDeviceGet, "cuDeviceGet", 2000)                                  \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)        \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000)     \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000)                          \
  X(cuCtxPushCurrent, "cuCtxPushCurrent", 4000)                        \
  X(cuCtxPopCurrent, "cuCtxPopCurrent", 4000)                          \
  X(cuCtxGetId, "cuCtxGetId", 12000)                                   \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                        \
  X(cuCtxRecordEvent, "cuCtxRecordEvent", 12050)                       \
  X(cuCtxWaitEvent, "cuCtxWaitEvent", 12050)                           \
  X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040)           \
  X(cuCtxGetDevResource, "cuCtxGetDevResource", 12040)                 \
  X(cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", 12040) \
  X(cuDevSmResourceSplit, "cuDevSmResourceSplit", 13010)               \
  X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040)     \
  X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040)                       \
  X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040)                     \
  X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040)                     \
  X(cuGreenCtxRecordEvent, "cuGreenCtxRecordEvent", 12040)             \
  X(cuGreenCtxWaitEvent, "cuGreenCtxWaitEvent", 12040)                 \
  X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050)           \
  X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050)    \
  X(cuStreamDestroy, "cuStreamDestroy", 4000)                          \
  X(cuStreamGetCtx, "cuStreamGetCtx", 9020)                            \
  X(cuStreamGetDevResource, "cuStreamGetDevResource", 13010)           \
  X(cuStreamGetPriority, "cuStreamGetPriority", 5050)                  \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000)                 \
  X(cuStreamQuery, "cuStreamQuery", 2000)                              \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020)                      \
  X(cuEventCreate, "cuEventCreate", 2000)                              \
  X(cuEventDestroy, "cuEventDestroy", 4000)                            \
  X(cuEventRecord, "cuEventRecord", 2000)                              \
  X(cuEventQuery, "cuEventQuery", 2000)                                \
  X(cuEventSynchronize, "cuEventSynchronize", 2000)                    \
  X(cuEventElapsedTime, "cuEventElapsedTime", 12080)

namespace raw {

struct DriverFunctions {
  explicit DriverFunctions(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error("the driver " + path + " could not be opened: " + dlerror());
    }
    using GetVersion = CUresult (*)(int*);
    using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    const auto get_version = reinterpret_cast<GetVersion>(dlsym(library, "cuDriverGetVersion"));
    const auto get_address = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    int version = 0;
    if (get_version == nullptr || get_address == nullptr || get_version(&version) != CUDA_SUCCESS) {
      throw std::runtime_error(path + " is not a CUDA driver of version 12.0 or newer");
    }
    const auto find = [&](const char* symbol, int since) -> void* {
      void* address = nullptr;
      CUdriverProcAddressQueryResult status{};
      const bool is_found = version >= since &&
                            get_address(symbol, &address, since, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS;
      return is_found && status == CU_GET_PROC_ADDRESS_SUCCESS ? address : nullptr;
    };
#define RAW_FIND(name, symbol, since) name = reinterpret_cast<decltype(name)>(find(symbol, since));
    RAW_FUNCTIONS(RAW_FIND)
#undef RAW_FIND
    if (cuEventElapsedTime == nullptr) {  // the form before 12.8 has the same arguments
      cuEventElapsedTime = reinterpret_cast<decltype(cuEventElapsedTime)>(find("cuEventElapsedTime", 2000));
    }
    if (cuGreenCtxCreate == nullptr) {
      throw std::runtime_error("green contexts need CUDA driver 12.4 or newer");
    }
  }

  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      const char* name = nullptr;
      cuGetErrorName(result, &name);
      throw std::runtime_error(std::string(call) + " answered " + (name != nullptr ? name : std::to_string(result)));
    }
  }

#define RAW_MEMBER(name, symbol, since) decltype(&::name) name = nullptr;
  RAW_FUNCTIONS(RAW_MEMBER)
#undef RAW_MEMBER
};

// Calls a driver function, and throws the name of the function and of its error.
#define RAW_CALL(driver, function, ...) (driver).check((driver).function(__VA_ARGS__), #function)

}  // namespace raw
