// The virtual clock: work queued on streams occupies SMs, copy engines and hardware queues in virtual time. Nothing
// moves by itself: work is carried out when somebody waits or asks.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "sim/abi/abi.hpp"
#include "sim/abi/control.h"
#include "sim/chip/chip.hpp"

namespace gctx::sim {

struct Work;
using WorkPtr = std::shared_ptr<Work>;

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

  Connection* deal() { return &connections[next++ % connections.size()]; }
};

// A kernel's grid on its way through the SMs.
struct Grid {
  SmSet sms;
  std::array<unsigned, 3> blocks{};
  std::array<unsigned, 3> threads{};
  unsigned total = 0;
  unsigned block_threads = 0;
  unsigned placed = 0;
  unsigned running = 0;
  std::uint64_t block_ns = 0;
  int priority = 0;
  unsigned cluster = 1;      // blocks that must be on SMs of one part at once
  std::vector<SmSet> parts;  // for clusters of more than one block
  gctxSimKernelFunction function = nullptr;
  void* user = nullptr;
  std::function<void(const gctxSimBlock&)> built_in;
  std::vector<std::vector<unsigned char>> arguments;
};

struct Work {
  std::vector<WorkPtr> after;
  std::uint64_t submitted = 0;
  std::uint64_t duration = 0;  // of work that is no grid
  std::uint64_t sequence = 0;
  int device = 0;
  std::shared_ptr<QueueSet> queues;  // keeps the connection alive
  Connection* connection = nullptr;  // null: bound by its dependencies alone
  std::unique_ptr<Grid> grid;
  std::function<void()> effect;  // at completion, with the machine locked
  std::function<void()> host;    // at completion, with the machine unlocked
  bool done = false;
  std::uint64_t ended = 0;
};

struct SmLoad {
  unsigned blocks = 0;
  unsigned threads = 0;
};

class Clock {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Clock() = default;
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  void add_device(const Chip& chip) { devices_.push_back({&chip, std::vector<SmLoad>(chip.sm_count()), {}}); }

  std::uint64_t now() const noexcept { return now_; }
  void pass(std::uint64_t ns) noexcept { now_ += ns; }

  void submit(const WorkPtr& work);
  // Carries out what is over by now. Does not wait for another thread that is at it.
  void catch_up(Lock& lock);
  // Carries out work until `target` is done, and moves the time of the host there. False when that cannot be: called
  // from inside a kernel or host function of this machine, where waiting is not allowed.
  bool finish(Lock& lock, WorkPtr target);
  // The real driver lets about a thousand launches wait before it makes the caller wait.
  bool is_full() const noexcept { return outstanding_ > 1024; }
  WorkPtr oldest() const;
  bool is_idle() const noexcept { return outstanding_ == 0; }

 private:
  struct Block {
    std::uint64_t end;
    std::uint64_t sequence;
    int sm;
    WorkPtr work;
    bool operator>(const Block& other) const noexcept {
      return end != other.end ? end > other.end : sequence > other.sequence;
    }
  };
  struct DeviceLoad {
    const Chip* chip;
    std::vector<SmLoad> sms;
    std::vector<WorkPtr> grids;  // started, with blocks still to place; in the order in which they are served
  };
  struct HostCall {
    WorkPtr work;
    gctxSimBlock block;
  };

  void run(Lock& lock, std::uint64_t limit, const Work* target);
  bool start_ready();
  bool start_heads();
  void begin(const WorkPtr& work);
  void place_blocks(DeviceLoad& device);
  void place_block(DeviceLoad& device, const WorkPtr& work, int sm);
  void complete(const WorkPtr& work);
  bool call_host(Lock& lock);
  std::uint64_t next_moment() const;

  std::vector<DeviceLoad> devices_;
  std::vector<Connection*> busy_;
  std::vector<WorkPtr> unbound_;  // without a connection, not started
  std::priority_queue<Block, std::vector<Block>, std::greater<>> running_;
  std::vector<HostCall> block_calls_;
  std::vector<std::function<void()>> host_calls_;
  std::uint64_t now_ = 0;   // of the host
  std::uint64_t time_ = 0;  // up to which work has been carried out
  std::uint64_t sequence_ = 0;
  std::uint64_t outstanding_ = 0;
  bool advancing_ = false;
  std::thread::id advancing_thread_;
  std::condition_variable advanced_;
};

}  // namespace gctx::sim
