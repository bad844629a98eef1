// Devices: their properties, the device of a thread, limits, and access between devices.
#include <cstring>

#include "runtime/runtime.hpp"

using namespace cuda_runtime;

// Declared in headers that the build does not have.
extern "C" {
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
CUresult cuProfilerStart();
CUresult cuProfilerStop();
}

namespace {

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  // An older driver does not know the newest attributes.
  return cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

struct Property {
  int cudaDeviceProp::* field;
  CUdevice_attribute attribute;
};
// clang-format off
constexpr Property properties[] = {
    {&cudaDeviceProp::regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {&cudaDeviceProp::warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {&cudaDeviceProp::maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {&cudaDeviceProp::major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {&cudaDeviceProp::minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {&cudaDeviceProp::multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {&cudaDeviceProp::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
    {&cudaDeviceProp::canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
    {&cudaDeviceProp::concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {&cudaDeviceProp::ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
    {&cudaDeviceProp::pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {&cudaDeviceProp::pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
    {&cudaDeviceProp::pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
    {&cudaDeviceProp::tccDriver, CU_DEVICE_ATTRIBUTE_TCC_DRIVER},
    {&cudaDeviceProp::asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {&cudaDeviceProp::unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {&cudaDeviceProp::memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {&cudaDeviceProp::l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {&cudaDeviceProp::persistingL2CacheMaxSize, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE},
    {&cudaDeviceProp::maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
    {&cudaDeviceProp::globalL1CacheSupported, CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED},
    {&cudaDeviceProp::localL1CacheSupported, CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED},
    {&cudaDeviceProp::regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {&cudaDeviceProp::isMultiGpuBoard, CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD},
    {&cudaDeviceProp::multiGpuBoardGroupID, CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID},
    {&cudaDeviceProp::hostNativeAtomicSupported, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED},
    {&cudaDeviceProp::pageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {&cudaDeviceProp::concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {&cudaDeviceProp::computePreemptionSupported, CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED},
    {&cudaDeviceProp::canUseHostPointerForRegisteredMem, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
    {&cudaDeviceProp::cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {&cudaDeviceProp::pageableMemoryAccessUsesHostPageTables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
    {&cudaDeviceProp::directManagedMemAccessFromHost, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST},
    {&cudaDeviceProp::maxBlocksPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::accessPolicyMaxWindowSize, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE},
    {&cudaDeviceProp::hostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
    {&cudaDeviceProp::sparseCudaArraySupported, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED},
    {&cudaDeviceProp::hostRegisterReadOnlySupported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED},
    {&cudaDeviceProp::timelineSemaphoreInteropSupported, CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED},
    {&cudaDeviceProp::memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {&cudaDeviceProp::gpuDirectRDMASupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
    {&cudaDeviceProp::gpuDirectRDMAWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING},
    {&cudaDeviceProp::deferredMappingCudaArraySupported, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED},
    {&cudaDeviceProp::ipcEventSupported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
    {&cudaDeviceProp::clusterLaunch, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH},
    {&cudaDeviceProp::unifiedFunctionPointers, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS},
    {&cudaDeviceProp::deviceNumaConfig, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG},
    {&cudaDeviceProp::deviceNumaId, CU_DEVICE_ATTRIBUTE_NUMA_ID},
    {&cudaDeviceProp::mpsEnabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED},
    {&cudaDeviceProp::hostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
    {&cudaDeviceProp::hostNumaMultinodeIpcSupported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED},
};
struct Size {
  std::size_t cudaDeviceProp::* field;
  CUdevice_attribute attribute;
};
constexpr Size sizes[] = {
    {&cudaDeviceProp::sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {&cudaDeviceProp::memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH},
    {&cudaDeviceProp::totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {&cudaDeviceProp::textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
    {&cudaDeviceProp::texturePitchAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT},
    {&cudaDeviceProp::surfaceAlignment, CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT},
    {&cudaDeviceProp::sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {&cudaDeviceProp::reservedSharedMemPerBlock, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
};
// clang-format on

}  // namespace

CUDART_SAME(Needs::driver, cudaGetDeviceCount, cuDeviceGetCount)
CUDART_SAME(Needs::driver, cudaDeviceGetAttribute, cuDeviceGetAttribute)
CUDART_SAME(Needs::driver, cudaDeviceGetPCIBusId, cuDeviceGetPCIBusId)
CUDART_SAME(Needs::driver, cudaDeviceGetByPCIBusId, cuDeviceGetByPCIBusId)
CUDART_SAME(Needs::driver, cudaDeviceGetP2PAttribute, cuDeviceGetP2PAttribute)
CUDART_SAME(Needs::driver, cudaDeviceCanAccessPeer, cuDeviceCanAccessPeer)
CUDART_SAME(Needs::driver, cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)
CUDART_SAME(Needs::driver, cudaDeviceGetMemPool, cuDeviceGetMemPool)
CUDART_SAME(Needs::driver, cudaDeviceSetMemPool, cuDeviceSetMemPool)
CUDART_SAME(Needs::driver, cudaDeviceGraphMemTrim, cuDeviceGraphMemTrim)
CUDART_SAME(Needs::driver, cudaDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute)
CUDART_SAME(Needs::driver, cudaDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute)
CUDART_SAME(Needs::context, cudaDeviceSynchronize, cuCtxSynchronize)
CUDART_SAME(Needs::context, cudaDeviceSetLimit, cuCtxSetLimit)
CUDART_SAME(Needs::context, cudaDeviceGetLimit, cuCtxGetLimit)
CUDART_SAME(Needs::context, cudaDeviceGetCacheConfig, cuCtxGetCacheConfig)
CUDART_SAME(Needs::context, cudaDeviceSetCacheConfig, cuCtxSetCacheConfig)
CUDART_SAME(Needs::context, cudaDeviceGetStreamPriorityRange, cuCtxGetStreamPriorityRange)
CUDART_SAME(Needs::context, cudaCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache)
CUDART_SAME(Needs::context, cudaProfilerStart, cuProfilerStart)
CUDART_SAME(Needs::context, cudaProfilerStop, cuProfilerStop)

CUDART_CALL(Needs::driver, cudaGetDeviceProperties, cudaDeviceProp* out, int device) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  cudaDeviceProp found{};
  check(cuDeviceGetName(found.name, sizeof found.name, device));
  check(cuDeviceTotalMem(&found.totalGlobalMem, device));
  check(cuDeviceGetUuid(reinterpret_cast<CUuuid*>(&found.uuid), device));
  for (const Property& one : properties) {
    found.*one.field = attribute(one.attribute, device);
  }
  for (const Size& one : sizes) {
    found.*one.field = static_cast<std::size_t>(attribute(one.attribute, device));
  }
  for (int axis = 0; axis < 3; ++axis) {
    found.maxThreadsDim[axis] =
        attribute(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis), device);
    found.maxGridSize[axis] =
        attribute(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis), device);
  }
  found.memoryPoolSupportedHandleTypes =
      static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, device));
  *out = found;
}

CUDART_CALL(Needs::driver, cudaGetDevice, int* device) {
  fail_if(device == nullptr, cudaErrorInvalidValue);
  *device = current_device();
}

CUDART_CALL(Needs::driver, cudaSetDevice, int device) { set_device(device); }

CUDART_CALL(Needs::driver, cudaInitDevice, int device, unsigned device_flags, unsigned flags) {
  fail_if((flags & ~static_cast<unsigned>(cudaInitDeviceFlagsAreValid)) != 0, cudaErrorInvalidValue);
  if (flags != 0) {
    check(cuDevicePrimaryCtxSetFlags(device, device_flags));
  }
  primary_context(device);
}

CUDART_CALL(Needs::driver, cudaDeviceReset) { reset_device(); }

CUDART_CALL(Needs::driver, cudaSetDeviceFlags, unsigned flags) {
  check(cuDevicePrimaryCtxSetFlags(current_device(), flags));
}

CUDART_CALL(Needs::driver, cudaGetDeviceFlags, unsigned* flags) {
  fail_if(flags == nullptr, cudaErrorInvalidValue);
  CUcontext current = nullptr;
  check(cuCtxGetCurrent(&current));
  int active = 0;
  check(current != nullptr ? cuCtxGetFlags(flags) : cuDevicePrimaryCtxGetState(thread().device, flags, &active));
}

CUDART_CALL(Needs::context, cudaDeviceEnablePeerAccess, int peer, unsigned flags) {
  check(cuCtxEnablePeerAccess(primary_context(peer), flags));
}

CUDART_CALL(Needs::context, cudaDeviceDisablePeerAccess, int peer) {
  check(cuCtxDisablePeerAccess(primary_context(peer)));
}
