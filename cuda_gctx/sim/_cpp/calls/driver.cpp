// The calls that work before everything else: cuInit, cuGetProcAddress, versions, error names.
#include <bitset>
#include <cstdio>

#include "calls/entry.hpp"

namespace gctx::sim {
namespace {

void get_address(Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  *out = nullptr;
  // Recorded: a version newer than the driver's is an invalid value.
  refuse_if(version > c.version(), CUDA_ERROR_INVALID_VALUE);
  const FoundFunction found =
      find_function(symbol, version, c.version(), (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  *out = found.address;
  const auto answer = found.address != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                      : found.too_old_request  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status != nullptr) {
    // With a place for the status the call itself succeeds, and the status and the null pointer say what happened.
    *status = answer;
    return;
  }
  refuse_if(answer != CU_GET_PROC_ADDRESS_SUCCESS, CUDA_ERROR_NOT_FOUND);
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
    std::fprintf(stderr, "cuda_gctx software driver (simulated): %s is not modelled: CUDA_ERROR_NOT_SUPPORTED\n",
                 absent_info(index).symbol);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gctx::sim

using namespace gctx::sim;

// Tables that NVIDIA's own libraries use among themselves. NVRTC asks, and goes on without.
GCTX_SIM_CALL(cuGetExportTable, Call&, const void** table, const CUuuid*) {
  *table = nullptr;
  refuse(CUDA_ERROR_NOT_FOUND);
}

// They switch a profiling tool on and off, and there is none.
GCTX_SIM_CALL(cuProfilerStart, Call&) {}

GCTX_SIM_SAME(cuProfilerStop, cuProfilerStart)

GCTX_SIM_CALL(cuInit, Call& c, unsigned) {
  refuse_if(c.machine.devices.empty(), CUDA_ERROR_NO_DEVICE);
  c.machine.initialized = true;
}

GCTX_SIM_CALL(cuDriverGetVersion, Call& c, int* version) { give(version, c.version()); }

GCTX_SIM_CALL(cuGetProcAddress, Call& c, const char* symbol, void** out, int version, cuuint64_t flags) {
  return get_address(c, symbol, out, version, flags, nullptr);
}

GCTX_SIM_CALL(cuGetProcAddress_v2, Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
  return get_address(c, symbol, out, version, flags, status);
}

GCTX_SIM_CALL(cuGetErrorName, Call&, CUresult error, const char** name) {
  const ErrorText* found = find_error(error);
  *name = found == nullptr ? nullptr : found->name;
  refuse_if(found == nullptr, CUDA_ERROR_INVALID_VALUE);
}

GCTX_SIM_CALL(cuGetErrorString, Call&, CUresult error, const char** text) {
  const ErrorText* found = find_error(error);
  *text = found == nullptr ? nullptr : found->text;
  refuse_if(found == nullptr, CUDA_ERROR_INVALID_VALUE);
}
