// The state of a context as one word, which changes in one step: what is refused never shows to another thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gctx {

class ContextState {
 public:
  // A closed context lives on while something made on it is in use. Gone: its driver object is destroyed by whoever
  // ended the last use.
  enum class Phase : std::uint64_t { open, closed, gone };
  enum class Closing { done, done_and_gone, was_closed, refused };

  Phase phase() const noexcept { return phase_of(word_.load()); }
  bool is_open() const noexcept { return phase() == Phase::open; }
  bool is_gone() const noexcept { return phase() == Phase::gone; }

  // A use begins: false, and nothing has changed, unless the context is open. `enter_alive` also serves what was made
  // before it was closed, and `enter_again` one who has a use already.
  bool enter() noexcept { return add(one_use, Phase::open); }
  bool enter_alive() noexcept { return add(one_use, Phase::closed); }
  void enter_again() noexcept { word_.fetch_add(one_use); }

  // A use ends: true for whoever ends the last use of a closed context, and has to destroy it.
  bool leave() noexcept {
    std::uint64_t word = word_.load();
    for (;;) {
      const std::uint64_t left = word - one_use;
      const bool last = phase_of(word) == Phase::closed && left % one_current == 0;
      if (word_.compare_exchange_weak(word, last ? with_phase(left, Phase::gone) : left)) {
        return last;
      }
    }
  }

  // It becomes current somewhere: false unless it is open. Of threads that share a lock, whoever makes it not current
  // leaves the count for the next one, so that neither has to change the word.
  template <bool has_lock = false>
  bool make_current() noexcept {
    return (has_lock && std::exchange(is_one_left_, false)) || add(one_current, Phase::open);
  }
  template <bool has_lock = false>
  void make_not_current() noexcept {
    if (has_lock && leaves_one_ && !is_one_left_) {
      is_one_left_ = true;
    } else {
      word_.fetch_sub(one_current);
    }
  }
  // With that lock, before it is asked whether it is current.
  void take_what_is_left() noexcept { word_.fetch_sub(std::exchange(is_one_left_, false) ? one_current : 0); }
  void leave_none() noexcept { leaves_one_ = false; }  // of a context that is closed without that lock
  bool is_current_anywhere() const noexcept { return (word_.load() & current_mask) != 0; }

  // Open and current nowhere: closed, and gone at once if nothing uses it.
  Closing close() noexcept {
    std::uint64_t word = word_.load();
    for (;;) {
      if (phase_of(word) != Phase::open) {
        return Closing::was_closed;
      }
      if ((word & current_mask) != 0) {
        return Closing::refused;
      }
      const bool unused = word % one_current == 0;
      if (word_.compare_exchange_weak(word, with_phase(word, unused ? Phase::gone : Phase::closed))) {
        return unused ? Closing::done_and_gone : Closing::done;
      }
    }
  }

 private:
  // From the lowest bit: 31 of uses, 31 of threads' entries that name it as current, 2 of the phase.
  static constexpr std::uint64_t one_use = 1;
  static constexpr std::uint64_t one_current = std::uint64_t{1} << 31;
  static constexpr int phase_shift = 62;
  static constexpr std::uint64_t current_mask = (std::uint64_t{1} << phase_shift) - one_current;

  static Phase phase_of(std::uint64_t word) noexcept { return static_cast<Phase>(word >> phase_shift); }
  static std::uint64_t with_phase(std::uint64_t word, Phase phase) noexcept {
    return (word & ((std::uint64_t{1} << phase_shift) - 1)) | static_cast<std::uint64_t>(phase) << phase_shift;
  }

  // False, and nothing has changed, after the last phase in which that is allowed.
  bool add(std::uint64_t one, Phase last) noexcept {
    std::uint64_t word = word_.load(std::memory_order_relaxed);
    while (phase_of(word) <= last) {
      if (word_.compare_exchange_weak(word, word + one)) {
        return true;
      }
    }
    return false;
  }

  std::atomic<std::uint64_t> word_{0};
  bool is_one_left_ = false;
  bool leaves_one_ = true;
};

}  // namespace gctx
