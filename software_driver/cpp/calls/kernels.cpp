// Attributes, names and parameters of kernels and functions.
#include "calls/kernels.hpp"

#include <algorithm>

#include "calls/modules.hpp"

namespace software_driver {
namespace {

// What the image says, or a registration; the registers of a kernel that is never compiled are not known: 32. Assumed.
int own_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which) {
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
      return std::max(0, (48 << 10) - own_attribute(machine, code, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return -1;
    default:
      return 0;
  }
}

}  // namespace

int kernel_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which) {
  const auto set = code.of_function.find(which);
  return set != code.of_function.end() ? set->second : own_attribute(machine, code, which);
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

void set_attribute(std::map<CUfunction_attribute, int>& attributes, CUfunction_attribute which, int value) {
  constexpr CUfunction_attribute settable[] = {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                               CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                               CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
                                               CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                                               CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
                                               CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                                               CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE};
  refuse_if(std::ranges::find(settable, which) == std::end(settable), CUDA_ERROR_INVALID_VALUE);
  attributes[which] = value;
}

void parameter(Call&, const KernelCode& code, std::size_t index, std::size_t* offset, std::size_t* size) {
  refuse_if(!code.arguments_known, CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(index >= code.argument_sizes.size(), CUDA_ERROR_INVALID_VALUE);
  *offset = code.argument_offsets[index];
  give(size, code.argument_sizes[index]);
}

std::size_t parameter_count(const KernelCode& code) {
  refuse_if(!code.arguments_known, CUDA_ERROR_NOT_SUPPORTED);
  return code.argument_sizes.size();
}

const char* name_of(const KernelCode& code) { return code.name.c_str(); }

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuFuncGetAttribute, Call& c, int* value, CUfunction_attribute which, const KernelCode& code) {
  give(value, kernel_attribute(c.machine, code, which));
}
SOFTWARE_DRIVER_CALL(cuKernelGetAttribute, Call& c, int* value, CUfunction_attribute which, const KernelCode& code,
                     const Device&) {
  give(value, own_attribute(c.machine, code, which));
}
SOFTWARE_DRIVER_CALL(cuFuncSetAttribute, Call&, KernelCode& code, CUfunction_attribute which, int value) {
  return set_attribute(code.of_function, which, value);
}
SOFTWARE_DRIVER_CALL(cuKernelSetAttribute, Call&, CUfunction_attribute which, int value, KernelCode& code,
                     const Device&) {
  return set_attribute(code.attributes, which, value);
}
SOFTWARE_DRIVER_CALL(cuFuncSetCacheConfig, Call&, const KernelCode&, CUfunc_cache) {}
SOFTWARE_DRIVER_CALL(cuKernelSetCacheConfig, Call&, const KernelCode&, CUfunc_cache, const Device&) {}
SOFTWARE_DRIVER_CALL(cuFuncLoad, Call&, const KernelCode&) {}
SOFTWARE_DRIVER_GET(cuFuncIsLoaded, [](const KernelCode&) { return CU_FUNCTION_LOADING_STATE_LOADED; })
SOFTWARE_DRIVER_GET(cuFuncGetName, name_of)
SOFTWARE_DRIVER_GET(cuKernelGetName, name_of)
SOFTWARE_DRIVER_ROW(cuFuncGetParamInfo, parameter)
SOFTWARE_DRIVER_ROW(cuKernelGetParamInfo, parameter)
SOFTWARE_DRIVER_GET(cuFuncGetParamCount, parameter_count)
SOFTWARE_DRIVER_GET(cuKernelGetParamCount, parameter_count)
