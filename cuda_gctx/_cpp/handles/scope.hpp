// A context that is current during one call of this package, in which no other code runs.
#pragma once

#include <cuda.h>

#include <utility>

#include "driver/driver.hpp"

namespace gctx {

// `leave` ends the scope, and throws if that fails. The destructor ends it while another error propagates, and counts a
// failure as other destructors do. Pushes also what is current: that may be a dead context at the same address.
class CurrentScope {
 public:
  CurrentScope(const Driver& driver, CUcontext context) : driver_(driver) {
    GCTX_CALL(driver, cuCtxPushCurrent, context);
    is_entered_ = true;
  }
  template <typename Context>
  explicit CurrentScope(const Context& context) : CurrentScope(context.runtime().driver(), context.handle()) {}
  ~CurrentScope() { driver_.note(pop(), "cuCtxPopCurrent"); }
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

  void leave() { driver_.check(pop(), "cuCtxPopCurrent"); }

 private:
  CUresult pop() noexcept {
    CUcontext popped = nullptr;
    const CUresult result = std::exchange(is_entered_, false) ? driver_.cuCtxPopCurrent(&popped) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
      driver_.note(driver_.cuCtxPopCurrent(&popped), "cuCtxPopCurrent");  // one failure changes nothing
    }
    return result;
  }

  const Driver& driver_;
  bool is_entered_ = false;
};

}  // namespace gctx
