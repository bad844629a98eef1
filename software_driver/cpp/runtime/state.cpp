// The runtime's state: the driver, the devices of threads, and errors.
#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "runtime/absent.hpp"
#include "runtime/runtime.hpp"

namespace cuda_runtime {
namespace {

constexpr int oldest_driver = 13000;

struct Process {
  std::mutex mutex;
  int driver_version = 0;
  std::vector<CUcontext> primary;
};
Process& process() {
  static auto* const state = new Process;
  return *state;
}

struct ErrorText {
  int number;
  const char* name;
  const char* text;
};
constexpr ErrorText errors[] = {
#define CUDART_ERROR(name, text) {name, #name, text},
#include "runtime/errors.def"
#undef CUDART_ERROR
};

template <auto member>
const char* about(cudaError_t error) {
  const auto* found = std::ranges::find(errors, static_cast<int>(error), &ErrorText::number);
  return found == std::end(errors) ? "unrecognized error code" : found->*member;
}

}  // namespace

void fail(cudaError_t error) { throw Failure{error}; }

Thread& thread() {
  thread_local Thread state;
  return state;
}

void start() {
  Process& state = process();
  const std::scoped_lock lock(state.mutex);
  if (state.driver_version == 0) {
    int version = 0;
    check(cuDriverGetVersion(&version));
    fail_if(version < oldest_driver, cudaErrorInsufficientDriver);
    check(cuInit(0));
    state.driver_version = version;
  }
}

void need_driver(int version) { fail_if(process().driver_version < version, cudaErrorCallRequiresNewerDriver); }

CUcontext primary_context(int device) {
  Process& state = process();
  const std::scoped_lock lock(state.mutex);
  int count = 0;
  check(cuDeviceGetCount(&count));
  fail_if(device < 0 || device >= count, cudaErrorInvalidDevice);
  state.primary.resize(static_cast<std::size_t>(count));
  CUcontext& context = state.primary[static_cast<std::size_t>(device)];
  if (context == nullptr) {
    check(cuDevicePrimaryCtxRetain(&context, device));
  }
  return context;
}

void make_ready() {
  start();
  CUcontext current = nullptr;
  check(cuCtxGetCurrent(&current));
  if (current == nullptr) {
    check(cuCtxSetCurrent(primary_context(thread().device)));
  }
}

int current_device() {
  CUcontext current = nullptr;
  check(cuCtxGetCurrent(&current));
  CUdevice device = thread().device;
  if (current != nullptr) {
    check(cuCtxGetDevice(&device));
  }
  return device;
}

void set_device(int device) {
  check(cuCtxSetCurrent(primary_context(device)));
  thread().device = device;
}

void reset_device() {
  const int device = current_device();
  primary_context(device);
  Process& state = process();
  const std::scoped_lock lock(state.mutex);
  check(cuDevicePrimaryCtxReset(device));
  cuDevicePrimaryCtxRelease(device);
  state.primary[static_cast<std::size_t>(device)] = nullptr;
  check(cuCtxSetCurrent(nullptr));
}

int refuse_absent() {
  return carry_out(Needs::driver, [] { fail(cudaErrorNotSupported); });
}

}  // namespace cuda_runtime

using namespace cuda_runtime;

extern "C" {
__attribute__((visibility("default"))) cudaError_t cudaGetLastError() {
  return std::exchange(thread().error, cudaSuccess);
}
__attribute__((visibility("default"))) cudaError_t cudaPeekAtLastError() { return thread().error; }
__attribute__((visibility("default"))) const char* cudaGetErrorName(cudaError_t error) {
  return about<&ErrorText::name>(error);
}
__attribute__((visibility("default"))) const char* cudaGetErrorString(cudaError_t error) {
  return about<&ErrorText::text>(error);
}
}

CUDART_CALL(Needs::nothing, cudaRuntimeGetVersion, int* version) {
  fail_if(version == nullptr, cudaErrorInvalidValue);
  *version = CUDART_VERSION;
}
CUDART_SAME(Needs::nothing, cudaDriverGetVersion, cuDriverGetVersion)
