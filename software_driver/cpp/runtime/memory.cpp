// Memory: allocations, what an address is, pools, handles for other processes, and the driver's form of copies.
#include "runtime/runtime.hpp"

namespace cuda_runtime {
namespace {

CUmemorytype memory_type(cudaMemcpyKind kind, cudaMemcpyKind here, cudaMemcpyKind there) {
  fail_if(kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
  return kind == cudaMemcpyDefault                           ? CU_MEMORYTYPE_UNIFIED
         : kind == here || kind == cudaMemcpyHostToHost      ? CU_MEMORYTYPE_HOST
         : kind == there || kind == cudaMemcpyDeviceToDevice ? CU_MEMORYTYPE_DEVICE
                                                             : CU_MEMORYTYPE_UNIFIED;
}

}  // namespace

CUmemorytype source_type(cudaMemcpyKind kind) {
  return memory_type(kind, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost);
}
CUmemorytype destination_type(cudaMemcpyKind kind) {
  return memory_type(kind, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice);
}

CUDA_MEMCPY3D driver_copy(const cudaMemcpy3DParms& copy) {
  fail_if(copy.srcArray != nullptr || copy.dstArray != nullptr, cudaErrorNotSupported);
  CUDA_MEMCPY3D made{};
  made.srcMemoryType = source_type(copy.kind);
  made.srcHost = copy.srcPtr.ptr;
  made.srcDevice = address_of(copy.srcPtr.ptr);
  made.srcPitch = copy.srcPtr.pitch;
  made.srcHeight = copy.srcPtr.ysize;
  made.srcXInBytes = copy.srcPos.x;
  made.srcY = copy.srcPos.y;
  made.srcZ = copy.srcPos.z;
  made.dstMemoryType = destination_type(copy.kind);
  made.dstHost = copy.dstPtr.ptr;
  made.dstDevice = address_of(copy.dstPtr.ptr);
  made.dstPitch = copy.dstPtr.pitch;
  made.dstHeight = copy.dstPtr.ysize;
  made.dstXInBytes = copy.dstPos.x;
  made.dstY = copy.dstPos.y;
  made.dstZ = copy.dstPos.z;
  made.WidthInBytes = copy.extent.width;
  made.Height = copy.extent.height;
  made.Depth = copy.extent.depth;
  return made;
}

CUDA_MEMCPY3D driver_copy(void* destination, const void* source, std::size_t count, cudaMemcpyKind kind) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {const_cast<void*>(source), count, count, 1};
  copy.dstPtr = {destination, count, count, 1};
  copy.extent = {count, 1, 1};
  copy.kind = kind;
  return driver_copy(copy);
}

}  // namespace cuda_runtime

using namespace cuda_runtime;

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));

CUDART_CALL(Needs::context, cudaMalloc, void** pointer, std::size_t size) {
  fail_if(pointer == nullptr, cudaErrorInvalidValue);
  *pointer = nullptr;
  if (size != 0) {
    check(cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), size));
  }
}

CUDART_CALL(Needs::context, cudaFree, void* pointer) {
  if (pointer != nullptr) {
    check(cuMemFree(address_of(pointer)));
  }
}

CUDART_CALL(Needs::context, cudaMallocHost, void** pointer, std::size_t size) {
  fail_if(pointer == nullptr, cudaErrorInvalidValue);
  *pointer = nullptr;
  if (size != 0) {
    check(cuMemHostAlloc(pointer, size, CU_MEMHOSTALLOC_PORTABLE));
  }
}

CUDART_CALL(Needs::context, cudaFreeHost, void* pointer) {
  if (pointer != nullptr) {
    check(cuMemFreeHost(pointer));
  }
}

CUDART_CALL(Needs::context, cudaMallocPitch, void** pointer, std::size_t* pitch, std::size_t width,
            std::size_t height) {
  check(cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(pointer), pitch, width, height, 4));
}

CUDART_CALL(Needs::context, cudaMalloc3D, cudaPitchedPtr* out, cudaExtent extent) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  check(cuMemAllocPitch(&address, &pitch, extent.width, extent.height * extent.depth, 4));
  *out = {pointer_of(address), pitch, extent.width, extent.height};
}

CUDART_CALL(Needs::context, cudaMallocManaged, void** pointer, std::size_t size, unsigned flags) {
  check(cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), size, flags));
}

CUDART_CALL(Needs::context, cudaMemAdvise, const void* pointer, std::size_t size, cudaMemoryAdvise advice,
            cudaMemLocation location) {
  check(cuMemAdvise(address_of(pointer), size, static_cast<CUmem_advise>(advice),
                    std::bit_cast<CUmemLocation>(location)));
}

CUDART_CALL(Needs::context, cudaPointerGetAttributes, cudaPointerAttributes* out, const void* pointer) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  *out = {};
  CUmemorytype type{};
  if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(pointer)) != CUDA_SUCCESS) {
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = const_cast<void*>(pointer);
    return;
  }
  unsigned is_managed = 0;
  cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address_of(pointer));
  out->type = is_managed != 0                ? cudaMemoryTypeManaged
              : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                             : cudaMemoryTypeHost;
  check(cuPointerGetAttribute(&out->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address_of(pointer)));
  // Either answers an error where there is no such address.
  cuPointerGetAttribute(&out->devicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address_of(pointer));
  cuPointerGetAttribute(&out->hostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address_of(pointer));
}

CUDART_CALL(Needs::context, cudaIpcOpenMemHandle, void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  check(cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(pointer), std::bit_cast<CUipcMemHandle>(handle), flags));
}
CUDART_CALL(Needs::context, cudaIpcOpenEventHandle, cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  check(cuIpcOpenEventHandle(event, std::bit_cast<CUipcEventHandle>(handle)));
}
CUDART_SAME(Needs::context, cudaIpcGetMemHandle, cuIpcGetMemHandle)
CUDART_SAME(Needs::context, cudaIpcGetEventHandle, cuIpcGetEventHandle)
CUDART_SAME(Needs::context, cudaIpcCloseMemHandle, cuIpcCloseMemHandle)

CUDART_SAME(Needs::context, cudaHostAlloc, cuMemHostAlloc)
CUDART_SAME(Needs::context, cudaHostRegister, cuMemHostRegister)
CUDART_SAME(Needs::context, cudaHostUnregister, cuMemHostUnregister)
CUDART_SAME(Needs::context, cudaHostGetDevicePointer, cuMemHostGetDevicePointer)
CUDART_SAME(Needs::context, cudaHostGetFlags, cuMemHostGetFlags)
CUDART_SAME(Needs::context, cudaMemGetInfo, cuMemGetInfo)
CUDART_SAME(Needs::context, cudaMemRangeGetAttribute, cuMemRangeGetAttribute)
CUDART_SAME(Needs::context, cudaMemRangeGetAttributes, cuMemRangeGetAttributes)
CUDART_SAME(Needs::context, cudaMemPoolCreate, cuMemPoolCreate)
CUDART_SAME(Needs::context, cudaMemPoolDestroy, cuMemPoolDestroy)
CUDART_SAME(Needs::context, cudaMemPoolTrimTo, cuMemPoolTrimTo)
CUDART_SAME(Needs::context, cudaMemPoolSetAttribute, cuMemPoolSetAttribute)
CUDART_SAME(Needs::context, cudaMemPoolGetAttribute, cuMemPoolGetAttribute)
CUDART_SAME(Needs::context, cudaMemPoolSetAccess, cuMemPoolSetAccess)
CUDART_SAME(Needs::context, cudaMemPoolGetAccess, cuMemPoolGetAccess)
CUDART_SAME(Needs::context, cudaMemGetDefaultMemPool, cuMemGetDefaultMemPool)
CUDART_SAME(Needs::context, cudaMemGetMemPool, cuMemGetMemPool)
CUDART_SAME(Needs::context, cudaMemSetMemPool, cuMemSetMemPool)
