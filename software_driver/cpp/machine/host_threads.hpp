// The threads that host functions run on. They are called in the order in which they become due, one after the other;
// one that takes long stops nobody, because the next is then called on another thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "machine/work.hpp"

namespace software_driver {

// Real time for which others wait for a host function, so that what is short takes no virtual time; and between two
// looks at a program that makes no calls.
inline constexpr std::chrono::milliseconds host_patience{100};
inline constexpr std::chrono::milliseconds between_looks{20};

class HostThreads {
 public:
  HostThreads();
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  // What a program may wait for without a call: a host function, or what copies and fills leave in memory.
  enum class Expected { function, effect };
  // At a program, in turn.
  struct Looks {
    std::uint64_t calls = ~std::uint64_t{0};  // that it had made at the last one
    unsigned idle = 0;                        // between which it has made none
  };
  // What the threads do to the machine, which they may outlive. Neither is called with their lock held.
  struct Program {
    std::function<void(const WorkPtr& work)> returned;  // a host function has
    // Something is expected, and nothing has come for a while.
    std::function<void(Looks& looks, Expected expected)> look;
  };
  void serve(Program program);
  // It is queued: from now on somebody looks whether the program waits for it.
  void expect(Expected what);
  // A host function is due.
  void post(const WorkPtr& work);
  // An effect is there.
  void shown();
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

}  // namespace software_driver
