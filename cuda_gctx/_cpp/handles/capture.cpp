#include "handles/capture.hpp"

#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"

namespace gctx {

bool is_capturing(const Driver& driver, CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult answer = driver.cuStreamIsCapturing(handle, &status);
  // What the legacy stream answers while a stream that waits for it is capturing; the capture goes on unharmed.
  if (answer == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return true;
  }
  driver.check(answer, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::uint64_t capture_of(const Driver& driver, CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  GCTX_CALL(driver, cuStreamGetCaptureInfo_v3, handle, &status, &id, nullptr, nullptr, nullptr, nullptr);
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

std::string capturing_stream(Runtime& runtime, int device) {
  for (const ContextHandle& context : runtime.contexts().all()) {
    if (context->device() == device && context->is_there() && context->has_capture()) {
      return "a stream of " + context->label();
    }
  }
  CurrentScope scope(*runtime.primary(device));
  const bool is_legacy_capturing = is_capturing(runtime.driver(), CU_STREAM_LEGACY);
  scope.leave();
  return is_legacy_capturing ? "a blocking stream of the primary context" : "";
}

void demand_no_capture_on(Runtime& runtime, int device) {
  if (const std::string capturing = capturing_stream(runtime, device); !capturing.empty()) {
    fail(ErrorKind::capturing,
         capturing + " is capturing a graph: contexts cannot be made meanwhile; make them before that");
  }
}

}  // namespace gctx
