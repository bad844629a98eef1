// Work that streams are given: what it waits for, what it takes of a device, and what it does when it is over.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "abi/cuda_software_driver.h"
#include "chip/chip.hpp"
#include "machine/sms.hpp"
#include "machine/unknown.hpp"

namespace software_driver {

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
    if (blocks == 0 || blocks > from) {
      broken_law(otherwise);
    }
    from -= blocks;
    to += blocks;
  }

  std::uint64_t waiting_ = 0;
  std::uint64_t on_sms_ = 0;
  std::uint64_t ended_ = 0;
};

// A kernel that is executed: its blocks go on in steps, so that they may wait for each other, for other work and for
// the host.
class Execution {
 public:
  struct Step {
    BlockCost cost;
    bool is_over = false;
    bool is_idle = false;  // it changed nothing, and read nothing new
  };
  virtual ~Execution() = default;
  // A block on an SM goes on.
  virtual Step step(std::uint64_t block, std::size_t sm, std::uint64_t now) = 0;
  // True if each block that has begun waits for something that no block of the kernel does.
  virtual bool is_stuck() = 0;
  // Ends the kernel: nobody does what its blocks wait for.
  virtual void give_up() = 0;
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
  std::uint64_t tiles = 0;  // that no block has taken yet: a block takes them until there are none
  BlockCost tile;
  int priority = 0;
  unsigned cluster = 1;      // blocks that must be on SMs of one part at once
  std::vector<SmSet> parts;  // for clusters of more than one block
  softwareDriverKernelFunction function = nullptr;
  void* user = nullptr;
  std::function<void(const softwareDriverBlock&)> built_in;
  std::shared_ptr<Execution> execution;
  bool is_empty = false;     // a kernel that returns at once
  bool is_declared = false;  // its cost is, and not counted by the execution
  std::uint64_t seen = 0;    // blocks, from the first on, that a function has to be called for one by one
  std::vector<std::vector<unsigned char>> arguments;
  std::shared_ptr<const std::string> kernel;   // its name
  std::shared_ptr<const std::string> guessed;  // the name of a kernel whose cost is assumed
  bool failed = false;                         // its function has
};

// The kernels of an assumed cost that are over at a moment: how many, and the last.
struct Guesses {
  std::uint64_t count = 0;
  std::shared_ptr<const std::string> kernel;
};

// The kernel of an assumed cost that ended between two moments; null if there is none.
inline const std::string* guess_between(const Guesses& one, const Guesses& other) {
  return one.count == other.count ? nullptr : (one.count < other.count ? other : one).kernel.get();
}

// What copies go through. Those of one direction share the link to the host, so they take turns.
enum class Engine { none, to_device, to_host, in_device };

// Whose work it is. Those that wait for a context or a device find it by this, whatever has become of its stream.
struct Owner {
  std::uint64_t context = 0;  // the id of the context that it was given to
  std::uint64_t root = 0;     // the id of that context's primary one (or its own)
  bool is_blocking = false;   // what follows on the legacy default stream of the context waits for it
};

// The source of work, for profilers.
struct WorkSource {
  std::uint64_t context = 0;  // that it runs in
  std::uint64_t stream = 0;
  std::uint64_t graph = 0;   // that it is a node of
  std::uint64_t launch = 0;  // of that graph
  bool ends_launch = false;  // a mark behind all of its nodes
};

// What of a primary context sees work of its green contexts: its waits and its events, or its waits alone.
enum class Seen { by_all, by_waits, by_none };

// What is left to do without the lock, if anything, before the work is done.
using Rest = std::function<void()>;
using Effect = std::function<Rest()>;

// What a piece of work takes and does, if it is no grid.
struct Task {
  std::uint64_t duration = 0;
  Engine engine = Engine::none;
  double bytes = 0;  // that a copy or a fill moves inside device memory, after its duration
  Effect effect;     // at completion, with the machine locked
  std::function<void(Work&)>
      marks;                    // likewise: marks the memory that it writes, and fails where it reads marked memory
  bool shows = false;           // a program that makes no calls sees its effect
  std::function<bool()> until;  // it waits for this, which others bring about
  std::function<void()> host;   // instead of a duration: called on a thread of the machine, done when it returns
};

struct Work : Task {
  std::vector<WorkPtr> after;
  std::vector<WorkPtr> followers;  // without a connection, that have this work in `after`
  std::size_t blockers = 0;        // in `after`, not done
  std::uint64_t submitted = 0;
  std::uint64_t started = 0;  // its first block, or its copy
  std::uint64_t sequence = 0;
  int device = 0;
  Owner owner;
  WorkSource source;
  std::shared_ptr<QueueSet> queues;  // keeps the connection alive
  Connection* connection = nullptr;  // null: bound by its dependencies alone
  std::unique_ptr<Grid> grid;
  bool gathers = false;      // it waits for all that its context has to do
  Seen seen = Seen::by_all;  // of work of a green context
  bool done = false;
  std::uint64_t ended = 0;
  Guesses guesses;                   // when it ended
  std::vector<FailurePtr> failures;  // its own, and those of the work before it

  void inherit_failures(const Work& before);
  void fail(FailurePtr failure);

  // Whether it does nothing but mark a place in an order.
  bool is_mark() const noexcept {
    return !grid && !host && !effect && !until && engine == Engine::none && duration == 0 && bytes == 0;
  }
};

}  // namespace software_driver
