// The place of a handle in an object of a language binding, which one thread may close while others use it: a call
// copies the handle out and works on the copy, and closing takes the handle away.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "driver/error.hpp"

namespace gctx {

// `Place` holds the handle: SharedPlace or LockedPlace. A box says its word for messages.
template <typename Place>
class BasicSlot {
 public:
  using Handle = typename Place::Handle;
  using Borrowed = typename Place::Borrowed;

  void put(Handle box) noexcept {
    was_filled_.store(true, std::memory_order_relaxed);
    place_.put(std::move(box));
  }

  void share(const BasicSlot& other) noexcept { put(other.get()); }
  Handle get() const noexcept { return place_.get(); }  // null if it is closed, or was never filled
  Handle take() noexcept { return place_.take(); }
  bool was_filled() const noexcept { return was_filled_.load(std::memory_order_relaxed); }

  // For what ends before the box can go. Null as above.
  Borrowed borrow() const noexcept { return place_.borrow(); }

  [[noreturn]] void fail_empty() const {
    const std::string word = Handle::element_type::word;
    if (was_filled()) {
      fail(ErrorKind::closed, "the " + word + " has been closed");
    }
    fail(ErrorKind::bad_state, "this " + word +
                                   " was never initialized: a subclass must call super().__init__(), and __new__ alone "
                                   "makes nothing");
  }

 private:
  Place place_;
  std::atomic<bool> was_filled_{false};
};

// For threads that share nothing else. Not std::atomic<std::shared_ptr>: in libstdc++ 12 its load() races with a later
// exchange().
template <typename Box>
class SharedPlace {
 public:
  using Handle = std::shared_ptr<Box>;
  using Borrowed = Handle;

  void put(Handle box) noexcept {
    const std::lock_guard lock(mutex_);
    box_.swap(box);
  }
  Handle get() const noexcept {
    const std::lock_guard lock(mutex_);
    return box_;
  }
  Handle take() noexcept {
    const std::lock_guard lock(mutex_);
    return std::exchange(box_, nullptr);
  }
  Borrowed borrow() const noexcept { return get(); }

 private:
  mutable std::mutex mutex_;
  Handle box_;
};

// For threads that hold one and the same lock, such as the GIL, as long as they use the slot and what they borrow.
template <typename Box>
class LockedPlace {
 public:
  using Handle = std::shared_ptr<Box>;

  class Borrowed {
   public:
    Borrowed() noexcept = default;
    explicit Borrowed(Box* box) noexcept : box_(box) {}
    Box* get() const noexcept { return box_; }
    explicit operator bool() const noexcept { return box_ != nullptr; }

   private:
    Box* box_ = nullptr;
  };

  void put(Handle box) noexcept { box_.swap(box); }
  const Handle& get() const noexcept { return box_; }
  Handle take() noexcept { return std::exchange(box_, nullptr); }
  Borrowed borrow() const noexcept { return Borrowed(box_.get()); }

 private:
  Handle box_;
};

template <typename Box>
using Slot = BasicSlot<SharedPlace<Box>>;
template <typename Box>
using LockedSlot = BasicSlot<LockedPlace<Box>>;

}  // namespace gctx
