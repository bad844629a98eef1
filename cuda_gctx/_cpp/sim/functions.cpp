// The table of functions, and the calls that work before everything else: cuInit, cuGetProcAddress, versions, error
// names.
#include "sim/functions.hpp"

#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "sim/entry.hpp"

namespace gctx::sim {
namespace {

constexpr FunctionInfo table[] = {
#define GCTX_SIM_FUNCTION(symbol, base, since) {#symbol, #base, since},
#include "sim/functions.def"
#undef GCTX_SIM_FUNCTION
};

void* const addresses[] = {
#define GCTX_SIM_FUNCTION(symbol, base, since) reinterpret_cast<void*>(&::symbol),
#include "sim/functions.def"
#undef GCTX_SIM_FUNCTION
};

using NameMap = std::multimap<std::string_view, std::size_t>;

// Oldest variant first for each base name: a multimap keeps the order in which equal keys came.
const NameMap& by_base() {
  static const NameMap map = [] {
    NameMap made;
    for (std::size_t i = 0; i < function_count; ++i) made.emplace(table[i].base, i);
    return made;
  }();
  return map;
}

const std::map<std::string_view, std::size_t>& by_symbol() {
  static const std::map<std::string_view, std::size_t> map = [] {
    std::map<std::string_view, std::size_t> made;
    for (std::size_t i = 0; i < function_count; ++i) made.emplace(table[i].symbol, i);
    return made;
  }();
  return map;
}

struct Found {
  void* address = nullptr;
  bool too_old_request = false;
};

Found look_up(std::string_view name, int wanted, int driver_version) {
  Found found;
  const auto [first, last] = by_base().equal_range(name);
  for (auto it = first; it != last; ++it) {
    const FunctionInfo& candidate = table[it->second];
    if (candidate.since > driver_version) continue;
    if (candidate.since > wanted) {
      found.too_old_request = found.address == nullptr;
      continue;
    }
    found.address = addresses[it->second];
  }
  if (first != last) return found;
  // A full name ("cuStreamGetCtx_v2") is taken as well. Assumed: the documentation speaks of base names only.
  const auto it = by_symbol().find(name);
  if (it == by_symbol().end() || table[it->second].since > driver_version) return found;
  if (table[it->second].since > wanted) {
    found.too_old_request = true;
  } else {
    found.address = addresses[it->second];
  }
  return found;
}

CUresult get_address(Call& c, const char* symbol, void** out, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || out == nullptr || version <= 0 || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  // The variants whose default stream is the thread's own are not modelled.
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  *out = nullptr;
  // Recorded: a version that the driver does not have yet is no value.
  if (version > c.version()) return CUDA_ERROR_INVALID_VALUE;
  const Found found = look_up(symbol, version, c.version());
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

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorText errors[] = {
#define GCTX_SIM_ERROR(code, text) {code, #code, text},
#include "sim/errors.def"
#undef GCTX_SIM_ERROR
};

const ErrorText* find_error(CUresult code) {
  for (const ErrorText& error : errors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

const FunctionInfo& info(Fn function) { return table[static_cast<std::size_t>(function)]; }

bool is_function_name(std::string_view name) { return by_base().contains(name) || by_symbol().contains(name); }

int error_code(std::string_view name) {
  for (const ErrorText& error : errors) {
    if (name == error.name) return error.code;
  }
  return -1;
}

}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuInit(unsigned flags) {
  return call<Fn::cuInit, true>([&](Call& c) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (c.machine.devices.empty()) return CUDA_ERROR_NO_DEVICE;
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
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorText* found = find_error(error);
    *name = found == nullptr ? nullptr : found->name;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  return call<Fn::cuGetErrorString, true>([&](Call&) {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorText* found = find_error(error);
    *text = found == nullptr ? nullptr : found->text;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

}  // extern "C"
