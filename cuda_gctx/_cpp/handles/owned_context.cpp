#include "handles/owned_context.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "handles/capture.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

// An event for one question.
class ShortEvent {
 public:
  ShortEvent(const Driver& driver, CUcontext context) : relaxed_(driver), driver_(driver) {
    CurrentScope scope(driver, context);
    GCTX_CALL(driver, cuEventCreate, &event_, SHOWN_EVENT);
  }
  ~ShortEvent() { driver_.note(driver_.cuEventDestroy(event_), "cuEventDestroy"); }
  ShortEvent(const ShortEvent&) = delete;
  ShortEvent& operator=(const ShortEvent&) = delete;

  // All work of a green context of ours, on streams that others have made or that are gone as well. False if a capture
  // was left open on one of them: the driver then answers nothing about the context.
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
  const RelaxedThread relaxed_;  // to ask and to wait would end a capture of this thread
  const Driver& driver_;
  CUevent event_ = nullptr;
};

bool has_capture(OwnedContext& context) {
  try {
    return context.streams.has_capture(context.runtime.driver());
  } catch (const Error&) {
    return true;  // one that cannot be asked stays where it is
  }
}

}  // namespace

GreenCtxBox::~GreenCtxBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  claim(nullptr);
  registry.drop(*this);  // before the driver can give the address to a new one
  if (runtime_.is_usable()) {
    runtime_.driver().note(runtime_.driver().cuGreenCtxDestroy(handle_), "cuGreenCtxDestroy");
    live_contexts(runtime_).count_destroyed(device_);
  }
}

void GreenCtxBox::take_context(CUcontext context) noexcept {
  context_ = context;
  registry.put(*this);
}

void GreenCtxBox::claim(std::shared_ptr<Claim> claim) noexcept {
  claim_.swap(claim);
  if (claim) {
    claim->release();
  }
}

OwnedContext::~OwnedContext() {
  if (!is_forked()) {
    destroy_streams();
  }
  green.reset();  // before the context whose queues it shares
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
  if (!green || green->context() == nullptr || !runtime.is_usable()) {
    return !runtime.is_set_aside();
  }
  try {
    const ShortEvent event(runtime.driver(), handle);
    return event.record(*this) && event.is_done();
  } catch (const std::exception& error) {
    note_failure(error.what());
    return false;
  }
}

void OwnedContext::wait() const noexcept {
  try {
    if (green) {
      const ShortEvent event(runtime.driver(), handle);
      if (event.record(*this)) {
        event.wait();
      }
    }
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

void OwnedContext::destroy_streams() noexcept {
  if (streams.has_own() && runtime.is_usable() && is_there()) {
    streams.destroy_own(runtime.driver());
  }
}

// ---- those that nobody uses

std::atomic<std::uint64_t> RetiredContexts::limit_{default_limit};

void RetiredContexts::retire(OwnedContexts context, bool is_pinned) noexcept {
  OwnedContext& one = context.front();
  if (one.green) {
    one.green->claim(nullptr);  // its SMs are free from here on
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_pinned && !is_closed_ && one.has_anything()) {
      pinned_.splice(pinned_.begin(), context);
      return;
    }
    if (!one.is_done()) {
      ending_.splice(ending_.end(), context);
    }
  }
  context.clear();
  runtime_.end_now_or_later([this] { collect(); });
}

void RetiredContexts::collect() noexcept {
  OwnedContexts done;  // destroyed without the lock
  int asked = 0;
  const std::lock_guard lock(mutex_);
  for (auto next = ending_.begin(); next != ending_.end() && asked != most_asked;) {
    const auto one = next++;
    if (one->is_done()) {
      done.splice(done.end(), ending_, one);
    } else {
      ++asked;
    }
  }
}

void RetiredContexts::wait(int device, CUcontext primary) {
  std::optional<ShortEvent> event;
  for (;;) {
    OwnedContexts done;
    std::uint64_t id = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto first = std::find_if(ending_.begin(), ending_.end(), [&](const OwnedContext& context) {
        if (context.device != device || !context.green) {
          return false;
        }
        if (!event) {
          event.emplace(runtime_.driver(), primary);
        }
        return event->record(context);
      });
      if (first == ending_.end()) {
        return;
      }
      id = first->id;
    }
    event->wait();
    const std::lock_guard lock(mutex_);
    const auto ended = std::find_if(ending_.begin(), ending_.end(), [&](const auto& one) { return one.id == id; });
    if (ended != ending_.end()) {
      done.splice(done.end(), ending_, ended);
    }
  }
}

void RetiredContexts::close() noexcept {
  for (OwnedContexts left;; left.clear()) {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
      left.swap(ending_);
      left.splice(left.end(), pinned_);
    }
    if (left.empty()) {
      return;
    }
    for (const OwnedContext& context : left) {
      context.wait();
    }
  }
}

void RetiredContexts::demand_and_count(int device, std::uint64_t limit) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& seen = seen_[static_cast<std::size_t>(device)];
  if (seen >= limit) {
    fail_state("frameworks have seen " + std::to_string(seen) + " green contexts of device " + std::to_string(device) +
               ", which is the limit, and none of them is ever destroyed (about " + std::to_string(4 * seen) +
               " MiB with driver 13.0): use fewer layouts, raise store.pinned_limit, or, where frameworks have "
               "finished with those that are closed, call store.drop(pinned=True)");
  }
  ++seen;
}

OwnedContexts RetiredContexts::take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue) {
  OwnedContexts taken;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(pinned_.begin(), pinned_.end(), [&](OwnedContext& context) {
    return context.device == device && context.is_made_of(sms, workqueue) && !has_capture(context);
  });
  if (found != pinned_.end()) {
    taken.splice(taken.end(), pinned_, found);
  }
  return taken;
}

void RetiredContexts::add_to(ContextCounts& counts, int device) const {
  const std::lock_guard lock(mutex_);
  counts.pinned = seen_[static_cast<std::size_t>(device)];
  for (const OwnedContext& context : pinned_) {
    counts.waiting += context.device == device && context.green ? 1 : 0;
  }
}

void RetiredContexts::drop_pinned() noexcept {
  OwnedContexts dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(pinned_);
    for (const OwnedContext& context : dropped) {
      seen_[static_cast<std::size_t>(context.device)] -= context.green ? 1 : 0;
    }
  }
  while (!dropped.empty()) {
    OwnedContexts one;
    one.splice(one.end(), dropped, dropped.begin());
    retire(std::move(one), false);
  }
}

}  // namespace gctx
