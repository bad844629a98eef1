// The place of a handle in an object of a language binding, which one thread may close while others use it: a call
// copies the handle out and works on the copy, and closing takes the handle away.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "driver/error.hpp"
#include "handles/short_lock.hpp"

namespace gctx {

// `Place` holds the handle: SharedPlace or LockedPlace.
template <typename Place>
class BasicSlot {
 public:
  using Handle = typename Place::Handle;
  using Borrowed = typename Place::Borrowed;

  void put(Handle box) noexcept {
    was_filled_.store(true, std::memory_order_relaxed);
    place_.put(std::move(box));
  }

  Handle get() const noexcept { return place_.get(); }  // null if it is closed, or was never filled
  Handle take() noexcept { return place_.take(); }
  bool was_filled() const noexcept { return was_filled_.load(std::memory_order_relaxed); }

  // For what ends before the box can go. Null as above.
  Borrowed borrow() const noexcept { return place_.borrow(); }

  // `what` is the word for the object in messages.
  Handle demand(const char* what) const {
    Handle box = get();
    if (!box) [[unlikely]] {
      fail_empty(what);
    }
    return box;
  }

  // The same of what is still of use: of a driver that may be called, and of a context that is open.
  Handle demand_live(const char* what) const {
    live(what);
    return demand(what);
  }

  // For a call that gives up the lock: as `demand`, of a copy that `keep_copy` takes back for the next call. Making a
  // copy and dropping it are an atomic step each.
  Handle copy(const char* what) {
    Handle box = place_.copy();
    if (!box) [[unlikely]] {
      fail_empty(what);
    }
    return box;
  }
  Handle copy_live(const char* what) {
    live(what);
    return copy(what);
  }
  void keep_copy(Handle& copy) noexcept { place_.keep_copy(copy); }  // leaves it, if the slot has been emptied since
  Borrowed live(const char* what) const {
    Borrowed box = borrow();
    if (!box) [[unlikely]] {
      fail_empty(what);
    }
    box.get()->demand_live();
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
    const std::lock_guard lock(lock_);
    box_.swap(box);
  }
  Handle get() const noexcept {
    const std::lock_guard lock(lock_);
    return box_;
  }
  Handle take() noexcept {
    const std::lock_guard lock(lock_);
    return std::exchange(box_, nullptr);
  }
  Borrowed borrow() const noexcept { return get(); }
  Handle copy() const noexcept { return get(); }
  void keep_copy(Handle& copy) const noexcept { copy.reset(); }

 private:
  mutable ShortLock lock_;
  std::shared_ptr<Box> box_;
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

  void put(Handle box) noexcept {
    spare_.reset();
    box_.swap(box);
  }
  const Handle& get() const noexcept { return box_; }
  Handle take() noexcept {
    spare_.reset();
    return std::exchange(box_, nullptr);
  }
  Borrowed borrow() const noexcept { return Borrowed(box_.get()); }
  Handle copy() noexcept { return spare_ ? std::move(spare_) : box_; }
  void keep_copy(Handle& copy) noexcept {
    if (!spare_ && copy == box_) [[likely]] {
      spare_.swap(copy);
    }
  }

 private:
  std::shared_ptr<Box> box_;
  std::shared_ptr<Box> spare_;  // a copy that no call has
};

template <typename Box>
using Slot = BasicSlot<SharedPlace<Box>>;
template <typename Box>
using LockedSlot = BasicSlot<LockedPlace<Box>>;

}  // namespace gctx
