// The virtual clock: work queued on streams occupies SMs, copy engines, memory and hardware queues in virtual time. It
// is carried out when somebody waits or asks; and, while a host function is due, when nobody has called for a while.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <vector>

#include "abi/abi.hpp"
#include "abi/cuda_gctx_sim.h"
#include "chip/chip.hpp"
#include "machine/sms.hpp"

namespace gctx::sim {

// A hardware queue. Its head blocks what stands behind it, also work of other streams.
struct Connection {
  std::deque<WorkPtr> waiting;
  bool listed = false;  // in Clock::busy_
};

// The queues that a context's streams are dealt out to, in turn.
struct QueueSet {
  explicit QueueSet(std::size_t count) : connections(count) {}
  std::vector<Connection> connections;
  std::size_t next = 0;
  std::uint64_t id = 0;
  int device = 0;

  Connection* deal() { return &connections[next++ % connections.size()]; }
};

// Prints what cannot be and ends the process: the clock has lost count, and would go on with numbers that mean nothing.
[[noreturn]] void broken_law(const char* what);

// The blocks of a grid. Each of them waits, is on an SM or has ended; none is ever in two places, or in none.
class BlockCount {
 public:
  BlockCount() = default;
  explicit BlockCount(std::uint64_t total) : waiting_(total) {}

  void place(std::uint64_t blocks) { move(waiting_, on_sms_, blocks, "more blocks are placed than wait"); }
  void give_back(std::uint64_t blocks) { move(on_sms_, waiting_, blocks, "more blocks are given back than run"); }
  void end(std::uint64_t blocks) { move(on_sms_, ended_, blocks, "more blocks end than run"); }

  std::uint64_t waiting() const noexcept { return waiting_; }
  std::uint64_t placed() const noexcept { return on_sms_ + ended_; }
  bool is_over() const noexcept { return waiting_ + on_sms_ == 0; }

 private:
  static void move(std::uint64_t& from, std::uint64_t& to, std::uint64_t blocks, const char* otherwise) {
    if (blocks == 0 || blocks > from) broken_law(otherwise);
    from -= blocks;
    to += blocks;
  }

  std::uint64_t waiting_ = 0;
  std::uint64_t on_sms_ = 0;
  std::uint64_t ended_ = 0;
};

// A kernel's grid on its way through the SMs.
struct Grid {
  SmSet sms;
  std::array<unsigned, 3> blocks{};
  std::array<unsigned, 3> threads{};
  BlockCount count;
  std::uint64_t places = 1;  // blocks that run at once on empty SMs
  BlockNeeds needs;
  BlockCost cost;
  int priority = 0;
  unsigned cluster = 1;      // blocks that must be on SMs of one part at once
  std::vector<SmSet> parts;  // for clusters of more than one block
  gctxSimKernelFunction function = nullptr;
  void* user = nullptr;
  std::function<void(const gctxSimBlock&)> built_in;
  std::uint64_t seen = 0;  // blocks, from the first on, that a function has to be called for one by one
  std::vector<std::vector<unsigned char>> arguments;
};

// What copies go through. Those of one direction share the link to the host, so they take turns.
enum class Engine { none, to_device, to_host, in_device };

struct Work {
  std::vector<WorkPtr> after;
  std::uint64_t submitted = 0;
  std::uint64_t duration = 0;  // of work other than grids
  std::uint64_t sequence = 0;
  int device = 0;
  Engine engine = Engine::none;
  double bytes = 0;                  // that a copy or a fill moves inside device memory, after its duration
  std::shared_ptr<QueueSet> queues;  // keeps the connection alive
  Connection* connection = nullptr;  // null: bound by its dependencies alone
  std::unique_ptr<Grid> grid;
  std::function<void()> effect;  // at completion, with the machine locked
  std::function<void()> host;    // instead of a duration: called on a thread of the machine, done when it returns
  bool done = false;
  std::uint64_t ended = 0;
};

class HostThreads;

class Clock {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit Clock(HostThreads& host_threads) : host_threads_(host_threads) {}
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  void add_device(const Chip& chip) { devices_.push_back({Sms(chip), {}, {}, {}, 0}); }

  std::uint64_t now() const noexcept { return now_; }
  void pass(std::uint64_t ns) noexcept { now_ += ns; }

  void submit(const WorkPtr& work);
  // Carries out what is over by now. Does not wait for another thread that is at it.
  void catch_up(Lock& lock);
  // Carries out work until `target` is done, and moves the time of the host there. False when that cannot be: called
  // from inside a kernel or host function, where waiting is not allowed.
  bool finish(Lock& lock, WorkPtr target);
  // Lets time pass until the next host function is called: a program that makes no calls waits for it.
  void reach_host_function(Lock& lock);
  // A host function has returned.
  void host_returned(const WorkPtr& work);
  // The real driver lets about a thousand launches wait before it makes the caller wait.
  bool is_full() const noexcept { return outstanding_ > 1024; }
  // Makes room when it is full.
  void relieve(Lock& lock);

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
    gctxSimBlock block;
  };
  struct HostCall {
    WorkPtr work;
    Wall::time_point since;
  };

  template <class Reached>
  void advance(Lock& lock, std::uint64_t limit, Reached&& reached);
  bool start_ready();
  bool start_heads();
  void begin(const WorkPtr& work);
  void begin_grid(const WorkPtr& work);
  bool start_copies(DeviceLoad& device);
  void queue_grid(DeviceLoad& device, const WorkPtr& work);
  void place_blocks(DeviceLoad& device);
  void end_blocks(std::size_t sm, const Resident& resident);
  void complete(const WorkPtr& work);
  bool call_blocks(Lock& lock);
  bool wait_for_host(Lock& lock);
  std::uint64_t next_moment();

  HostThreads& host_threads_;
  std::vector<DeviceLoad> devices_;
  std::vector<Connection*> busy_;
  std::vector<WorkPtr> unbound_;  // without a connection, not started
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::vector<BlockCall> block_calls_;
  std::vector<HostCall> host_calls_;  // given to the host threads, not returned
  std::uint64_t host_calls_made_ = 0;
  std::uint64_t now_ = 0;   // of the host
  std::uint64_t time_ = 0;  // up to which work has been carried out
  std::uint64_t sequence_ = 0;
  std::uint64_t outstanding_ = 0;
  bool advancing_ = false;
  std::condition_variable advanced_;
};

}  // namespace gctx::sim
