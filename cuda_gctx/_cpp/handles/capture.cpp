#include "handles/capture.hpp"

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

}  // namespace gctx
