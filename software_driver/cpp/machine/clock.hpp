// The virtual clock: work queued on streams occupies SMs, copy engines, memory and hardware queues in virtual time. It
// is carried out when somebody waits or asks; and, while a host function or an effect in host memory is due, when
// nobody has called for a while.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <unordered_map>
#include <vector>

#include "chip/chip.hpp"
#include "machine/sms.hpp"
#include "machine/thread_times.hpp"
#include "machine/work.hpp"

namespace software_driver {

class HostThreads;

class Clock {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit Clock(HostThreads& host_threads) : host_threads_(host_threads) {}
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  void add_device(const Chip& chip) { devices_.push_back({Sms(chip), {}, {}, {}, 0}); }

  ThreadTimes& times() noexcept { return times_; }
  std::uint64_t now(const ThreadTime& thread) const noexcept { return std::max(thread.now, time_); }
  // The same for a thread that looks at its clock, which may have made it wait for its turn.
  std::uint64_t look(ThreadTime& thread) const {
    thread.sleeps = Caller::count_sleeps();
    return now(thread);
  }
  const Guesses& guesses() const noexcept { return guesses_; }  // up to now
  // A thread makes a call that takes it `ns`.
  void enter(ThreadTime& thread, std::uint64_t ns) { times_.enter(thread, time_, ns); }

  void submit(const WorkPtr& work);
  // Waits of the primary context see work of a green context from now on, if it was hidden.
  void show_to_primary(const WorkPtr& work);
  // Other processes have memory of this one: from now on all work shows.
  void share();
  // Lists the submitted work that `is_meant` and is not done, in the order of submission, behind done work whose
  // failure no wait has reported. The one place that knows: streams, contexts and graphs that gave it may be gone.
  template <class Is>
  std::vector<WorkPtr> outstanding(Is&& is_meant) {
    std::vector<WorkPtr> found;
    std::erase_if(failed_, has_reported);
    std::ranges::copy_if(failed_, std::back_inserter(found), [&](const WorkPtr& work) { return is_meant(*work); });
    for (const auto& [sequence, work] : outstanding_) {
      if (is_meant(*work)) {
        found.push_back(work);
      }
    }
    return found;
  }
  // The same of a context, its green contexts included: as much of it as stands for all. Work that waited for all that
  // there was (Work::gathers) stands for it.
  std::vector<WorkPtr> outstanding_of(std::uint64_t context);
  // A context is gone.
  void forget(std::uint64_t context) { by_context_.erase(context); }
  // Carries out work up to the time of a thread. Waits for no other thread.
  void catch_up(Lock& lock, const ThreadTime& thread);
  // Catches up for a thread that asks whether `work` is done. After several such polls without a change the thread
  // jumps to the end of the first of the works that it polls.
  void poll(Lock& lock, ThreadTime& thread, const WorkPtr& work);
  // Carries out work until `target` is done, and moves the thread's clock there. False when that cannot be: called
  // from inside a kernel or host function, where waiting is not allowed.
  bool finish(Lock& lock, ThreadTime& thread, WorkPtr target);
  // Moves the clock of a thread, whatever other threads do.
  void advance_thread(Lock& lock, ThreadTime& thread, std::uint64_t ns);
  // Lets time pass until the next host function is called: a program that makes no calls waits for it.
  void reach_host_function(Lock& lock);
  // Lets time pass until all effects that show are there, or until the next host function is called.
  void reach_effects(Lock& lock);
  // The time that kernels are given which wait for what nobody does.
  void set_patience(std::chrono::milliseconds patience) noexcept { patience_ = patience; }
  // A host function has returned.
  void host_returned(const WorkPtr& work);
  // The real driver lets about a thousand launches wait before it makes the caller wait.
  bool is_full() const noexcept { return outstanding_.size() > 1024; }
  // Makes room when it is full.
  void relieve(Lock& lock, const ThreadTime& thread);

 private:
  using Wall = std::chrono::steady_clock;

  struct Timer {
    std::uint64_t end;
    WorkPtr work;
    bool operator>(const Timer& other) const noexcept {
      return end != other.end ? end > other.end : work->sequence > other.work->sequence;
    }
  };
  struct DeviceLoad {
    Sms sms;
    std::vector<WorkPtr> grids;   // started, with blocks still to place; in the order in which they are served
    std::deque<WorkPtr> copies;   // that wait for an engine
    std::array<bool, 4> engines;  // a copy in this direction is under way
    int copying;
  };
  struct BlockCall {
    WorkPtr work;
    softwareDriverBlock block;
  };
  struct Unfinished {
    WorkPtr work;
    Rest rest;
  };
  struct HostCall {
    WorkPtr work;
    Wall::time_point since;
  };

  static bool has_reported(const WorkPtr& work);
  // The threads for whose next calls time waits: all others than `self`, or none.
  struct Bound {
    const ThreadTime* self = nullptr;
    bool none = false;
  };
  template <class Reached>
  void advance(Lock& lock, std::uint64_t limit, Bound bound, Reached&& reached);
  template <class Reached>
  void pass_until(Lock& lock, Bound bound, Reached&& reached);
  void expect_effect(Work& work);
  bool start_ready();
  bool start_heads();
  void list(const WorkPtr& work, std::uint64_t context);
  void begin(const WorkPtr& work);
  void begin_grid(const WorkPtr& work);
  bool start_copies(DeviceLoad& device);
  void queue_grid(DeviceLoad& device, const WorkPtr& work);
  void place_blocks(DeviceLoad& device);
  void end_blocks(std::size_t sm, const Resident& resident);
  void end_blocks(const WorkPtr& work, std::uint64_t blocks);
  void complete(const WorkPtr& work);
  bool run_unlocked(Lock& lock);
  void execute(DeviceLoad& device, std::size_t sm, Resident& resident);
  void let_others_in(Lock& lock);
  bool waits_for_host_alone() const;
  bool wait_for_host(Lock& lock);
  std::uint64_t next_moment();

  HostThreads& host_threads_;
  std::vector<DeviceLoad> devices_;
  std::vector<Connection*> busy_;
  std::vector<WorkPtr> unbound_;  // without a connection, behind no other work, not started
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::vector<WorkPtr> waits_;  // started, and their conditions do not hold yet
  bool shared_ = false;
  std::vector<BlockCall> block_calls_;
  std::vector<Unfinished> unfinished_;
  std::uint64_t idle_steps_ = 0;  // of kernels, since one of them last changed something
  bool executes_ = false;         // a kernel has had a step since others could come in
  Wall::time_point idle_since_{};
  Wall::time_point let_in_{};  // when others last had the lock
  std::chrono::milliseconds patience_{5000};
  std::vector<HostCall> host_calls_;  // given to the host threads, not returned
  std::uint64_t host_calls_made_ = 0;
  std::size_t to_show_ = 0;  // outstanding work whose effects show
  ThreadTimes times_;
  std::uint64_t time_ = 0;  // up to which work has been carried out
  std::uint64_t sequence_ = 0;
  Guesses guesses_;
  std::map<std::uint64_t, WorkPtr> outstanding_;  // by their sequence
  std::vector<WorkPtr> failed_;                   // done, and not all of their failures are reported
  std::unordered_map<std::uint64_t, std::vector<WorkPtr>> by_context_;
  bool advancing_ = false;
  std::condition_variable advanced_;
};

}  // namespace software_driver
