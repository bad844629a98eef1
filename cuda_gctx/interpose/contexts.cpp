// Functions in which the primary context and the part's context stand for each other, and the SM counts of the part.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "default_streams.hpp"
#include "part.hpp"
#include "real_driver.hpp"
#include "reports.hpp"
#include "verification.hpp"

using namespace gctx::interpose;

namespace {

// Returns whether code at an address belongs to cuBLAS. cuBLAS leaves tiles of products unwritten if it reads another
// SM count than that of the card (docs/evidence/2026-11-28-green-contexts-and-libraries.md).
bool needs_true_count(const void* caller) {
  struct Answer {
    const void* caller = nullptr;
    bool is_cublas = false;
  };
  // Set by --sm-count card.
  static const bool is_for_all = std::getenv("CUDA_GCTX_SM_COUNT") != nullptr;
  thread_local Answer answers[16];
  Answer& answer = answers[(reinterpret_cast<std::uintptr_t>(caller) >> 4) % 16];
  if (answer.caller != caller) {
    answer = {caller, std::strncmp(caller_of(caller), "libcublas", 9) == 0};
  }
  return is_for_all || answer.is_cublas;
}

// The context that the program knows in the place of the primary context of a device with a part.
CUcontext known_context(CUcontext context) {
  return context != nullptr && part_of(context) == nullptr ? inside(context) : context;
}

template <typename Create>
CUresult create_foreign(CUcontext* context, CUdevice device, const void* caller, const Create& create) {
  if (!has_part()) {
    return create();
  }
  const char* const library = caller_of(caller);
  if (is_strict()) {
    report("\"event\": \"escape\", \"device\": %d, \"what\": \"cuCtxCreate by %s, refused\"", device, library);
    tell("%s called cuCtxCreate, whose context would use all SMs: --strict refuses it", library);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const CUresult result = create();
  if (result == CUDA_SUCCESS) {
    add_foreign(*context, nullptr);
    report("\"event\": \"escape\", \"device\": %d, \"what\": \"cuCtxCreate by %s\"", device, library);
  }
  return result;
}

// Notes the end of a context of the program, which may end its streams.
void end_foreign(CUcontext context) {
  drop_foreign(context);
  forget_verified_streams();
}

// Scales the grid that fills the device to the SMs of the part.
CUresult scale_grid(CUresult result, int* minGridSize) {
  const Part* const part = current_part();
  if (result == CUDA_SUCCESS && part != nullptr && minGridSize != nullptr &&
      *minGridSize % static_cast<int>(part->device_sm_count) == 0) {
    *minGridSize = *minGridSize / static_cast<int>(part->device_sm_count) * static_cast<int>(part->sm_count.load());
  }
  return result;
}

template <typename GetContext>
CUresult context_of_stream(CUstream stream, bool of_thread, CUcontext* context, const GetContext& get) {
  const CUresult result = get(actual_stream(stream, of_thread));
  if (result == CUDA_SUCCESS && context != nullptr) {
    *context = known_context(*context);
  }
  return result;
}

// Hides the green context of a part, which the program did not create.
void hide_green(CUgreenCtx* green) {
  CUcontext context = nullptr;
  if (green != nullptr && *green != nullptr && real.cuCtxFromGreenCtx(&context, *green) == CUDA_SUCCESS &&
      part_of(context) != nullptr) {
    *green = nullptr;
  }
}

template <typename Call>
CUresult on_primary(CUcontext context, const Call& call) {
  CUcontext popped = nullptr;
  CUresult result = real.cuCtxPushCurrent_v2(context);
  if (result == CUDA_SUCCESS) {
    result = call();
    real.cuCtxPopCurrent_v2(&popped);
  }
  return result;
}

// The device whose part was current on this thread at a reset. A primary context would stay current.
thread_local CUdevice left_current = -1;

CUresult reset(CUdevice device, decltype(&::cuDevicePrimaryCtxReset_v2) call) {
  const Part* const current = current_part();
  const bool is_current = current != nullptr && current->device == device;
  if (Part* const part = opened_part(device); part != nullptr) {
    // A reset waits for work, which the end of a green context does not.
    on_primary(part->primary.load(), [] { return real.cuCtxSynchronize(); });
    forget_streams(*part);
    forget_probe(*part);
    close_part(device);
  }
  const CUresult result = call(device);
  if (is_current && real.cuCtxSetCurrent(nullptr) == CUDA_SUCCESS) {
    left_current = device;
  }
  return result;
}

pid_t opener = 0;  // the process that opened the library; its forked children have the library as well

// Reported at once, because a process may be killed before its first use of a device.
__attribute__((constructor)) void report_begin() {
  opener = getpid();
  if (has_part()) {
    report("\"event\": \"open\", \"part\": \"%s\"", part_name());
  }
}

__attribute__((destructor)) void report_end() {
  if (has_part() && (getpid() == opener || context_count() > 0)) {
    report("\"event\": \"end\", \"part\": \"%s\", \"streams\": %lu, \"contexts\": %lu", part_name(), stream_count(),
           context_count());
  }
}

}  // namespace

INTERPOSE_API CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  const CUresult retained = real.cuDevicePrimaryCtxRetain(pctx, dev);
  if (retained != CUDA_SUCCESS || !has_part()) {
    return retained;
  }
  CUresult result = CUDA_SUCCESS;
  const Part* const part = open_part(dev, result);
  if (part == nullptr) {
    real.cuDevicePrimaryCtxRelease_v2(dev);
    return result;
  }
  *pctx = part->context.load();
  CUcontext current = nullptr;
  if (left_current == dev && real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == nullptr) {
    real.cuCtxSetCurrent(*pctx);
  }
  left_current = -1;
  return CUDA_SUCCESS;
}

INTERPOSE_API CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return reset(dev, real.cuDevicePrimaryCtxReset); }
INTERPOSE_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return reset(dev, real.cuDevicePrimaryCtxReset_v2); }

INTERPOSE_API CUresult cuCtxSetCurrent(CUcontext ctx) { return real.cuCtxSetCurrent(inside(ctx)); }
INTERPOSE_API CUresult cuCtxPushCurrent(CUcontext ctx) { return real.cuCtxPushCurrent(inside(ctx)); }
INTERPOSE_API CUresult cuCtxPushCurrent_v2(CUcontext ctx) { return real.cuCtxPushCurrent_v2(inside(ctx)); }

INTERPOSE_API CUresult cuCtxSynchronize() {
  const Part* const part = current_part();
  return part == nullptr ? real.cuCtxSynchronize()
                         : on_primary(part->primary.load(), [] { return real.cuCtxSynchronize(); });
}
INTERPOSE_API CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  const Part* const part = ctx == nullptr ? current_part() : part_of(ctx);
  return real.cuCtxSynchronize_v2(part != nullptr ? part->primary.load() : ctx);
}
INTERPOSE_API CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
  return real.cuCtxRecordEvent(outside(hCtx), hEvent);
}
INTERPOSE_API CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
  return real.cuCtxWaitEvent(outside(hCtx), hEvent);
}

// A program may not destroy the primary context: the driver answers for the part as it does for the primary context.
INTERPOSE_API CUresult cuCtxDestroy(CUcontext ctx) {
  end_foreign(ctx);
  return real.cuCtxDestroy(outside(ctx));
}
INTERPOSE_API CUresult cuCtxDestroy_v2(CUcontext ctx) {
  end_foreign(ctx);
  return real.cuCtxDestroy_v2(outside(ctx));
}
INTERPOSE_API CUresult cuCtxDetach(CUcontext ctx) { return real.cuCtxDetach(outside(ctx)); }

INTERPOSE_API CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return create_foreign(pctx, dev, __builtin_return_address(0), [&] { return real.cuCtxCreate(pctx, flags, dev); });
}
INTERPOSE_API CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return create_foreign(pctx, dev, __builtin_return_address(0), [&] { return real.cuCtxCreate_v2(pctx, flags, dev); });
}
INTERPOSE_API CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                                      unsigned int flags, CUdevice dev) {
  return create_foreign(pctx, dev, __builtin_return_address(0),
                        [&] { return real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev); });
}
INTERPOSE_API CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                                      CUdevice dev) {
  return create_foreign(pctx, dev, __builtin_return_address(0),
                        [&] { return real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev); });
}

// Resources come from the part, so that the context is inside of it.
INTERPOSE_API CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  const CUresult result = real.cuGreenCtxCreate(phCtx, desc, dev, flags);
  CUcontext context = nullptr;
  if (result == CUDA_SUCCESS && has_part() && real.cuCtxFromGreenCtx(&context, *phCtx) == CUDA_SUCCESS) {
    add_foreign(context, opened_part(dev));
  }
  return result;
}

INTERPOSE_API CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                              int priority) {
  const CUresult result = real.cuGreenCtxStreamCreate(phStream, greenCtx, flags, priority);
  if (result == CUDA_SUCCESS) {
    add_stream(*phStream, flags);
  }
  return result;
}

INTERPOSE_API CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  CUcontext context = nullptr;
  if (has_part() && real.cuCtxFromGreenCtx(&context, hCtx) == CUDA_SUCCESS) {
    end_foreign(context);
  }
  return real.cuGreenCtxDestroy(hCtx);
}

INTERPOSE_API CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  const CUresult result = real.cuDeviceGetAttribute(pi, attrib, dev);
  if (result == CUDA_SUCCESS && attrib == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && has_part() &&
      !needs_true_count(__builtin_return_address(0))) {
    if (const unsigned count = part_sm_count(dev); count != 0) {
      *pi = static_cast<int>(count);
    }
  }
  return result;
}

// The resource of the part can be split: what the program splits itself stays inside.
INTERPOSE_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  CUresult result = real.cuDeviceGetDevResource(device, resource, type);
  if (result == CUDA_SUCCESS && type == CU_DEV_RESOURCE_TYPE_SM && has_part()) {
    if (const Part* const part = open_part(device, result); part != nullptr) {
      *resource = part->resource;
    }
  }
  return result;
}

INTERPOSE_API CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                        CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                        size_t dynamicSMemSize, int blockSizeLimit) {
  return scale_grid(real.cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                          dynamicSMemSize, blockSizeLimit),
                    minGridSize);
}
INTERPOSE_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                                 CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                                 size_t dynamicSMemSize, int blockSizeLimit,
                                                                 unsigned int flags) {
  return scale_grid(
      real.cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, flags),
      minGridSize);
}

INTERPOSE_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  const CUresult result = real.cuPointerGetAttribute(data, attribute, ptr);
  if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_CONTEXT && has_part()) {
    auto* const context = static_cast<CUcontext*>(data);
    *context = known_context(*context);
  }
  return result;
}

INTERPOSE_API CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                              CUdeviceptr ptr) {
  const CUresult result = real.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
  for (unsigned i = 0; result == CUDA_SUCCESS && has_part() && i < numAttributes; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT) {
      auto* const context = static_cast<CUcontext*>(data[i]);
      *context = known_context(*context);
    }
  }
  return result;
}

INTERPOSE_API CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  return context_of_stream(hStream, false, pctx, [&](CUstream stream) { return real.cuStreamGetCtx(stream, pctx); });
}
INTERPOSE_API CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext* pctx) {
  return context_of_stream(hStream, true, pctx, [&](CUstream stream) { return real.cuStreamGetCtx(stream, pctx); });
}
INTERPOSE_API CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  const CUresult result = context_of_stream(
      hStream, false, pCtx, [&](CUstream stream) { return real.cuStreamGetCtx_v2(stream, pCtx, pGreenCtx); });
  hide_green(result == CUDA_SUCCESS ? pGreenCtx : nullptr);
  return result;
}
INTERPOSE_API CUresult cuStreamGetCtx_v2_ptsz(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  const CUresult result = context_of_stream(
      hStream, true, pCtx, [&](CUstream stream) { return real.cuStreamGetCtx_v2(stream, pCtx, pGreenCtx); });
  hide_green(result == CUDA_SUCCESS ? pGreenCtx : nullptr);
  return result;
}
INTERPOSE_API CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  const CUresult result = real.cuStreamGetGreenCtx(actual_stream(hStream, false), phCtx);
  hide_green(result == CUDA_SUCCESS ? phCtx : nullptr);
  return result;
}
