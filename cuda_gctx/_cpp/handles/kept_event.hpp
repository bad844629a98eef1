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
class KeptEvent {
 public:
  class Use {
   public:
    explicit Use(KeptEvent& kept) noexcept
        : kept_(kept.is_in_use_.exchange(true, std::memory_order_acquire) ? nullptr : &kept) {}
    ~Use() {
      if (kept_ != nullptr) {
        kept_->is_in_use_.store(false, std::memory_order_release);
      }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    bool is_taken() const noexcept { return kept_ != nullptr; }  // else another call uses it now
    template <typename Make>
    const Event& event(Make&& make) const {
      if (!kept_->event_) [[unlikely]] {
        kept_->event_ = make();
      }
      return kept_->event_;
    }
    bool is_made() const noexcept { return kept_ == nullptr || kept_->event_ != Event{}; }
    Event release() const noexcept { return kept_ != nullptr ? std::exchange(kept_->event_, Event{}) : Event{}; }

   private:
    KeptEvent* const kept_;
  };

 private:
  std::atomic<bool> is_in_use_{false};
  Event event_{};
};

}  // namespace gctx
