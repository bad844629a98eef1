// Attributes, names and parameters of kernels and functions.
#include "calls/kernels.hpp"

#include <algorithm>

#include "calls/modules.hpp"

namespace gctx::sim {

// What the image says, or a registration; the registers of a kernel that is never compiled are not known: 32. Assumed.
int kernel_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which) {
  const auto registered = machine.kernels_by_name.find(code.name);
  if (which == CU_FUNC_ATTRIBUTE_NUM_REGS && registered != machine.kernels_by_name.end() &&
      registered->second.cost.registers != 0) {
    return static_cast<int>(registered->second.cost.registers);
  }
  const auto set = code.attributes.find(which);
  if (set != code.attributes.end()) {
    return set->second;
  }
  const Profile& card = machine.chip->profile();
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return card.cc_major * 10 + card.cc_minor;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return std::max(0, (48 << 10) - kernel_attribute(machine, code, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return -1;
    default:
      return 0;
  }
}

BlockNeeds needs_of(const Machine& machine, const KernelCode& code, unsigned threads,
                    std::size_t dynamic_shared_bytes) {
  // Threads come in warps, and registers of a warp in pieces of 256.
  constexpr unsigned warp = 32;
  constexpr unsigned piece = 256;
  const unsigned warps = (threads + warp - 1) / warp;
  const auto registers = static_cast<unsigned>(kernel_attribute(machine, code, CU_FUNC_ATTRIBUTE_NUM_REGS));
  const auto fixed = static_cast<std::size_t>(kernel_attribute(machine, code, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  return {warps * warp, warps * ((registers * warp + piece - 1) / piece * piece),
          fixed + dynamic_shared_bytes + reserved_shared_bytes};
}

namespace {

bool can_be_set(CUfunction_attribute which) {
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return true;
    default:
      return false;
  }
}

CUresult get_attribute(Call& c, CUfunction handle, int* value, CUfunction_attribute which) {
  CUresult result = CUDA_SUCCESS;
  const auto code = find_code(c, handle, result);
  if (!code) {
    return result;
  }
  if (which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return give(value, kernel_attribute(c.machine, *code, which));
}

CUresult set_attribute(Call& c, CUfunction handle, CUfunction_attribute which, int value) {
  CUresult result = CUDA_SUCCESS;
  const auto code = find_code(c, handle, result);
  if (!code) {
    return result;
  }
  if (!can_be_set(which)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  code->attributes[which] = value;
  return CUDA_SUCCESS;
}

CUresult parameter(Call& c, CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  CUresult result = CUDA_SUCCESS;
  const auto code = find_code(c, handle, result);
  if (!code) {
    return result;
  }
  if (!code->arguments_known) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (index >= code->argument_sizes.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != nullptr) {
    *offset = code->argument_offsets[index];
  }
  if (size != nullptr) {
    *size = code->argument_sizes[index];
  }
  return CUDA_SUCCESS;
}

CUresult parameter_count(Call& c, CUfunction handle, std::size_t* count) {
  CUresult result = CUDA_SUCCESS;
  const auto code = find_code(c, handle, result);
  if (!code) {
    return result;
  }
  return code->arguments_known ? give(count, code->argument_sizes.size()) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult exists(Call& c, CUfunction handle) {
  CUresult result = CUDA_SUCCESS;
  find_code(c, handle, result);
  return result;
}

CUresult name_of(Call& c, CUfunction handle, const char** name) {
  CUresult result = CUDA_SUCCESS;
  const auto code = find_code(c, handle, result);
  return code ? give(name, code->name.c_str()) : result;
}

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

// What a library says of a kernel's parameters, it says of the kernel on the current device.
template <Fn function, class Body>
CUresult with_context(Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    return current_context(c, result) == nullptr ? result : body(c);
  });
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction handle) {
  return call<Fn::cuFuncGetAttribute>([&](Call& c) { return get_attribute(c, handle, value, which); });
}
CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel handle, CUdevice) {
  return call<Fn::cuKernelGetAttribute>([&](Call& c) { return get_attribute(c, as_function(handle), value, which); });
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
  return call<Fn::cuFuncSetAttribute>([&](Call& c) { return set_attribute(c, handle, which, value); });
}
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel handle, CUdevice) {
  return call<Fn::cuKernelSetAttribute>([&](Call& c) { return set_attribute(c, as_function(handle), which, value); });
}
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  return call<Fn::cuFuncSetCacheConfig>([&](Call& c) { return exists(c, handle); });
}
CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
  return call<Fn::cuKernelSetCacheConfig>([&](Call& c) { return exists(c, as_function(handle)); });
}
CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
  return call<Fn::cuFuncGetName>([&](Call& c) { return name_of(c, handle, name); });
}
CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel handle) {
  return call<Fn::cuKernelGetName>([&](Call& c) { return name_of(c, as_function(handle), name); });
}
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  return call<Fn::cuFuncGetParamInfo>([&](Call& c) { return parameter(c, handle, index, offset, size); });
}
CUresult CUDAAPI cuKernelGetParamInfo(CUkernel handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  return with_context<Fn::cuKernelGetParamInfo>(
      [&](Call& c) { return parameter(c, as_function(handle), index, offset, size); });
}
CUresult CUDAAPI cuFuncGetParamCount(CUfunction handle, std::size_t* count) {
  return call<Fn::cuFuncGetParamCount>([&](Call& c) { return parameter_count(c, handle, count); });
}
CUresult CUDAAPI cuKernelGetParamCount(CUkernel handle, std::size_t* count) {
  return with_context<Fn::cuKernelGetParamCount>(
      [&](Call& c) { return parameter_count(c, as_function(handle), count); });
}
CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return call<Fn::cuFuncIsLoaded>([&](Call& c) {
    const CUresult result = exists(c, handle);
    return result == CUDA_SUCCESS ? give(state, CU_FUNCTION_LOADING_STATE_LOADED) : result;
  });
}
CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
  return call<Fn::cuFuncLoad>([&](Call& c) { return exists(c, handle); });
}

}  // extern "C"
