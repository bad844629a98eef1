// What stands behind the kernels' primitives on the CPU: fibers of one host thread play the threads of the blocks of
// all ranks, and a seed decides which of them goes on at every access to shared memory. So a run can be repeated, every
// order that was tried is known, and a deadlock is a fact that is found after a number of steps. Bulk copies happen as
// late as the protocol allows, and in any order. The clock is a counter of how often it was read: time limits do not
// depend on the machine.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cpu_primitives.hpp"

struct Barrier {
  u32 arrivals, pending, bytes = 0;
  u64 phase = 0;
  bool is_open = true;

  void settle() {
    if (pending == 0 && bytes == 0) {
      ++phase;
      pending = arrivals;
    }
  }
};

// A bulk store: reads shared memory at some time, writes global memory at some later time.
struct BulkStore {
  u64 to;
  const unsigned char* from;
  u32 bytes;
  std::vector<unsigned char> read;
  bool is_read = false, is_written = false;

  void do_read() {
    if (is_read) {
      return;
    }
    read.assign(from, from + bytes);
    is_read = true;
  }
  void do_write() {
    do_read();
    if (is_written) {
      return;
    }
    std::memcpy(reinterpret_cast<void*>(to), read.data(), bytes);
    is_written = true;
  }
};

// Runs fibers one at a time. Now and then it leaves one rank out for a while, so that ranks also run far apart.
class Fibers {
 public:
  Fibers(u32 seed, u32 ranks, u64 steps) : random_(seed), ranks_(ranks), steps_(steps) {}

  void add(u32 rank, std::function<void()> work) {
    auto fiber = std::make_unique<Fiber>();
    fiber->rank = rank;
    fiber->work = std::move(work);
    fiber->stack = stack();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Fibers::enter), 0);
    fibers_.push_back(std::move(fiber));
  }

  // Whether all fibers came to their ends within the steps.
  bool run() {
    now_ = this;
    while (!fibers_.empty()) {
      if (steps_-- == 0) {
        return false;
      }
      if (left_ == 0) {
        left_ = 1 + random_() % 4096;
        without_ = random_() % 2 ? random_() % ranks_ : ranks_;
      }
      --left_;
      size_t at = random_() % fibers_.size();
      if (fibers_[at]->rank == without_) {
        continue;
      }
      current_ = fibers_[at].get();
      switch_to(*current_);
      if (current_->is_over) {
        free_.push_back(std::move(current_->stack));
        std::swap(fibers_[at], fibers_.back());
        fibers_.pop_back();
      }
    }
    return true;
  }

  static void yield() {
    if (_setjmp(now_->current_->left_at) == 0) {
      _longjmp(now_->own_, 1);
    }
  }

 private:
  static constexpr size_t STACK_BYTES = 64 * 1024;
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    std::function<void()> work;
    u32 rank = 0;
    jmp_buf left_at;
    bool has_begun = false, is_over = false;
  };

  // By jumps, and a context for the first time alone: each switch between contexts sets the mask of signals, a system
  // call that takes longer than all else here.
  __attribute__((noinline)) void switch_to(Fiber& fiber) {
    if (_setjmp(own_) != 0) {
      return;
    }
    if (fiber.has_begun) {
      _longjmp(fiber.left_at, 1);
    }
    fiber.has_begun = true;
    setcontext(&fiber.context);
  }

  std::unique_ptr<char[]> stack() {
    if (free_.empty()) {
      return std::unique_ptr<char[]>(new char[STACK_BYTES]);
    }
    auto one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  static void enter() {
    Fiber* own = now_->current_;
    own->work();
    own->is_over = true;
    yield();
  }

  static inline Fibers* now_ = nullptr;
  std::mt19937 random_;
  u32 ranks_, without_ = 0;
  u64 steps_, left_ = 0;
  jmp_buf own_;
  Fiber* current_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<char[]>> free_;
};

// Threads that wait for each other: of a block or of a warp.
struct Meeting {
  u32 alive, arrived = 0;
  u64 generation = 0;
  bool all = true, last_all = true;

  void release() {
    arrived = 0;
    last_all = all;
    all = true;
    ++generation;
  }
  bool meet(bool mine) {
    all = all && mine;
    u64 seen = generation;
    if (++arrived == alive) {
      release();
    }
    while (generation == seen) {
      Fibers::yield();
    }
    return last_all;
  }
  // A thread that has ended is not waited for, as on the hardware.
  void leave() {
    --alive;
    if (alive != 0 && arrived == alive) {
      release();
    }
  }
};

struct Warp : Meeting {
  // What the threads show each other, in turns: the next but one meeting is after all have read.
  Vector shown[2][32];
};

struct BlockState {
  Meeting block;
  std::vector<Warp> warps;
  std::map<u64*, Barrier> barriers;
  std::vector<std::function<void()>> loads;
  std::vector<unsigned char> shared;
  // Of the one thread that stores.
  std::vector<std::vector<BulkStore>> groups;
  std::vector<BulkStore> open_group;

  BlockState(u32 threads, size_t bytes) : block{threads}, shared(bytes + 128) {
    for (u32 first = 0; first < threads; first += 32) {
      warps.push_back({{std::min(threads - first, 32u)}});
    }
  }

  void leave(u32 thread) {
    block.leave();
    warps[thread / 32].leave();
  }
  void some_load(std::mt19937& random) {
    if (loads.empty()) {
      return;
    }
    size_t at = random() % loads.size();
    auto load = loads[at];
    loads.erase(loads.begin() + at);
    load();
  }
};

struct Here {
  u32 thread, threads, block, blocks;
  BlockState* state;
  std::mt19937 random;
};

// Set by every fiber after it was let run.
static Here* here;
static u64 clock_reads = 0;

static void yield() {
  Here* mine = here;
  Fibers::yield();
  here = mine;
}
void pause_at_random() {
  if (here->random() % 4 == 0) {
    yield();
  }
}

u32 thread_index() { return here->thread; }
u32 thread_count() { return here->threads; }
u32 block_index() { return here->block; }
u32 block_count() { return here->blocks; }
static bool met(Meeting& meeting, bool mine) {
  Here* own = here;
  bool all = meeting.meet(mine);
  here = own;
  return all;
}
static Warp& own_warp() { return here->state->warps[here->thread / 32]; }
// What all threads of the warp show.
static const Vector* shown_in_warp(Vector words) {
  Warp& warp = own_warp();
  Vector* shown = warp.shown[warp.generation & 1];
  shown[here->thread % 32] = words;
  met(warp, true);
  return shown;
}

bool all_of_block(bool mine) { return met(here->state->block, mine); }
bool all_of_warp(bool mine) { return met(own_warp(), mine); }
Vector last_words(u32 word) {
  const Vector* four = shown_in_warp({word}) + here->thread % 32 / 4 * 4;
  return {four[0].word[0], four[1].word[0], four[2].word[0], 0};
}
u32 word_of_last(const Vector& words) {
  const Vector* four = shown_in_warp(words) + here->thread % 32 / 4 * 4;
  return four[3].word[std::min(here->thread % 4, 2u)];
}
u64 nanoseconds() { return ++clock_reads; }

unsigned char* dynamic_shared() {
  u64 first = reinterpret_cast<u64>(here->state->shared.data());
  return reinterpret_cast<unsigned char*>((first + 127) / 128 * 128);
}

void barrier_init(u64* barrier, u32 arrivals) { here->state->barriers[barrier] = {arrivals, arrivals}; }
void barrier_arrive(u64* barrier) {
  pause_at_random();
  Barrier& one = here->state->barriers.at(barrier);
  --one.pending;
  one.settle();
}
void barrier_arrive_and_expect(u64* barrier, u32 bytes) {
  Barrier& one = here->state->barriers.at(barrier);
  one.bytes += bytes;
  --one.pending;
  one.settle();
}
bool barrier_try_wait(u64* barrier, u32 parity) {
  pause_at_random();
  here->state->some_load(here->random);
  return (here->state->barriers.at(barrier).phase & 1) != parity;
}
void bulk_load(void* to, u64 from, u32 bytes, u64* barrier) {
  BlockState* state = here->state;
  state->loads.push_back([=] {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    Barrier& one = state->barriers.at(barrier);
    one.bytes -= bytes;
    one.settle();
  });
}
void bulk_store(u64 to, const void* from, u32 bytes) {
  here->state->open_group.push_back({to, static_cast<const unsigned char*>(from), bytes, {}});
}
void bulk_commit() {
  here->state->groups.push_back(std::move(here->state->open_group));
  here->state->open_group.clear();
}
void bulk_wait_read_of_all_but(u32 allowed) {
  auto& groups = here->state->groups;
  for (size_t at = 0; at + allowed < groups.size(); ++at) {
    for (BulkStore& store : groups[at]) {
      store.do_read();
    }
  }
}
void bulk_wait() {
  auto& groups = here->state->groups;
  std::shuffle(groups.begin(), groups.end(), here->random);
  for (auto& group : groups) {
    for (BulkStore& store : group) {
      store.do_write();
    }
  }
  groups.clear();
}

// ---- NVSHMEM: a place in the region of one rank stands for the same place in that of another

static std::vector<u64> regions;
static u64 region_bytes = 0;

extern "C" void set_regions(const u64* addresses, u32 count, u64 bytes) {
  regions.assign(addresses, addresses + count);
  region_bytes = bytes;
}

static u64 place_at(u64 own, u32 rank) {
  for (u64 region : regions) {
    if (own >= region && own < region + region_bytes) {
      return regions.at(rank) + (own - region);
    }
  }
  std::abort();
}

extern "C" void nvshmem_count(u64 counter, u64 count, u32 rank) {
  pause_at_random();
  *at(place_at(counter, rank)) += count;
}

// The bytes arrive in any order, and are there when it has counted.
extern "C" void nvshmem_send(u64 to, u64 from, u64 bytes, u64 counter, u64 count, u32 rank) {
  sync_block();
  if (thread_index() == 0) {
    std::vector<u64> places;
    for (u64 place = 0; place < bytes; place += sizeof(Vector)) {
      places.push_back(place);
    }
    std::shuffle(places.begin(), places.end(), here->random);
    for (u64 place : places) {
      store_vector(place_at(to, rank) + place, load_vector(from + place));
    }
    nvshmem_count(counter, count, rank);
  }
  sync_block();
}

// ---- The kernels of all ranks: each rank's calls one after the other, as on a stream

// One at a time, as other ranks run.
static void copy(const HostCopy* copies, u32 count) {
  for (u32 at = 0; at < count; ++at) {
    std::memcpy(reinterpret_cast<void*>(copies[at].to), reinterpret_cast<void*>(copies[at].from), copies[at].bytes);
    Fibers::yield();
  }
}

struct World {
  Fibers fibers;
  size_t shared;
};

void run_kernel(World& world, u32 rank, void (*kernel)(const void*), const HostCall& call, u32 seed) {
  std::vector<std::unique_ptr<BlockState>> states;
  u32 running = call.blocks * call.threads;
  for (u32 block = 0; block < call.blocks; ++block) {
    states.push_back(std::make_unique<BlockState>(call.threads, world.shared));
    for (u32 thread = 0; thread < call.threads; ++thread) {
      world.fibers.add(rank, [&, block, thread, state = states.back().get()] {
        Here mine{thread, call.threads, block, call.blocks, state, std::mt19937(seed + block * 1000 + thread)};
        here = &mine;
        kernel(call.arguments);
        state->leave(thread);
        --running;
      });
    }
  }
  while (running != 0) {
    Fibers::yield();
  }
}

// Whether all ranks came to the ends of their calls within the steps; if not, they wait for each other for ever.
extern "C" int run_ranks(const HostCall* calls, u32 ranks, u32 count, size_t shared, u32 seed, u64 steps) {
  World world{{seed, ranks, steps}, shared};
  for (u32 rank = 0; rank < ranks; ++rank) {
    world.fibers.add(rank, [=, &world] {
      for (u32 at = 0; at < count; ++at) {
        const HostCall& call = calls[rank * count + at];
        if (!call.present) {
          continue;
        }
        copy(call.before, call.copies_before);
        u32 own_seed = seed + 7919 * (rank * count + at);
        run_call(world, rank, call, own_seed);
        copy(call.after, call.copies_after);
      }
    });
  }
  return world.fibers.run();
}
