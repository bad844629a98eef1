// A lock that one thread takes all the time, and others hardly ever.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace gctx {

// Whether the kernel cannot make all threads of the process pass a memory barrier when one of them wants that.
extern const bool no_barriers_on_demand;
void make_all_threads_pass_a_barrier() noexcept;

// The owner takes it without an atomic step, by a store and a load. Another thread announces that it wants the lock,
// and makes all threads pass a barrier: from then on it sees whether the owner has the lock, and an owner that has not
// sees the announcement.
class OwnerLock {
 public:
  // For the owner.
  void lock() noexcept {
    for (;;) {
      if (no_barriers_on_demand) [[unlikely]] {
        is_held_.exchange(true);
      } else {
        is_held_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      if (!is_wanted_.load()) [[likely]] {
        return;
      }
      is_held_.store(false, std::memory_order_release);
      std::this_thread::yield();
    }
  }
  void unlock() noexcept { is_held_.store(false, std::memory_order_release); }

  // For other threads.
  class Others {
   public:
    explicit Others(OwnerLock& lock) noexcept : lock_(lock) {}
    void lock() {
      lock_.others_.lock();
      lock_.is_wanted_.store(true);
      make_all_threads_pass_a_barrier();
      while (lock_.is_held_.load()) {
        std::this_thread::yield();
      }
    }
    void unlock() noexcept {
      lock_.is_wanted_.store(false, std::memory_order_release);
      lock_.others_.unlock();
    }

   private:
    OwnerLock& lock_;
  };

 private:
  std::atomic<bool> is_held_{false};
  std::atomic<bool> is_wanted_{false};
  std::mutex others_;
};

}  // namespace gctx
