#include "handles/owned_context.hpp"

#include <exception>

#include "handles/capture.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

// An event for one question.
class ShortEvent {
 public:
  ShortEvent(const Driver& driver, CUcontext context) : driver_(driver) {
    CurrentScope scope(driver, context);
    GCTX_CALL(driver, cuEventCreate, &event_, SHOWN_EVENT);
  }
  ~ShortEvent() { driver_.note(driver_.cuEventDestroy(event_), "cuEventDestroy"); }
  ShortEvent(const ShortEvent&) = delete;
  ShortEvent& operator=(const ShortEvent&) = delete;

  // All work of a context, on streams that others have made or that are gone as well. False if a capture was left open
  // on one of them: the driver then answers nothing about the context.
  bool record(const OwnedContext& context) const {
    const CUresult result = driver_.cuGreenCtxRecordEvent(context.green->handle(), event_);
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      driver_.check(result, "cuGreenCtxRecordEvent");
    }
    return result == CUDA_SUCCESS;
  }
  bool is_done() const { return driver_.check_done(driver_.cuEventQuery(event_), "cuEventQuery"); }
  void wait() const { GCTX_CALL(driver_, cuEventSynchronize, event_); }

 private:
  const Driver& driver_;
  CUevent event_ = nullptr;
};

}  // namespace

OwnedContextPtr OwnedContext::make(Runtime& runtime, int ordinal) {
  EndingContexts& ending = ending_contexts(runtime);
  ending.collect();
  return {new OwnedContext(runtime, ordinal),
          [&ending](OwnedContext* context) { ending.end(std::unique_ptr<OwnedContext>(context)); }};
}

OwnedContext::~OwnedContext() {
  if (is_forked()) {
    return;
  }
  destroy_streams();
  green.reset();
}

// Asked for a handle whose context is gone, too: the driver answers CUDA_ERROR_CONTEXT_IS_DESTROYED, or the id of a
// newer one at the same address (seen on an H100 with driver 13.0, of primary contexts after a reset and of ordinary
// ones).
CUresult OwnedContext::ask_whether_there() const noexcept {
  if (green) {
    return CUDA_SUCCESS;
  }
  unsigned long long now = 0;
  const CUresult answer = runtime.driver().cuCtxGetId(handle, &now);
  const bool is_other = answer == CUDA_ERROR_INVALID_CONTEXT || (answer == CUDA_SUCCESS && now != id);
  return is_other ? CUDA_ERROR_CONTEXT_IS_DESTROYED : answer;
}

bool OwnedContext::is_made_of(const SmResource& sms, const std::optional<CUdevResource>& wanted) const noexcept {
  const bool same_queues = workqueue.has_value() == wanted.has_value() && (!wanted || byte_equal(*workqueue, *wanted));
  return green && given && same_queues && same_sms(*given, sms);
}

bool OwnedContext::is_done() const noexcept {
  const RelaxedThread relaxed(runtime.driver());
  try {
    const ShortEvent event(runtime.driver(), handle);
    return event.record(*this) && event.is_done();
  } catch (const std::exception& error) {
    note_failure(error.what());
    return false;
  }
}

void OwnedContext::destroy_streams() noexcept {
  if (streams.has_own() && runtime.is_usable() && is_there()) {
    streams.destroy_own(runtime.driver());
  }
}

// ---- those that go on

template <typename Is>
EndingContexts::Owned* EndingContexts::find(Is&& is_meant) {
  Owned* at = &first_;
  while (*at && !is_meant(**at)) {
    at = &(*at)->next_ending_;
  }
  return at;
}

EndingContexts::Owned EndingContexts::take(Owned& at) noexcept {
  Owned taken = std::move(at);
  at = std::move(taken->next_ending_);
  return taken;
}

void EndingContexts::end(Owned context) noexcept {
  if (!context->green || context->green->context() == nullptr || is_forked() || !runtime_.is_usable()) {
    return;
  }
  context->green->claim(nullptr);  // its SMs are free from here on
  if (!context->is_done()) {
    const std::lock_guard lock(mutex_);
    *find([](const OwnedContext&) { return false; }) = std::move(context);
  }
  context.reset();
  collect();
}

void EndingContexts::collect() noexcept {
  Owned done;  // destroyed without the lock
  {
    int asked = 0;
    const std::lock_guard lock(mutex_);
    for (Owned* at = &first_; *at && asked != most_asked;) {
      if ((*at)->is_done()) {
        Owned one = take(*at);
        one->next_ending_ = std::move(done);
        done = std::move(one);
      } else {
        at = &(*at)->next_ending_;
        ++asked;
      }
    }
  }
  while (done) {
    take(done);
  }
}

void EndingContexts::wait(int device, CUcontext primary) {
  std::optional<ShortEvent> event;
  for (;;) {
    std::uint64_t id = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto is_of_device = [&](const OwnedContext& context) { return context.device == device; };
      if (!*find(is_of_device)) {
        return;
      }
      if (!event) {
        event.emplace(runtime_.driver(), primary);
      }
      const Owned& first = *find([&](const OwnedContext& one) { return is_of_device(one) && event->record(one); });
      if (!first) {
        return;
      }
      id = first->id;
    }
    event->wait();
    Owned done;
    const std::lock_guard lock(mutex_);
    if (Owned& at = *find([&](const OwnedContext& context) { return context.id == id; })) {
      done = take(at);
    }
  }
}

void EndingContexts::close() noexcept {
  for (;;) {
    Owned context;
    {
      const std::lock_guard lock(mutex_);
      if (!first_) {
        return;
      }
      context = take(first_);
    }
    try {
      const ShortEvent event(runtime_.driver(), context->handle);
      if (event.record(*context)) {
        event.wait();
      }
    } catch (const std::exception& error) {
      note_failure(error.what());
    }
  }
}

}  // namespace gctx
