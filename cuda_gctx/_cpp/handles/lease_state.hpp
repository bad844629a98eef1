// The state of a lease as one word, which changes in one step: no thread sees a refused change.
#pragma once

#include <atomic>
#include <cstdint>

namespace gctx {

class LeaseState {
 public:
  // A closed lease lingers while something that was made on it is in use, and then ends.
  enum class Phase : std::uint64_t { open, lingering, ended };
  // The answers of close(). `ended`: the caller has to end the lease.
  enum class Closing { ended, lingering, was_closed, refused };

  Phase phase() const noexcept { return phase_of(word_.load()); }
  bool is_open() const noexcept { return phase() == Phase::open; }

  // Begins a use. Returns false and changes nothing unless the lease is open (`enter`), or has not ended
  // (`enter_lingering`). `enter_again` is for callers that have a use.
  bool enter() noexcept { return add(one_use, Phase::open); }
  bool enter_lingering() noexcept { return add(one_use, Phase::lingering); }
  void enter_again() noexcept { word_.fetch_add(one_use); }
  bool make_current() noexcept { return add(one_current, Phase::open); }

  // End a use. Return true for the last use of a closed lease: the caller has to end the lease.
  bool leave() noexcept { return subtract(one_use); }
  bool make_not_current() noexcept { return subtract(one_current); }

  // Closes a lease whose contexts are current nowhere.
  Closing close() noexcept { return close(current_mask); }
  // Closes a lease that nobody refers to. Contexts that are current count as uses.
  Closing abandon() noexcept { return close(0); }

 private:
  // From the lowest bit: 31 of uses, 31 of threads on which a context is current, 2 of the phase.
  static constexpr std::uint64_t one_use = 1;
  static constexpr std::uint64_t one_current = std::uint64_t{1} << 31;
  static constexpr int phase_shift = 62;
  static constexpr std::uint64_t count_mask = (std::uint64_t{1} << phase_shift) - 1;
  static constexpr std::uint64_t current_mask = count_mask - (one_current - 1);

  static Phase phase_of(std::uint64_t word) noexcept { return static_cast<Phase>(word >> phase_shift); }
  static std::uint64_t with_phase(std::uint64_t word, Phase phase) noexcept {
    return (word & count_mask) | static_cast<std::uint64_t>(phase) << phase_shift;
  }

  bool add(std::uint64_t one, Phase last) noexcept {
    std::uint64_t word = word_.load(std::memory_order_relaxed);
    while (phase_of(word) <= last) {
      if (word_.compare_exchange_weak(word, word + one)) {
        return true;
      }
    }
    return false;
  }

  bool subtract(std::uint64_t one) noexcept {
    std::uint64_t word = word_.load();
    for (;;) {
      const std::uint64_t left = word - one;
      const bool is_last = phase_of(word) == Phase::lingering && (left & count_mask) == 0;
      if (word_.compare_exchange_weak(word, is_last ? with_phase(left, Phase::ended) : left)) {
        return is_last;
      }
    }
  }

  Closing close(std::uint64_t refusing) noexcept {
    std::uint64_t word = word_.load();
    for (;;) {
      if (phase_of(word) != Phase::open) {
        return Closing::was_closed;
      }
      if ((word & refusing) != 0) {
        return Closing::refused;
      }
      const bool is_unused = (word & count_mask) == 0;
      if (word_.compare_exchange_weak(word, with_phase(word, is_unused ? Phase::ended : Phase::lingering))) {
        return is_unused ? Closing::ended : Closing::lingering;
      }
    }
  }

  std::atomic<std::uint64_t> word_{0};
};

}  // namespace gctx
