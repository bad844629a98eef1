// The place of a handle in an object of a language binding, which one thread may close while others use it: what a call
// works on stays until the call has ended, and closing takes the handle away from later ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "driver/error.hpp"

namespace gctx {

// A call gives up the lock of its language, so the slot counts the calls that work on its handle, and what is taken
// meanwhile is let go by the last of them. The object of the slot outlives them. A box says its word for messages.
// The state is one word, because each call changes it twice: a mutex would double the cost of the shortest calls. The
// handle itself is plain, because std::atomic<std::shared_ptr> locks too, and its load() races with a later exchange()
// in libstdc++ 12.
template <typename Box>
class Slot {
 public:
  using Handle = std::shared_ptr<Box>;

  // Moves a handle into an empty slot. Returns false and leaves the handle to the caller if the slot is not empty.
  bool put(Handle& box) noexcept {
    std::uint32_t word = word_.load(std::memory_order_relaxed);
    do {
      if ((word & ~was_filled_bit) != 0) {
        return false;
      }
    } while (!word_.compare_exchange_weak(word, word | busy_bit, std::memory_order_acquire, std::memory_order_relaxed));
    box_ = std::move(box);
    word_.store(was_filled_bit | present_bit, std::memory_order_release);
    return true;
  }
  void share(const Slot& other) noexcept {
    Handle box = other.get();
    put(box);
  }
  Handle get() const noexcept {  // null if it is closed, or was never filled
    if (!begin()) {
      return nullptr;
    }
    Handle box = box_;
    const Handle last = end();  // `box` outlives it
    return box;
  }
  const Handle* begin_call() noexcept { return begin() ? &box_ : nullptr; }  // null as above: there is no call to end
  // Returns what the caller has to let go of, without the lock of its language.
  Handle end_call() noexcept { return end(); }
  Handle take() noexcept {
    std::uint32_t word = word_.load(std::memory_order_relaxed);
    do {
      if (!is_there(word)) {
        return nullptr;
      }
    } while (!word_.compare_exchange_weak(word, word | busy_bit, std::memory_order_acq_rel, std::memory_order_relaxed));
    return (word & calls) == 0 ? empty() : nullptr;
  }
  bool was_filled() const noexcept { return (word_.load(std::memory_order_relaxed) & was_filled_bit) != 0; }

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
  // busy: the handle is being put into the slot, or the last call lets it go. No call begins meanwhile.
  static constexpr std::uint32_t present_bit = 1U << 31, busy_bit = 1U << 30, was_filled_bit = 1U << 29;
  static constexpr std::uint32_t calls = was_filled_bit - 1;

  static bool is_there(std::uint32_t word) noexcept { return (word & (present_bit | busy_bit)) == present_bit; }
  bool begin() const noexcept {
    std::uint32_t word = word_.load(std::memory_order_relaxed);
    do {
      if (!is_there(word)) [[unlikely]] {
        return false;
      }
    } while (!word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed));
    return true;
  }
  Handle end() const noexcept {
    const std::uint32_t word = word_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    return (word & (busy_bit | calls)) == busy_bit ? empty() : nullptr;
  }
  // Takes the handle out of a busy slot without calls: no other thread touches it.
  Handle empty() const noexcept {
    Handle box = std::move(box_);
    word_.store(was_filled_bit, std::memory_order_release);
    return box;
  }

  mutable Handle box_;
  mutable std::atomic<std::uint32_t> word_{0};
};

}  // namespace gctx
