// Kernels and variables: what the compiler's code registers when a program starts, and libraries that a program loads.
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/runtime.hpp"

namespace cuda_runtime {
namespace {

// A fat binary in a program. It is loaded at the first use of one of its kernels or variables.
struct Binary {
  const void* image = nullptr;
  CUlibrary library = nullptr;
};
struct Registered {
  Binary* binary;
  std::string name;
};
struct Registry {
  std::recursive_mutex mutex;
  std::unordered_map<const void*, Registered> functions;
  std::unordered_map<const void*, Registered> variables;
  std::unordered_map<const void*, Registered> managed;  // by the pointer of the program that holds the address
  std::unordered_map<CUkernel, const void*> hosts;
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

CUlibrary library_of(Binary& binary) {
  if (binary.library == nullptr) {
    check(cuLibraryLoadData(&binary.library, binary.image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  return binary.library;
}

void erase_of(std::unordered_map<const void*, Registered>& all, const Binary* binary) {
  std::erase_if(all, [&](const auto& entry) { return entry.second.binary == binary; });
}

int attribute(CUfunction_attribute which, CUkernel kernel, int device) {
  int value = 0;
  check(cuKernelGetAttribute(&value, which, kernel, device));
  return value;
}

CUfunction function_of(const void* function) { return reinterpret_cast<CUfunction>(kernel_of(function)); }

}  // namespace

CUkernel kernel_of(const void* function) {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.functions.find(function);
  auto kernel = std::bit_cast<CUkernel>(function);
  if (found == all.functions.end()) {
    CUlibrary library = nullptr;
    fail_if(cuKernelGetLibrary(&library, kernel) != CUDA_SUCCESS, cudaErrorInvalidDeviceFunction);
    return kernel;
  }
  check(cuLibraryGetKernel(&kernel, library_of(*found->second.binary), found->second.name.c_str()));
  all.hosts[kernel] = function;
  return kernel;
}

const void* host_function_of(CUkernel kernel) {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.hosts.find(kernel);
  return found == all.hosts.end() ? static_cast<const void*>(kernel) : found->second;
}

Variable variable_of(const void* symbol) {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.variables.find(symbol);
  fail_if(found == all.variables.end(), cudaErrorInvalidSymbol);
  Variable variable{};
  check(cuLibraryGetGlobal(&variable.address, &variable.size, library_of(*found->second.binary),
                           found->second.name.c_str()));
  return variable;
}

CUdeviceptr address_in(const void* symbol, std::size_t offset, std::size_t count) {
  const Variable variable = variable_of(symbol);
  fail_if(offset > variable.size || count > variable.size - offset, cudaErrorInvalidValue);
  return variable.address + offset;
}

CUlaunchConfig driver_config(const cudaLaunchConfig_t& config) {
  CUlaunchConfig made{};
  made.gridDimX = config.gridDim.x;
  made.gridDimY = config.gridDim.y;
  made.gridDimZ = config.gridDim.z;
  made.blockDimX = config.blockDim.x;
  made.blockDimY = config.blockDim.y;
  made.blockDimZ = config.blockDim.z;
  made.sharedMemBytes = static_cast<unsigned>(config.dynamicSmemBytes);
  made.hStream = config.stream;
  made.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  made.numAttrs = config.numAttrs;
  return made;
}

}  // namespace cuda_runtime

using namespace cuda_runtime;

// What nvcc writes into every program calls these. No public header declares them.
#define COMPILER_CALL extern "C" __attribute__((visibility("default")))

COMPILER_CALL void** __cudaRegisterFatBinary(void* image) {
  auto* binary = new Binary;
  binary->image = image;
  return reinterpret_cast<void**>(binary);
}
COMPILER_CALL void __cudaRegisterFatBinaryEnd(void**) {}
// The program calls this before it uses a managed variable for the first time.
COMPILER_CALL char __cudaInitModule(void** handle) {
  carry_out(Needs::context, [&] {
    Registry& all = registry();
    const std::scoped_lock lock(all.mutex);
    for (const auto& [pointer, variable] : all.managed) {
      if (variable.binary == reinterpret_cast<Binary*>(handle)) {
        CUdeviceptr address = 0;
        check(cuLibraryGetManaged(&address, nullptr, library_of(*variable.binary), variable.name.c_str()));
        *static_cast<void**>(const_cast<void*>(pointer)) = pointer_of(address);
        all.variables[pointer_of(address)] = variable;
      }
    }
  });
  return 1;
}
COMPILER_CALL void __cudaUnregisterFatBinary(void** handle) {
  const std::unique_ptr<Binary> binary(reinterpret_cast<Binary*>(handle));
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  erase_of(all.functions, binary.get());
  erase_of(all.variables, binary.get());
  erase_of(all.managed, binary.get());
  if (binary->library != nullptr) {
    cuLibraryUnload(binary->library);
  }
}
COMPILER_CALL void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                                          uint3*, uint3*, dim3*, dim3*, int*) {
  const std::scoped_lock lock(registry().mutex);
  registry().functions[host_function] = {reinterpret_cast<Binary*>(handle), name};
}
COMPILER_CALL void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int, std::size_t, int,
                                     int) {
  const std::scoped_lock lock(registry().mutex);
  registry().variables[host_variable] = {reinterpret_cast<Binary*>(handle), name};
}
COMPILER_CALL void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*, const char* name, int,
                                            std::size_t, int, int) {
  const std::scoped_lock lock(registry().mutex);
  registry().managed[host_pointer] = {reinterpret_cast<Binary*>(handle), name};
}
COMPILER_CALL unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
  thread().launches.push_back({grid, block, shared, stream});
  return 0;
}
COMPILER_CALL cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  return carry_out(Needs::nothing, [&] {
    std::vector<LaunchShape>& launches = thread().launches;
    fail_if(launches.empty(), cudaErrorMissingConfiguration);
    const LaunchShape shape = launches.back();
    launches.pop_back();
    *grid = shape.grid;
    *block = shape.block;
    *shared = shape.shared;
    *static_cast<cudaStream_t*>(stream) = shape.stream;
  });
}
COMPILER_CALL cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  return cudaGetKernel(kernel, host_function);
}

CUDART_CALL(Needs::context, cudaGetKernel, cudaKernel_t* kernel, const void* function) {
  fail_if(kernel == nullptr, cudaErrorInvalidValue);
  *kernel = reinterpret_cast<cudaKernel_t>(kernel_of(function));
}
CUDART_CALL(Needs::context, cudaGetFuncBySymbol, cudaFunction_t* out, const void* function) {
  check(cuKernelGetFunction(reinterpret_cast<CUfunction*>(out), kernel_of(function)));
}
CUDART_CALL(Needs::context, cudaGetSymbolAddress, void** pointer, const void* symbol) {
  fail_if(pointer == nullptr, cudaErrorInvalidValue);
  *pointer = pointer_of(variable_of(symbol).address);
}
CUDART_CALL(Needs::context, cudaGetSymbolSize, std::size_t* size, const void* symbol) {
  fail_if(size == nullptr, cudaErrorInvalidValue);
  *size = variable_of(symbol).size;
}

CUDART_CALL(Needs::context, cudaFuncGetAttributes, cudaFuncAttributes* out, const void* function) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  const CUkernel kernel = kernel_of(function);
  const int device = current_device();
  const auto ask = [&](CUfunction_attribute which) { return attribute(which, kernel, device); };
  *out = {};
  out->sharedSizeBytes = static_cast<std::size_t>(ask(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  out->constSizeBytes = static_cast<std::size_t>(ask(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  out->localSizeBytes = static_cast<std::size_t>(ask(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  out->maxThreadsPerBlock = ask(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out->numRegs = ask(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out->ptxVersion = ask(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  out->binaryVersion = ask(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  out->cacheModeCA = ask(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  out->maxDynamicSharedSizeBytes = ask(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  out->preferredShmemCarveout = ask(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  out->clusterDimMustBeSet = ask(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  out->requiredClusterWidth = ask(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  out->requiredClusterHeight = ask(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  out->requiredClusterDepth = ask(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  out->clusterSchedulingPolicyPreference = ask(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  out->nonPortableClusterSizeAllowed = ask(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
}
CUDART_CALL(Needs::context, cudaFuncSetAttribute, const void* function, cudaFuncAttribute which, int value) {
  check(cuKernelSetAttribute(static_cast<CUfunction_attribute>(which), value, kernel_of(function), current_device()));
}
CUDART_CALL(Needs::context, cudaFuncSetCacheConfig, const void* function, cudaFuncCache config) {
  check(cuKernelSetCacheConfig(kernel_of(function), static_cast<CUfunc_cache>(config), current_device()));
}
CUDART_CALL(Needs::context, cudaFuncGetName, const char** name, const void* function) {
  check(cuKernelGetName(name, kernel_of(function)));
}
CUDART_CALL(Needs::context, cudaFuncGetParamInfo, const void* function, std::size_t index, std::size_t* offset,
            std::size_t* size) {
  check(cuKernelGetParamInfo(kernel_of(function), index, offset, size));
}
CUDART_CALL(Needs::context, cudaFuncGetParamCount, const void* function, std::size_t* count) {
  check(cuKernelGetParamCount(kernel_of(function), count));
}

CUDART_CALL(Needs::context, cudaOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, const void* function,
            int block_size, std::size_t shared) {
  check(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function_of(function), block_size, shared));
}
CUDART_CALL(Needs::context, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* blocks, const void* function,
            int block_size, std::size_t shared, unsigned flags) {
  check(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function_of(function), block_size, shared, flags));
}
CUDART_CALL(Needs::context, cudaOccupancyAvailableDynamicSMemPerBlock, std::size_t* shared, const void* function,
            int blocks, int block_size) {
  check(cuOccupancyAvailableDynamicSMemPerBlock(shared, function_of(function), blocks, block_size));
}
CUDART_CALL(Needs::context, cudaOccupancyMaxPotentialClusterSize, int* size, const void* function,
            const cudaLaunchConfig_t* config) {
  fail_if(config == nullptr, cudaErrorInvalidValue);
  const CUlaunchConfig made = driver_config(*config);
  check(cuOccupancyMaxPotentialClusterSize(size, function_of(function), &made));
}
CUDART_CALL(Needs::context, cudaOccupancyMaxActiveClusters, int* count, const void* function,
            const cudaLaunchConfig_t* config) {
  fail_if(config == nullptr, cudaErrorInvalidValue);
  const CUlaunchConfig made = driver_config(*config);
  check(cuOccupancyMaxActiveClusters(count, function_of(function), &made));
}

CUDART_SAME(Needs::context, cudaLibraryLoadData, cuLibraryLoadData)
CUDART_SAME(Needs::context, cudaLibraryLoadFromFile, cuLibraryLoadFromFile)
CUDART_SAME(Needs::context, cudaLibraryUnload, cuLibraryUnload)
CUDART_SAME(Needs::context, cudaLibraryGetKernel, cuLibraryGetKernel)
CUDART_SAME(Needs::context, cudaLibraryGetGlobal, cuLibraryGetGlobal)
CUDART_SAME(Needs::context, cudaLibraryGetManaged, cuLibraryGetManaged)
CUDART_SAME(Needs::context, cudaLibraryGetKernelCount, cuLibraryGetKernelCount)
CUDART_SAME(Needs::context, cudaLibraryEnumerateKernels, cuLibraryEnumerateKernels)
CUDART_CALL(Needs::context, cudaKernelSetAttributeForDevice, cudaKernel_t kernel, cudaFuncAttribute which, int value,
            int device) {
  check(cuKernelSetAttribute(static_cast<CUfunction_attribute>(which), value, reinterpret_cast<CUkernel>(kernel),
                             device));
}
