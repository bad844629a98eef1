// The driver's stack of current contexts of the calling thread. The driver shows only its top, so whoever has to know
// what is further down takes the stack apart, and puts it together again.
#pragma once

#include <cuda.h>

#include <vector>

#include "driver/driver.hpp"

namespace gctx {

// A call that fails is made once more, so that one failure changes nothing; the first one is kept, to be thrown when
// all is done.
class ContextStack {
 public:
  // `places`: from the bottom, what was popped and will be pushed.
  ContextStack(const Driver& driver, std::vector<CUcontext>& places) noexcept
      : driver_(driver), places_(places), failed_{&driver} {}

  // Pops everything. False if a call fails, or memory runs out: then that is not the whole stack.
  bool take_apart() noexcept;
  void put_together() noexcept;
  bool look() noexcept;  // both

  bool current(CUcontext& now) noexcept;  // null if nothing is
  bool push(CUcontext context) noexcept;
  void set(CUcontext context) noexcept;
  bool is_there(CUcontext context) noexcept;

  void note(CUresult failure, const char* call) noexcept;
  const FailedCall& failed() const;  // the first one; throws if memory ran out
  void check(CUcontext wanted);      // throws it, after a block before which that was current

 private:
  template <typename Call>
  bool twice(const char* name, Call&& call) noexcept;

  const Driver& driver_;
  std::vector<CUcontext>& places_;
  FailedCall failed_;
  bool is_out_of_memory_ = false;
};

}  // namespace gctx
