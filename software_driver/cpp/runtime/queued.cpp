// Functions that queue work on a stream, or ask about one. Compiled twice: the header gives each name its suffix _ptsz
// or _ptds in the second build, whose null stream is the calling thread's own.
#include "runtime/runtime.hpp"

using namespace cuda_runtime;

static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(sizeof(cudaDevResource) == sizeof(CUdevResource));
static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

namespace {

void copy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return check(cuMemcpyHtoD(address_of(to), from, count));
    case cudaMemcpyDeviceToHost:
      return check(cuMemcpyDtoH(to, address_of(from), count));
    case cudaMemcpyDeviceToDevice:
      return check(cuMemcpyDtoD(address_of(to), address_of(from), count));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return check(cuMemcpy(address_of(to), address_of(from), count));
  }
  fail(cudaErrorInvalidMemcpyDirection);
}

void queue_copy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return check(cuMemcpyHtoDAsync(address_of(to), from, count, stream));
    case cudaMemcpyDeviceToHost:
      return check(cuMemcpyDtoHAsync(to, address_of(from), count, stream));
    case cudaMemcpyDeviceToDevice:
      return check(cuMemcpyDtoDAsync(address_of(to), address_of(from), count, stream));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return check(cuMemcpyAsync(address_of(to), address_of(from), count, stream));
  }
  fail(cudaErrorInvalidMemcpyDirection);
}

CUDA_MEMCPY2D rectangle(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, cudaMemcpyKind kind) {
  fail_if(width > to_pitch || width > from_pitch, cudaErrorInvalidPitchValue);
  CUDA_MEMCPY2D made{};
  made.srcMemoryType = source_type(kind);
  made.srcHost = from;
  made.srcDevice = address_of(from);
  made.srcPitch = from_pitch;
  made.dstMemoryType = destination_type(kind);
  made.dstHost = to;
  made.dstDevice = address_of(to);
  made.dstPitch = to_pitch;
  made.WidthInBytes = width;
  made.Height = height;
  return made;
}

// Calls a function with each layer of a box.
template <class Fill>
void each_layer(const cudaPitchedPtr& box, const cudaExtent& extent, Fill&& fill) {
  for (std::size_t layer = 0; layer < extent.depth; ++layer) {
    fill(address_of(box.ptr) + layer * box.pitch * box.ysize);
  }
}

unsigned char byte_of(int value) { return static_cast<unsigned char>(value); }

void launch(CUkernel kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream) {
  check(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                       static_cast<unsigned>(shared), stream, arguments, nullptr));
}

}  // namespace

CUDART_CALL(Needs::context, cudaMemcpy, void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
  copy(to, from, count, kind);
}
CUDART_CALL(Needs::context, cudaMemcpyAsync, void* to, const void* from, std::size_t count, cudaMemcpyKind kind,
            cudaStream_t stream) {
  queue_copy(to, from, count, kind, stream);
}
CUDART_CALL(Needs::context, cudaMemcpyToSymbol, const void* symbol, const void* from, std::size_t count,
            std::size_t offset, cudaMemcpyKind kind) {
  copy(pointer_of(address_in(symbol, offset, count)), from, count, kind);
}
CUDART_CALL(Needs::context, cudaMemcpyFromSymbol, void* to, const void* symbol, std::size_t count, std::size_t offset,
            cudaMemcpyKind kind) {
  copy(to, pointer_of(address_in(symbol, offset, count)), count, kind);
}
CUDART_CALL(Needs::context, cudaMemcpyToSymbolAsync, const void* symbol, const void* from, std::size_t count,
            std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  queue_copy(pointer_of(address_in(symbol, offset, count)), from, count, kind, stream);
}
CUDART_CALL(Needs::context, cudaMemcpyFromSymbolAsync, void* to, const void* symbol, std::size_t count,
            std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  queue_copy(to, pointer_of(address_in(symbol, offset, count)), count, kind, stream);
}
CUDART_CALL(Needs::context, cudaMemcpy2D, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
            std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  const CUDA_MEMCPY2D made = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  check(cuMemcpy2DUnaligned(&made));
}
CUDART_CALL(Needs::context, cudaMemcpy2DAsync, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
            std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  const CUDA_MEMCPY2D made = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  check(cuMemcpy2DAsync(&made, stream));
}
CUDART_CALL(Needs::context, cudaMemcpy3D, const cudaMemcpy3DParms* box) {
  fail_if(box == nullptr, cudaErrorInvalidValue);
  const CUDA_MEMCPY3D made = driver_copy(*box);
  check(cuMemcpy3D(&made));
}
CUDART_CALL(Needs::context, cudaMemcpy3DAsync, const cudaMemcpy3DParms* box, cudaStream_t stream) {
  fail_if(box == nullptr, cudaErrorInvalidValue);
  const CUDA_MEMCPY3D made = driver_copy(*box);
  check(cuMemcpy3DAsync(&made, stream));
}
CUDART_SAME(Needs::context, cudaMemcpyBatchAsync, cuMemcpyBatchAsync)

CUDART_CALL(Needs::context, cudaMemset, void* pointer, int value, std::size_t count) {
  check(cuMemsetD8(address_of(pointer), byte_of(value), count));
}
CUDART_CALL(Needs::context, cudaMemsetAsync, void* pointer, int value, std::size_t count, cudaStream_t stream) {
  check(cuMemsetD8Async(address_of(pointer), byte_of(value), count, stream));
}
CUDART_CALL(Needs::context, cudaMemset2D, void* pointer, std::size_t pitch, int value, std::size_t width,
            std::size_t height) {
  check(cuMemsetD2D8(address_of(pointer), pitch, byte_of(value), width, height));
}
CUDART_CALL(Needs::context, cudaMemset2DAsync, void* pointer, std::size_t pitch, int value, std::size_t width,
            std::size_t height, cudaStream_t stream) {
  check(cuMemsetD2D8Async(address_of(pointer), pitch, byte_of(value), width, height, stream));
}
CUDART_CALL(Needs::context, cudaMemset3D, cudaPitchedPtr box, int value, cudaExtent extent) {
  each_layer(box, extent, [&](CUdeviceptr layer) {
    check(cuMemsetD2D8(layer, box.pitch, byte_of(value), extent.width, extent.height));
  });
}
CUDART_CALL(Needs::context, cudaMemset3DAsync, cudaPitchedPtr box, int value, cudaExtent extent, cudaStream_t stream) {
  each_layer(box, extent, [&](CUdeviceptr layer) {
    check(cuMemsetD2D8Async(layer, box.pitch, byte_of(value), extent.width, extent.height, stream));
  });
}

CUDART_SAME(Needs::context, cudaMallocAsync, cuMemAllocAsync)
CUDART_SAME(Needs::context, cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync)
CUDART_SAME(Needs::context, cudaFreeAsync, cuMemFreeAsync)
CUDART_CALL(Needs::context, cudaMemPrefetchAsync, const void* pointer, std::size_t count, cudaMemLocation location,
            unsigned flags, cudaStream_t stream) {
  check(cuMemPrefetchAsync(address_of(pointer), count, std::bit_cast<CUmemLocation>(location), flags, stream));
}
CUDART_SAME(Needs::context, cudaMemPrefetchBatchAsync, cuMemPrefetchBatchAsync)
CUDART_SAME(Needs::context, cudaMemDiscardBatchAsync, cuMemDiscardBatchAsync)
CUDART_SAME(Needs::context, cudaMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync)
CUDART_SAME(Needs::context, cudaStreamAttachMemAsync, cuStreamAttachMemAsync)

CUDART_SAME(Needs::context, cudaStreamSynchronize, cuStreamSynchronize)
CUDART_SAME(Needs::context, cudaStreamQuery, cuStreamQuery)
CUDART_SAME(Needs::context, cudaStreamWaitEvent, cuStreamWaitEvent)
CUDART_SAME(Needs::context, cudaStreamAddCallback, cuStreamAddCallback)
CUDART_SAME(Needs::context, cudaStreamGetPriority, cuStreamGetPriority)
CUDART_SAME(Needs::context, cudaStreamGetFlags, cuStreamGetFlags)
CUDART_SAME(Needs::context, cudaStreamGetId, cuStreamGetId)
CUDART_SAME(Needs::context, cudaStreamGetDevice, cuStreamGetDevice)
CUDART_SAME(Needs::context, cudaStreamGetDevResource, cuStreamGetDevResource)
CUDART_SAME(Needs::context, cudaStreamSetAttribute, cuStreamSetAttribute)
CUDART_SAME(Needs::context, cudaStreamGetAttribute, cuStreamGetAttribute)
CUDART_SAME(Needs::context, cudaStreamCopyAttributes, cuStreamCopyAttributes)
CUDART_SAME(Needs::context, cudaStreamBeginCapture, cuStreamBeginCapture)
CUDART_SAME(Needs::context, cudaStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph)
CUDART_SAME(Needs::context, cudaStreamEndCapture, cuStreamEndCapture)
CUDART_SAME(Needs::context, cudaStreamIsCapturing, cuStreamIsCapturing)
CUDART_SAME(Needs::context, cudaStreamGetCaptureInfo, cuStreamGetCaptureInfo)
CUDART_SAME(Needs::context, cudaStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies)
CUDART_SAME(Needs::context, cudaEventRecord, cuEventRecord)
CUDART_SAME(Needs::context, cudaEventRecordWithFlags, cuEventRecordWithFlags)
CUDART_SAME(Needs::context, cudaLaunchHostFunc, cuLaunchHostFunc)
CUDART_SAME(Needs::context, cudaLaunchHostFunc_v2, cuLaunchHostFunc_v2)
CUDART_SAME(Needs::context, cudaGraphInstantiateWithParams, cuGraphInstantiateWithParams)
CUDART_SAME(Needs::context, cudaGraphUpload, cuGraphUpload)
CUDART_SAME(Needs::context, cudaGraphLaunch, cuGraphLaunch)

CUDART_CALL(Needs::context, cudaLaunchKernel, const void* function, dim3 grid, dim3 block, void** arguments,
            std::size_t shared, cudaStream_t stream) {
  launch(kernel_of(function), grid, block, arguments, shared, stream);
}
CUDART_CALL(Needs::context, cudaLaunchCooperativeKernel, const void* function, dim3 grid, dim3 block, void** arguments,
            std::size_t shared, cudaStream_t stream) {
  check(cuLaunchCooperativeKernel(reinterpret_cast<CUfunction>(kernel_of(function)), grid.x, grid.y, grid.z, block.x,
                                  block.y, block.z, static_cast<unsigned>(shared), stream, arguments));
}
CUDART_CALL(Needs::context, cudaLaunchKernelExC, const cudaLaunchConfig_t* config, const void* function,
            void** arguments) {
  fail_if(config == nullptr, cudaErrorInvalidValue);
  const CUlaunchConfig made = driver_config(*config);
  check(cuLaunchKernelEx(&made, reinterpret_cast<CUfunction>(kernel_of(function)), arguments, nullptr));
}
// The compiler's code for <<<>>>. The kernel is null where __cudaGetKernel has failed, and its error stays.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define __cudaLaunchKernel __cudaLaunchKernel_ptsz
#endif
extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t);
CUDART_CALL(Needs::context, __cudaLaunchKernel, cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
            std::size_t shared, cudaStream_t stream) {
  if (kernel == nullptr) {
    fail(thread().error == cudaSuccess ? cudaErrorInvalidDeviceFunction : thread().error);
  }
  launch(reinterpret_cast<CUkernel>(kernel), grid, block, arguments, shared, stream);
}

CUDART_CALL(Needs::driver, cudaGetDriverEntryPointByVersion, const char* name, void** function, unsigned version,
            unsigned long long flags, cudaDriverEntryPointQueryResult* answer) {
  CUdriverProcAddressQueryResult found{};
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
  if (flags == cudaEnableDefault) {
    flags = cudaEnablePerThreadDefaultStream;
  }
#endif
  const CUresult result = cuGetProcAddress(name, function, static_cast<int>(version), flags, &found);
  if (answer != nullptr) {
    *answer = static_cast<cudaDriverEntryPointQueryResult>(found);
  }
  // A name that the driver does not have is an answer, which the caller finds there.
  fail_if(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND, static_cast<cudaError_t>(result));
}
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CUDART_CALL(Needs::driver, cudaGetDriverEntryPoint, const char* name, void** function, unsigned long long flags,
            cudaDriverEntryPointQueryResult* answer) {
  body_of_cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, answer);
}
