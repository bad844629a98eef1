// Streams, events and execution contexts.
#include <mutex>
#include <unordered_map>

#include "runtime/runtime.hpp"

using namespace cuda_runtime;

// What a handle of an execution context points at: the primary context of a device, or a green context.
struct cudaExecutionContext_st {
  CUcontext context;
  CUgreenCtx green;
};

namespace {

struct ExecutionContexts {
  std::mutex mutex;
  std::unordered_map<CUcontext, cudaExecutionContext_t> of;
};
ExecutionContexts& execution_contexts() {
  static auto* const all = new ExecutionContexts;
  return *all;
}

cudaExecutionContext_t handle_of(CUcontext context, CUgreenCtx green) {
  ExecutionContexts& all = execution_contexts();
  const std::scoped_lock lock(all.mutex);
  cudaExecutionContext_t& handle = all.of[context];
  if (handle == nullptr) {
    handle = new cudaExecutionContext_st{context, green};
  }
  return handle;
}

const cudaExecutionContext_st& get(cudaExecutionContext_t handle) {
  fail_if(handle == nullptr, cudaErrorInvalidValue);
  return *handle;
}

// Makes a context current for one call.
class Current {
 public:
  explicit Current(CUcontext context) { check(cuCtxPushCurrent(context)); }
  ~Current() {
    CUcontext ignored = nullptr;
    cuCtxPopCurrent(&ignored);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

// The runtime has had these functions since 13.1.
void need_execution_contexts() { need_driver(13010); }

}  // namespace

namespace cuda_runtime {

CUcontext context_of(cudaExecutionContext_t handle, bool null_is_current) {
  if (handle == nullptr && null_is_current) {
    CUcontext current = nullptr;
    check(cuCtxGetCurrent(&current));
    return current;
  }
  return get(handle).context;
}

}  // namespace cuda_runtime

CUDART_CALL(Needs::context, cudaStreamCreate, cudaStream_t* stream) { check(cuStreamCreate(stream, 0)); }
CUDART_SAME(Needs::context, cudaStreamCreateWithFlags, cuStreamCreate)
CUDART_SAME(Needs::context, cudaStreamCreateWithPriority, cuStreamCreateWithPriority)
CUDART_SAME(Needs::context, cudaStreamDestroy, cuStreamDestroy)
CUDART_SAME(Needs::context, cudaThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)

CUDART_CALL(Needs::context, cudaEventCreate, cudaEvent_t* event) { check(cuEventCreate(event, 0)); }
CUDART_SAME(Needs::context, cudaEventCreateWithFlags, cuEventCreate)
CUDART_SAME(Needs::context, cudaEventDestroy, cuEventDestroy)
CUDART_SAME(Needs::context, cudaEventQuery, cuEventQuery)
CUDART_SAME(Needs::context, cudaEventSynchronize, cuEventSynchronize)
CUDART_SAME(Needs::context, cudaEventElapsedTime, cuEventElapsedTime)

CUDART_SAME(Needs::driver, cudaDeviceGetDevResource, cuDeviceGetDevResource)
CUDART_SAME(Needs::driver, cudaDevSmResourceSplitByCount, cuDevSmResourceSplitByCount)
CUDART_SAME(Needs::driver, cudaDevResourceGenerateDesc, cuDevResourceGenerateDesc)
CUDART_CALL(Needs::driver, cudaDevSmResourceSplit, cudaDevResource* groups, unsigned count,
            const cudaDevResource* input, cudaDevResource* rest, unsigned flags,
            cudaDevSmResourceGroupParams* parameters) {
  need_execution_contexts();
  static_assert(sizeof(cudaDevSmResourceGroupParams) == sizeof(CU_DEV_SM_RESOURCE_GROUP_PARAMS));
  check(cuDevSmResourceSplit(reinterpret_cast<CUdevResource*>(groups), count,
                             reinterpret_cast<const CUdevResource*>(input), reinterpret_cast<CUdevResource*>(rest),
                             flags, reinterpret_cast<CU_DEV_SM_RESOURCE_GROUP_PARAMS*>(parameters)));
}

CUDART_CALL(Needs::driver, cudaDeviceGetExecutionCtx, cudaExecutionContext_t* out, int device) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  *out = handle_of(primary_context(device), nullptr);
}
CUDART_CALL(Needs::driver, cudaGreenCtxCreate, cudaExecutionContext_t* out, cudaDevResourceDesc_t descriptor,
            int device, unsigned flags) {
  fail_if(out == nullptr || flags != 0, cudaErrorInvalidValue);
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  check(cuGreenCtxCreate(&green, reinterpret_cast<CUdevResourceDesc>(descriptor), device, CU_GREEN_CTX_DEFAULT_STREAM));
  check(cuCtxFromGreenCtx(&context, green));
  *out = handle_of(context, green);
}
CUDART_CALL(Needs::driver, cudaExecutionCtxDestroy, cudaExecutionContext_t handle) {
  const cudaExecutionContext_st context = get(handle);
  fail_if(context.green == nullptr, cudaErrorInvalidValue);
  check(cuGreenCtxDestroy(context.green));
  ExecutionContexts& all = execution_contexts();
  const std::scoped_lock lock(all.mutex);
  all.of.erase(context.context);
  delete handle;
}
CUDART_CALL(Needs::driver, cudaExecutionCtxGetDevResource, cudaExecutionContext_t handle, cudaDevResource* resource,
            cudaDevResourceType type) {
  check(cuCtxGetDevResource(context_of(handle), reinterpret_cast<CUdevResource*>(resource),
                            static_cast<CUdevResourceType>(type)));
}
CUDART_CALL(Needs::driver, cudaExecutionCtxGetDevice, int* device, cudaExecutionContext_t handle) {
  const Current current(context_of(handle));
  check(cuCtxGetDevice(device));
}
CUDART_CALL(Needs::driver, cudaExecutionCtxGetId, cudaExecutionContext_t handle, unsigned long long* id) {
  check(cuCtxGetId(context_of(handle), id));
}
CUDART_CALL(Needs::driver, cudaExecutionCtxStreamCreate, cudaStream_t* stream, cudaExecutionContext_t handle,
            unsigned flags, int priority) {
  const cudaExecutionContext_st& context = get(handle);
  if (context.green != nullptr) {
    return check(cuGreenCtxStreamCreate(stream, context.green, flags | CU_STREAM_NON_BLOCKING, priority));
  }
  const Current current(context.context);
  check(cuStreamCreateWithPriority(stream, flags, priority));
}
CUDART_CALL(Needs::driver, cudaExecutionCtxSynchronize, cudaExecutionContext_t handle) {
  const Current current(context_of(handle));
  check(cuCtxSynchronize());
}
CUDART_CALL(Needs::driver, cudaExecutionCtxRecordEvent, cudaExecutionContext_t handle, cudaEvent_t event) {
  check(cuCtxRecordEvent(context_of(handle), event));
}
CUDART_CALL(Needs::driver, cudaExecutionCtxWaitEvent, cudaExecutionContext_t handle, cudaEvent_t event) {
  check(cuCtxWaitEvent(context_of(handle), event));
}
