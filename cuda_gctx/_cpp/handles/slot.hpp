// The place of a handle in an object of a language binding, which one thread may close while others use it: a call
// copies the handle out and works on the copy, and closing takes the handle away.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "driver/error.hpp"

namespace gctx {

template <typename Box>
class Slot {
 public:
  void put(std::shared_ptr<Box> box) noexcept {
    was_filled_.store(true, std::memory_order_relaxed);
    box_.store(std::move(box));
  }

  std::shared_ptr<Box> get() const noexcept { return box_.load(); }  // null if it is closed, or was never filled
  std::shared_ptr<Box> take() noexcept { return box_.exchange(nullptr); }
  bool was_filled() const noexcept { return was_filled_.load(std::memory_order_relaxed); }

  // `what` is the word for the object in messages.
  std::shared_ptr<Box> demand(const char* what) const {
    auto box = box_.load();
    if (!box) [[unlikely]] {
      fail_empty(what);
    }
    return box;
  }

 private:
  [[noreturn]] void fail_empty(const char* what) const {
    if (was_filled()) {
      fail(ErrorKind::closed, std::string("the ") + what + " has been closed");
    }
    fail(ErrorKind::bad_state, std::string("this ") + what +
                                   " was never initialized: a subclass must call super().__init__(), and __new__ alone "
                                   "makes nothing");
  }

  std::atomic<std::shared_ptr<Box>> box_;
  std::atomic<bool> was_filled_{false};
};

}  // namespace gctx
