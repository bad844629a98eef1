// The clocks of the program's threads. Each call takes its thread some virtual time. A thread that waits jumps to the
// end of the work that it waits for; no other thread's clock jumps with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "machine/sms.hpp"
#include "machine/threads.hpp"

namespace software_driver {

// A pause of the host between two calls of a thread counts as virtual time from this length on. Shorter pauses take
// none, so that a busy machine gives the same times as an idle one.
inline constexpr std::uint64_t counted_pause_ns = 250'000'000;
// A thread that has called is expected to call again, and time waits for it: this long while it computes, and this long
// while it sleeps. A thread that calls all the time and never waits may lag behind the host's clock by as much as a
// computing one: then time goes on as the host's clock does.
inline constexpr std::uint64_t computing_patience_ns = counted_pause_ns;
inline constexpr std::uint64_t sleeping_patience_ns = 20'000'000;
// After so many answers that its work is not done, a thread that polls jumps as a thread that waits does, but no
// further ahead than this: a program that gives work up after a while has to see that the work does not end.
inline constexpr unsigned unchanged_polls = 5;
inline constexpr std::uint64_t longest_jump_ns = 100'000'000;
// Before that, such an answer takes this much time.
inline constexpr std::uint64_t unchanged_poll_ns = 1'000;

struct ThreadTime {
  std::uint64_t now = 0;
  WorkPtr target;  // of its wait
  // Work that its polls have found unfinished, and how often.
  struct Polled {
    WorkPtr work;
    unsigned count;
  };
  std::vector<Polled> polled;

  std::shared_ptr<Caller> caller;
  bool is_callback = false;       // of a host function or a kernel: time stands still for it elsewhere
  bool is_idle = false;           // not expected to call
  std::uint64_t quiet_since = 0;  // by the clock of the host; 0 before the first call
  std::uint64_t sleeps = 0;       // how often the thread had slept by then
  // When the clocks of the thread and of the host were last level.
  std::uint64_t level_now = 0;
  std::uint64_t level_host = 0;
};

class ThreadTimes {
 public:
  ThreadTimes() = default;
  ThreadTimes(const ThreadTimes&) = delete;
  ThreadTimes& operator=(const ThreadTimes&) = delete;

  void add(ThreadTime& thread);
  void remove(ThreadTime& thread);

  // The thread makes a call. `time`: of the devices.
  void enter(ThreadTime& thread, std::uint64_t time, std::uint64_t call_ns);
  void leave(ThreadTime& thread);
  // Ends the waits for a piece of work.
  void wake(const WorkPtr& work, std::uint64_t time);
  // Returns whether a thread other than `self` may call before this moment.
  bool expects_call_before(std::uint64_t moment, const ThreadTime* self);

  // Host time that the driver itself takes is no thread's.
  void begin_driver_time();
  void end_driver_time();

  // Returns the clock of the thread whose call is under way, or `time` on another thread. A thread that submits work
  // starts to poll anew.
  static std::uint64_t submit(std::uint64_t time);

 private:
  std::uint64_t host_clock() const;
  bool is_expected_before(std::uint64_t moment, ThreadTime& thread) const;

  std::vector<ThreadTime*> threads_;
  std::uint64_t latest_ = 0;  // of their clocks
  std::uint64_t driver_ns_ = 0;
  std::uint64_t driver_since_ = 0;  // 0: the driver takes no time at present
};

}  // namespace software_driver
