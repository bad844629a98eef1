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

std::uint64_t capture_of(const Driver& driver, CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  GCTX_CALL(driver, cuStreamGetCaptureInfo_v3, handle, &status, &id, nullptr, nullptr, nullptr, nullptr);
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

}  // namespace gctx
