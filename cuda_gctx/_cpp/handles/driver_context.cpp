#include "handles/driver_context.hpp"

#include <exception>
#include <utility>

#include "handles/capture.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

// An event that lives for one question.
class ShortEvent {
 public:
  ShortEvent(const Driver& driver, CUcontext context) : relaxed_(driver), driver_(driver) {
    CurrentScope scope(driver, context);
    GCTX_CALL(driver, cuEventCreate, &event_, SHOWN_EVENT);
  }
  ~ShortEvent() { driver_.note(driver_.cuEventDestroy(event_), "cuEventDestroy"); }
  ShortEvent(const ShortEvent&) = delete;
  ShortEvent& operator=(const ShortEvent&) = delete;

  // Records all work of a green context, on streams of other code and on destroyed streams too. Returns false if one of
  // its streams captures: the driver then answers nothing about the context.
  bool record(CUgreenCtx green) const {
    const CUresult result = driver_.cuGreenCtxRecordEvent(green, event_);
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      driver_.check(result, "cuGreenCtxRecordEvent");
    }
    return result == CUDA_SUCCESS;
  }
  void wait() const { GCTX_CALL(driver_, cuEventSynchronize, event_); }
  bool is_done() const { return driver_.check_done(driver_.cuEventQuery(event_), "cuEventQuery"); }

 private:
  const RelaxedThread relaxed_;  // the question would end a capture of this thread
  const Driver& driver_;
  CUevent event_ = nullptr;
};

}  // namespace

void DriverContext::destroy() noexcept {
  if (is_forked() || std::exchange(is_destroyed_, true)) {
    return;
  }
  if (handle_ != nullptr) {
    registry.drop(*this);  // before the driver can give the address to a new context
  }
  if (runtime_.is_usable()) {
    const Driver& driver = runtime_.driver();
    if (streams_.has_own() && is_there()) {
      streams_.destroy_own(driver);
    }
    if (owned_green_ != nullptr) {
      driver.note(driver.cuGreenCtxDestroy(owned_green_), "cuGreenCtxDestroy");
    } else if (kind_ == ContextKind::primary && handle_ != nullptr) {
      driver.note(driver.cuDevicePrimaryCtxRelease(runtime_.device(device_)), "cuDevicePrimaryCtxRelease");
    }
  }
  if (queues_of) {
    queues_of->remove_child();
    queues_of.reset();
  }
  primary.reset();
}

void DriverContext::take(CUcontext handle, CUgreenCtx green_handle) {
  unsigned long long id = 0;
  handle_ = handle;
  green_handle_ = green_handle;
  GCTX_CALL(runtime_.driver(), cuCtxGetId, handle, &id);
  id_ = id;
}

// Asks for a handle whose context may be gone. The driver answers CUDA_ERROR_CONTEXT_IS_DESTROYED, or the id of a newer
// context at the same address (seen on an H100 with driver 13.0, for primary contexts after a reset and for ordinary
// ones).
CUresult DriverContext::ask_whether_there() const noexcept {
  if (owned_green_ != nullptr) {
    return CUDA_SUCCESS;
  }
  unsigned long long now = 0;
  const CUresult answer = runtime_.driver().cuCtxGetId(handle_, &now);
  const bool is_other = answer == CUDA_ERROR_INVALID_CONTEXT || (answer == CUDA_SUCCESS && now != id_);
  return is_other ? CUDA_ERROR_CONTEXT_IS_DESTROYED : answer;
}

bool DriverContext::is_idle() noexcept {
  if (!runtime_.is_usable()) {
    return false;
  }
  try {
    if (streams_.may_capture() && streams_.has_capture(runtime_.driver())) {
      return false;
    }
    const ShortEvent event(runtime_.driver(), handle_);
    return event.record(owned_green_) && event.is_done();
  } catch (const std::exception& error) {
    note_failure(error.what());
    return false;
  }
}

void DriverContext::wait() noexcept {
  try {
    const ShortEvent event(runtime_.driver(), handle_);
    if (event.record(owned_green_)) {
      event.wait();
    }
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

}  // namespace gctx
