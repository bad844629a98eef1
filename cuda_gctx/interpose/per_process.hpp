// State of the process behind locks.
#pragma once

#include <pthread.h>

namespace gctx::interpose {

// Gives a forked child fresh state: threads that the child does not have may have held the locks of its parent. The
// state is never destroyed, because threads end after main() does. One object for each type.
template <typename State>
class PerProcess {
 public:
  PerProcess() {
    pthread_atfork(nullptr, nullptr, [] { state_ = new State; });
  }
  State& operator*() const noexcept { return *state_; }

 private:
  inline static State* state_ = new State;
};

}  // namespace gctx::interpose
