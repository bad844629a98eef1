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

  // Whether a context is on the stack; `instead`, if it is given, takes its uppermost place.
  bool find(CUcontext wanted, CUcontext instead = nullptr) noexcept;

  // Makes `before` current, where one of ours was put right above it, and other code may have pushed, popped or
  // replaced contexts since. What is below it stays. `is_ours`: of a context, whether it may be that one.
  template <typename IsOurs>
  void restore(CUcontext before, IsOurs&& is_ours) noexcept {
    take_apart();
    for (std::size_t i = 0; i < depth_; ++i) {
      if (is_ours(all_[i]) && below(i) == before) {
        put_together(i + 1, before);
        return;
      }
    }
    restore_without_ours(before);
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
  void put_together(std::size_t first, CUcontext top) noexcept;  // what was there from here on, with this one on top
  void restore_without_ours(CUcontext before) noexcept;
  CUcontext below(std::size_t place) const noexcept { return place + 1 < depth_ ? all_[place + 1] : nullptr; }

  const Driver& driver_;
  CUresult failure_ = CUDA_SUCCESS;
  const char* failed_call_ = "";
  std::array<CUcontext, most> all_;  // what was taken off, from the top
  std::size_t depth_ = 0;
};

}  // namespace gctx
