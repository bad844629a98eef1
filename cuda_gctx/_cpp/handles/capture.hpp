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

// Checks a call that is made after the question whether a stream concerned captures. Other code can begin a capture in
// between, and the driver then refuses the call.
inline void check_no_capture_began(const Driver& driver, CUresult result, const char* call) {
  if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
      [[unlikely]] {
    fail(ErrorKind::capturing,
         "a stream began to capture a graph in the middle of this call: end the capture, and call "
         "again (" +
             driver.describe(result, call) + ")");
  }
  driver.check(result, call);
}
#define GCTX_CALL_WITHOUT_CAPTURE(driver, function, ...) \
  check_no_capture_began(driver, (driver).function(__VA_ARGS__), #function)

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
