// Which streams are capturing a graph. Much that is harmless otherwise invalidates a capture: it is refused instead.
#pragma once

#include <cuda.h>

#include "driver/driver.hpp"

namespace gctx {

inline bool is_capturing(const Driver& driver, CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult answer = driver.cuStreamIsCapturing(handle, &status);
  // What the legacy stream answers while a stream that waits for it is capturing; the capture goes on unharmed.
  if (answer == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return true;
  }
  driver.check(answer, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// While it is there, what this thread asks about streams and events, frees and destroys ends no capture of its own, and
// no global capture of another thread.
class RelaxedThread {
 public:
  explicit RelaxedThread(const Driver& driver) noexcept : driver_(driver) { exchange(); }
  ~RelaxedThread() { exchange(); }
  RelaxedThread(const RelaxedThread&) = delete;
  RelaxedThread& operator=(const RelaxedThread&) = delete;

 private:
  void exchange() noexcept {
    driver_.note(driver_.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
  }

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace gctx
