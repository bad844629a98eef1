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
  typename Place::Held hold() noexcept { return place_.hold(); }
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

  class Held {
   public:
    explicit Held(Handle box) noexcept : box_(std::move(box)) {}
    const Handle* get() const noexcept { return box_ ? &box_ : nullptr; }
    void let_go() noexcept { box_.reset(); }
    Handle end() noexcept { return nullptr; }

   private:
    Handle box_;
  };

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
  Held hold() const noexcept { return Held(get()); }

 private:
  mutable std::mutex mutex_;
  Handle box_;
};

// For threads that hold one and the same lock, such as the GIL, as long as they use the slot and what they borrow. A
// call gives that lock up, so the slot counts the calls that work on its handle, and what is taken meanwhile is let go
// by the last of them. The object of the slot outlives them.
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

  class Held {
   public:
    explicit Held(LockedPlace* place) noexcept : place_(place) {}
    const Handle* get() const noexcept { return place_ != nullptr ? &place_->box_ : nullptr; }
    void let_go() noexcept {}
    // With the lock: what the caller has to let go of without it.
    Handle end() noexcept { return place_ != nullptr ? place_->end_call() : nullptr; }

   private:
    LockedPlace* place_;
  };

  void put(Handle box) noexcept { box_.swap(box); }  // while no call works on it
  Handle get() const noexcept { return is_taken_ ? nullptr : box_; }
  Handle take() noexcept {
    if (calls_ == 0) {
      return std::exchange(box_, nullptr);
    }
    is_taken_ = true;
    return nullptr;
  }
  Borrowed borrow() const noexcept { return Borrowed(is_taken_ ? nullptr : box_.get()); }
  Held hold() noexcept {
    const bool is_there = box_ && !is_taken_;
    calls_ += static_cast<unsigned>(is_there);
    return Held(is_there ? this : nullptr);
  }

 private:
  Handle end_call() noexcept {
    --calls_;
    return calls_ == 0 && std::exchange(is_taken_, false) ? std::exchange(box_, nullptr) : nullptr;
  }

  Handle box_;
  unsigned calls_ = 0;
  bool is_taken_ = false;
};

template <typename Box>
using Slot = BasicSlot<SharedPlace<Box>>;
template <typename Box>
using LockedSlot = BasicSlot<LockedPlace<Box>>;

}  // namespace gctx
