// The calls that work before everything else: cuInit, cuGetProcAddress, versions, error names.
#include <dlfcn.h>

#include <atomic>
#include <bitset>
#include <cstdio>
#include <cstdlib>

#include "calls/entry.hpp"
#include "machine/observer.hpp"

namespace software_driver {
namespace {

// Loads the library of a profiler, once in a process, as the real driver does. It asks for the time, so that the
// machine must not be locked.
void load_profiler(std::unique_lock<std::mutex>& lock) {
  static std::atomic<bool> is_loaded{false};
  const char* const path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || is_loaded.exchange(true)) {
    return;
  }
  lock.unlock();
  if (void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (void* const begin = dlsym(library, "InitializeInjection")) {
      reinterpret_cast<int (*)()>(begin)();
    }
  }
  lock.lock();
}

void get_address(Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  *out = nullptr;
  // Recorded: a version newer than the driver's is an invalid value.
  refuse_if(version > c.version(), CUDA_ERROR_INVALID_VALUE);
  const FoundFunction found =
      find_function(symbol, version, c.version(), (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  *out = found.address;
  // With a place for the status the call itself succeeds, and the status and the null pointer say what happened.
  give(status, found.address != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
               : found.too_old_request  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  refuse_if(status == nullptr && found.address == nullptr, CUDA_ERROR_NOT_FOUND);
}

template <const char* ErrorText::* what>
void tell_error(Call&, CUresult error, const char** out) {
  const ErrorText* found = find_error(error);
  *out = found == nullptr ? nullptr : found->*what;
  refuse_if(found == nullptr, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

int answer_absent(std::size_t index) {
  static std::bitset<absent_count> named;
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (here.machine) {
    ++here.machine->absent_calls[index];
  }
  if (!named.test(index)) {
    named.set(index);
    std::fprintf(stderr, "software driver (simulated): %s is not modelled: CUDA_ERROR_NOT_SUPPORTED\n",
                 absent_info(index).symbol);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace software_driver

using namespace software_driver;

// Tables that NVIDIA's own libraries use among themselves. NVRTC asks, and goes on without.
SOFTWARE_DRIVER_CALL(cuGetExportTable, Call&, const void** table, const CUuuid*) {
  *table = nullptr;
  refuse(CUDA_ERROR_NOT_FOUND);
}

// They switch a profiling tool on and off, and there is none.
SOFTWARE_DRIVER_CALL(cuProfilerStart, Call&) {}

SOFTWARE_DRIVER_SAME(cuProfilerStop, cuProfilerStart)

SOFTWARE_DRIVER_CALL(cuInit, Call& c, unsigned) {
  refuse_if(c.machine.devices.empty(), CUDA_ERROR_NO_DEVICE);
  c.machine.initialized = true;
  load_profiler(c.lock);
}

SOFTWARE_DRIVER_CALL(cuDriverGetVersion, Call& c, int* version) {
  give(version, c.version());
  observe_call("cuDriverGetVersion", c.machine.clock.look(c.thread.time), 0);
}

SOFTWARE_DRIVER_ROW(cuGetProcAddress, get_address)
SOFTWARE_DRIVER_ROW(cuGetProcAddress_v2, get_address)
SOFTWARE_DRIVER_ROW(cuGetErrorName, tell_error<&ErrorText::name>)
SOFTWARE_DRIVER_ROW(cuGetErrorString, tell_error<&ErrorText::text>)
