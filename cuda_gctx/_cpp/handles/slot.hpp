// The place of a handle in an object of a language binding, which one thread may close while others use it: what a call
// works on stays until the call has ended, and closing takes the handle away from later ones.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "driver/error.hpp"

namespace gctx {

// A call gives up the lock of its language, so the slot counts the calls that work on its handle, and what is taken
// meanwhile is let go by the last of them. The object of the slot outlives them. A box says its word for messages.
// Not std::atomic<std::shared_ptr>: in libstdc++ 12 its load() races with a later exchange().
template <typename Box>
class Slot {
 public:
  using Handle = std::shared_ptr<Box>;

  void put(Handle box) noexcept {  // while no call works on it
    const std::lock_guard lock(mutex_);
    was_filled_.store(true, std::memory_order_relaxed);
    box_.swap(box);
  }
  void share(const Slot& other) noexcept { put(other.get()); }
  Handle get() const noexcept {  // null if it is closed, or was never filled
    const std::lock_guard lock(mutex_);
    return is_taken_ ? nullptr : box_;
  }
  const Handle* begin_call() noexcept {  // null as above, and then there is no call to end
    const std::lock_guard lock(mutex_);
    const bool is_there = box_ && !is_taken_;
    calls_ += static_cast<unsigned>(is_there);
    return is_there ? &box_ : nullptr;
  }
  Handle end_call() noexcept {  // what the caller has to let go of, without the lock of its language
    const std::lock_guard lock(mutex_);
    --calls_;
    return calls_ == 0 && std::exchange(is_taken_, false) ? std::exchange(box_, nullptr) : nullptr;
  }
  Handle take() noexcept {
    const std::lock_guard lock(mutex_);
    is_taken_ = calls_ != 0;
    return is_taken_ ? nullptr : std::exchange(box_, nullptr);
  }
  bool was_filled() const noexcept { return was_filled_.load(std::memory_order_relaxed); }

  [[noreturn]] void fail_empty() const {
    const std::string word = Box::word;
    if (was_filled()) {
      fail(ErrorKind::closed, "the " + word + " has been closed");
    }
    fail(ErrorKind::bad_state, "this " + word +
                                   " was never initialized: a subclass must call super().__init__(), and __new__ alone "
                                   "makes nothing");
  }

 private:
  mutable std::mutex mutex_;
  Handle box_;
  unsigned calls_ = 0;
  bool is_taken_ = false;
  std::atomic<bool> was_filled_{false};
};

}  // namespace gctx
