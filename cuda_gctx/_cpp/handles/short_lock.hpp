// A mutex for what takes a few instructions and is hardly ever contended.
#pragma once

#include <atomic>
#include <thread>

namespace gctx {

// One atomic step to lock, and a store to unlock. Who finds it locked gives way to other threads until it is not.
class ShortLock {
 public:
  void lock() noexcept {
    while (is_locked_.exchange(true, std::memory_order_acquire)) {
      std::this_thread::yield();
    }
  }
  void unlock() noexcept { is_locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_locked_{false};
};

}  // namespace gctx
