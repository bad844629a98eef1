// The calls that work before everything else: cuInit, cuGetProcAddress, versions, error names.
#include <bitset>
#include <cstdio>

#include "calls/entry.hpp"

namespace gctx::sim {
namespace {

CUresult get_address(Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* status) {
  *out = nullptr;
  // Recorded: a version newer than the driver's is an invalid value.
  if (version > c.version()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FoundFunction found =
      find_function(symbol, version, c.version(), (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  *out = found.address;
  const auto answer = found.address != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                      : found.too_old_request  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status != nullptr) {
    // With a place for the status the call itself succeeds, and the status and the null pointer say what happened.
    *status = answer;
    return CUDA_SUCCESS;
  }
  return answer == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
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
  return CUDA_ERROR_NOT_FOUND;
}

// They switch a profiling tool on and off, and there is none.
GCTX_SIM_CALL(cuProfilerStart, Call&) { return CUDA_SUCCESS; }

GCTX_SIM_SAME(cuProfilerStop, cuProfilerStart)

GCTX_SIM_CALL(cuInit, Call& c, unsigned) {
  if (c.machine.devices.empty()) {
    return CUDA_ERROR_NO_DEVICE;
  }
  c.machine.initialized = true;
  return CUDA_SUCCESS;
}

GCTX_SIM_CALL(cuDriverGetVersion, Call& c, int* version) { return give(version, c.version()); }

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
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

GCTX_SIM_CALL(cuGetErrorString, Call&, CUresult error, const char** text) {
  const ErrorText* found = find_error(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
