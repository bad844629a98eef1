// The event of what others wait for, recorded anew for each wait.
#pragma once

#include <cuda.h>

#include <atomic>
#include <utility>

namespace gctx {

// Of an event behind which waits of the primary context see the work of a green one: those without BLOCKING_SYNC hide
// it (see show_to_device).
inline constexpr unsigned SHOWN_EVENT = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC;

// One call at a time uses it: if several did, a capture that begins between a record and a wait of one call would take
// in the stream that waits in another one. `Event`: a handle or a box, null until it is made.
template <typename Event>
class ReusableEvent {
 public:
  class Use {
   public:
    explicit Use(ReusableEvent& reused) noexcept
        : reused_(reused.is_in_use_.exchange(true, std::memory_order_acquire) ? nullptr : &reused) {}
    ~Use() {
      if (reused_ != nullptr) {
        reused_->is_in_use_.store(false, std::memory_order_release);
      }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    bool is_taken() const noexcept { return reused_ != nullptr; }  // else another call uses it now
    template <typename Make>
    const Event& event(Make&& make) const {
      if (!reused_->event_) [[unlikely]] {
        reused_->event_ = make();
      }
      return reused_->event_;
    }
    bool is_made() const noexcept { return reused_ == nullptr || reused_->event_ != Event{}; }
    Event release() const noexcept { return reused_ != nullptr ? std::exchange(reused_->event_, Event{}) : Event{}; }

   private:
    ReusableEvent* const reused_;
  };

 private:
  std::atomic<bool> is_in_use_{false};
  Event event_{};
};

}  // namespace gctx
