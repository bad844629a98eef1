// The driver's stack of current contexts of the calling thread, which it shows only the top of.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

#include "driver/driver.hpp"

namespace gctx {

// Puts the stack right where other code has left it otherwise. A call that fails is made once more, so that one failure
// changes nothing; the first one is kept, to be thrown when all is done.
class ContextStack {
 public:
  explicit ContextStack(const Driver& driver) noexcept : driver_(driver) {}

  bool has(CUcontext wanted) noexcept;

  // Goes down the stack from a place (0: the top), and replaces each context that `next` gives, where it is found, by
  // `instead`, or takes it away if that is null. `next` is told whether the one before was found, and ends with null.
  template <typename Next>
  void replace(std::size_t place, CUcontext instead, Next&& next) noexcept {
    take_apart();
    bool is_found = false;
    for (CUcontext wanted = next(false); wanted != nullptr; wanted = next(is_found)) {
      std::size_t at = place;
      while (at < depth_ && all_[at] != wanted) {
        ++at;
      }
      is_found = at < depth_;
      if (is_found) {
        all_[at] = instead;
        place = at + 1;
      }
    }
    put_together(0);
  }

  // Makes `before` current, where one of ours was put right above it, and other code may have pushed, popped or
  // replaced contexts since. What is below it stays. `is_ours`: of a context, whether it may be that one, or one of the
  // `places` that it has by now.
  template <typename IsOurs>
  void restore(CUcontext before, std::size_t places, IsOurs&& is_ours) noexcept {
    take_apart();
    std::size_t first = 0;  // of what stays; 0: ours is not there
    for (std::size_t i = 0; i < depth_ && places != 0; ++i) {
      if (is_ours(all_[i]) && below(i) == before) {
        first = i + 1;
        --places;
      }
    }
    if (first == 0) {
      for (std::size_t i = 0; i < depth_; ++i) {  // not even elsewhere
        all_[i] = all_[i] != before && is_ours(all_[i]) ? nullptr : all_[i];
      }
      restore_without_ours(before);
      return;
    }
    put_together(first);
    demand_current(before);
  }

  CUcontext current() noexcept;
  void set(CUcontext context) noexcept;
  void put_back(CUcontext popped) noexcept { push(popped); }

  void note(CUresult failure, const char* call) noexcept;
  bool has_failed() const noexcept { return failure_ != CUDA_SUCCESS; }
  // Throws the first failure; `before` was to be current now.
  void check(CUcontext before);

 private:
  // More than any program pushes.
  static constexpr std::size_t most = 64;

  template <typename Call>
  bool twice(const char* name, Call&& call) noexcept;
  bool pop(CUcontext& popped) noexcept;  // false if there is nothing to be popped
  bool push(CUcontext context) noexcept;
  void take_apart() noexcept;
  void put_together(std::size_t first) noexcept;  // what was there from here on
  void demand_current(CUcontext context) noexcept;
  void restore_without_ours(CUcontext before) noexcept;
  CUcontext below(std::size_t place) const noexcept { return place + 1 < depth_ ? all_[place + 1] : nullptr; }

  const Driver& driver_;
  CUresult failure_ = CUDA_SUCCESS;
  const char* failed_call_ = "";
  std::array<CUcontext, most> all_;  // what was taken off, from the top
  std::size_t depth_ = 0;
};

}  // namespace gctx
