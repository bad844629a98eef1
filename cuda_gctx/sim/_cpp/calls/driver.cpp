// The calls that work before everything else: cuInit, cuGetProcAddress, versions, error names.
#include <bitset>
#include <cstdio>

#include "calls/entry.hpp"

namespace gctx::sim {
namespace {

CUresult get_address(Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || out == nullptr || version <= 0 || (flags & ~known) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
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

extern "C" {

// Tables that NVIDIA's own libraries use among themselves. NVRTC asks, and goes on without.
CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
  return call<Fn::cuGetExportTable, true>([&](Call&) {
    if (table == nullptr || id == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
  });
}

// They switch a profiling tool on and off, and there is none.
CUresult CUDAAPI cuProfilerStart() {
  return call<Fn::cuProfilerStart>([](Call& c) {
    CUresult result = CUDA_SUCCESS;
    current_context(c, result);
    return result;
  });
}

CUresult CUDAAPI cuProfilerStop() {
  return call<Fn::cuProfilerStop>([](Call& c) {
    CUresult result = CUDA_SUCCESS;
    current_context(c, result);
    return result;
  });
}

CUresult CUDAAPI cuInit(unsigned flags) {
  return call<Fn::cuInit, true>([&](Call& c) {
    if (flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (c.machine.devices.empty()) {
      return CUDA_ERROR_NO_DEVICE;
    }
    c.machine.initialized = true;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  return call<Fn::cuDriverGetVersion, true>([&](Call& c) { return give(version, c.version()); });
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** out, int version, cuuint64_t flags) {
  return call<Fn::cuGetProcAddress, true>(
      [&](Call& c) { return get_address(c, symbol, out, version, flags, nullptr); });
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  return call<Fn::cuGetProcAddress_v2, true>(
      [&](Call& c) { return get_address(c, symbol, out, version, flags, status); });
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  return call<Fn::cuGetErrorName, true>([&](Call&) {
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const ErrorText* found = find_error(error);
    *name = found == nullptr ? nullptr : found->name;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  return call<Fn::cuGetErrorString, true>([&](Call&) {
    if (text == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const ErrorText* found = find_error(error);
    *text = found == nullptr ? nullptr : found->text;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

}  // extern "C"
