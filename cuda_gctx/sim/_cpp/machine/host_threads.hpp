// The threads that host functions run on. They are called in the order in which they become due, one after the other;
// one that takes long stops nobody, because the next is then called on another thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "machine/work.hpp"

namespace gctx::sim {

// Real time for which others wait for a host function, so that what is short takes no virtual time; and after which a
// program that makes no calls is taken to wait.
inline constexpr std::chrono::milliseconds host_patience{100};
inline constexpr std::chrono::milliseconds idle_after{20};

class HostThreads {
 public:
  HostThreads();
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  // What the threads do to the machine, which they may outlive. Neither is called with their lock held.
  struct Program {
    std::function<void(const WorkPtr& work)> returned;  // a host function has
    // No host function is due, though one is expected. `calls` is how many the machine had seen at the last time.
    std::function<void(std::uint64_t& calls)> idle;
  };
  void serve(Program program);
  // A host function is queued: from now on somebody looks whether the program waits for it.
  void expect();
  // It is due.
  void post(const WorkPtr& work);
  // Calls a function that no work waits for.
  void run(std::function<void()> function);
  // In a forked child, whose threads are gone.
  void abandon();

  // Whether the calling thread is inside a kernel's or a host function, where no driver call may wait.
  static bool is_inside_function() noexcept;
  class InsideFunction {
   public:
    InsideFunction() noexcept;
    ~InsideFunction();
    InsideFunction(const InsideFunction&) = delete;
    InsideFunction& operator=(const InsideFunction&) = delete;
  };

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace gctx::sim
