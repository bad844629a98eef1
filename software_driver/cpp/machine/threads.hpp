// The threads of the program, by numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace software_driver {

// A thread as the others see it.
struct Caller {
  Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  std::atomic<int> id;              // by which the system knows it
  std::atomic<unsigned> calls = 0;  // under way, or waiting for their turn
  std::uint64_t sleeps = 0;         // before the last call

  // Counts how often the calling thread has slept. 0 until another thread calls.
  static std::uint64_t count_sleeps();
};
const std::shared_ptr<Caller>& this_caller();
// The calling thread makes a call.
class InCall {
 public:
  InCall() : caller_(*this_caller()) {
    ++caller_.calls;
    caller_.sleeps = Caller::count_sleeps();
  }
  ~InCall() { --caller_.calls; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  Caller& caller_;
};

// The number of the calling thread, never used again.
std::uint64_t this_thread();
// `ended` runs at the end of each thread that has a number.
void when_threads_end(void (*ended)(std::uint64_t thread));

}  // namespace software_driver
