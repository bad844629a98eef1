// What stands behind the kernels' primitives on the CPU: fibers of one host thread play the threads of the blocks of
// all ranks, and a seed decides which of them goes on at every access to memory, and which of the values that the model
// of cpu_memory.hpp grants a load returns. So a run can be repeated, every order that was tried is known, and a
// deadlock is a fact that is found after a number of steps. Bulk copies happen as late as the protocol allows, and in
// any order. The clock is a counter of how often it was read: time limits do not depend on the machine.
#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "cpu_memory.hpp"

struct Barrier {
  u32 arrivals = 0, pending = 0;
  u32 actor = 0;  // of the copies that complete on it
  u32 copies = 0, bytes = 0;
  u64 phase = 0;
  bool is_known_to_engine = false;
  Knowledge arriving;
  Snapshot arrived;

  void settle() {
    if (pending == 0 && bytes == 0) {
      ++phase;
      pending = arrivals;
      arrived = std::make_shared<const Knowledge>(arriving);
    }
  }
};

// The world that is running.
static Memory* memory = nullptr;

// A bulk store: reads shared memory at some time, writes global memory at some later time.
struct BulkStore {
  u64 to;
  const unsigned char* from;
  u32 bytes, rank;
  Snapshot known;
  Event read_event, write_event;
  std::vector<unsigned char> contents;
  bool is_read = false, is_written = false;

  void do_read() {
    if (is_read) {
      return;
    }
    memory->read(known->bulk_shared, read_event, reinterpret_cast<u64>(from), bytes);
    contents.assign(from, from + bytes);
    is_read = true;
  }
  void do_write() {
    do_read();
    if (is_written) {
      return;
    }
    memory->write(known->bulk, write_event, to, bytes);
    std::memcpy(reinterpret_cast<void*>(to), contents.data(), bytes);
    memory->wrote(write_event, rank, to, bytes);
    is_written = true;
  }
};

// Runs fibers one at a time. Now and then it leaves one rank or one thread out for a while, so that they also run far
// apart.
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

  // Whether all fibers came to their ends within the steps, or until something was wrong, unless they run to the end.
  bool run(const std::string& wrong, bool to_the_end) {
    now_ = this;
    while (!fibers_.empty() && (to_the_end || wrong.empty())) {
      if (steps_-- == 0) {
        return false;
      }
      if (left_ == 0) {
        left_ = 1 + random_() % (64 << random_() % 10);
        u32 choice = random_() % 4;
        without_ = choice == 0 ? random_() % ranks_ : ranks_;
        without_one_ = choice == 1 ? fibers_[random_() % fibers_.size()].get() : nullptr;
      }
      --left_;
      size_t at = random_() % fibers_.size();
      if (fibers_[at]->rank == without_ || fibers_[at].get() == without_one_) {
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
  Random random_;
  u32 ranks_, without_ = 0;
  u64 steps_, left_ = 0;
  jmp_buf own_;
  Fiber* current_ = nullptr;
  const Fiber* without_one_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<char[]>> free_;
};

// Threads that wait for each other: of a block or of a warp.
struct Meeting {
  u32 alive, arrived = 0;
  u64 generation = 0;
  bool all = true, last_all = true;
  // What the threads know who have arrived, and those of the last two generations. Not every meeting hands it on.
  std::unique_ptr<Knowledge> gathered;
  Snapshot handed[2];

  void release() {
    arrived = 0;
    last_all = all;
    all = true;
    handed[generation & 1] = std::move(gathered);
    ++generation;
  }
  bool meet(bool mine, Agent* agent) {
    all = all && mine;
    u64 seen = generation;
    if (agent) {
      if (!gathered) {
        gathered = std::make_unique<Knowledge>(agent->knows.ordinary.size());
      }
      gathered->learn(agent->knows);
      agent->next();
    }
    if (++arrived == alive) {
      release();
    }
    while (generation == seen) {
      Fibers::yield();
    }
    if (agent) {
      agent->learn(handed[seen & 1]);
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

struct Launch;

struct BlockState {
  Launch* launch;
  Meeting block;
  std::vector<Warp> warps;
  std::map<u64*, Barrier> barriers;
  std::vector<std::function<void()>> loads;
  std::vector<unsigned char> shared;
  bool has_let_next_begin = false;
  u32 of_first = 0;
  // Of the one thread that stores: what its copies read and what they write, and how many groups there were.
  u32 reads_actor, writes_actor;
  u32 groups_before = 0;
  std::vector<std::vector<BulkStore>> groups;
  std::vector<BulkStore> open_group;

  BlockState(Launch* launch, u32 threads, size_t bytes) : launch(launch), block{threads}, shared(bytes + 128) {
    for (u32 first = 0; first < threads; first += 32) {
      Warp& warp = warps.emplace_back();
      warp.alive = std::min(threads - first, 32u);
    }
    memory->forget(reinterpret_cast<u64>(shared.data()), shared.size());
  }

  void leave(u32 thread) {
    block.leave();
    warps[thread / 32].leave();
  }
  void some_load(Random& random) {
    if (loads.empty()) {
      return;
    }
    size_t at = random() % loads.size();
    auto load = loads[at];
    loads.erase(loads.begin() + at);
    load();
  }
};

// A kernel that runs.
struct Launch {
  u32 running = 0;  // threads
  bool is_given_back = false;
  bool is_ready = false;  // what is before it in the stream has ended
  std::vector<std::unique_ptr<BlockState>> blocks;
  std::vector<u32> actors;
  Snapshot before;
  Knowledge after;

  explicit Launch(size_t actors) : after(actors) {}
  bool has_begun() const {
    return running == 0 ||
           std::any_of(blocks.begin(), blocks.end(), [](const auto& one) { return one->of_first != 0; });
  }
  bool lets_next_begin() const {
    return std::all_of(blocks.begin(), blocks.end(),
                       [](const auto& one) { return one->has_let_next_begin || one->block.alive == 0; });
  }
};

// The ranks' memory and fibers, and the actors that are free: those of a kernel that has ended are taken by a later one
// of its rank, which comes after it.
struct World {
  Fibers fibers;
  Memory weak;
  size_t shared;
  size_t actors;
  Numbers events;  // of each actor, so far
  std::vector<std::vector<u32>> free;

  u32 actor_of(u32 rank) {
    u32 actor = free[rank].back();
    free[rank].pop_back();
    return actor;
  }
};

struct Stream {
  World& world;
  Agent agent;
  Random random;
  std::unique_ptr<Launch> running, next;
  bool is_next_to_another = false;
  u32 launched = 0;  // kernels

  // Until the kernel that runs has ended.
  void wait() { wait_for(running); }
  void wait_for(std::unique_ptr<Launch>& launch) {
    if (!launch) {
      return;
    }
    while (launch->running != 0) {
      Fibers::yield();
    }
    agent.knows.learn(launch->after);
    // The end of a kernel completes its own copies, for all that comes behind it.
    for (u32 actor : launch->actors) {
      agent.knows.ordinary[actor] = std::max(agent.knows.ordinary[actor], agent.knows.bulk[actor]);
    }
    auto& free = world.free[agent.rank];
    free.insert(free.end(), launch->actors.begin(), launch->actors.end());
    launch.reset();
  }
};

struct Here {
  u32 thread, threads, block, blocks;
  BlockState* state;
  World* world;
  Agent agent;
  Random random;
};

// Set by every fiber after it was let run.
static Here* here;
static u64 clock_reads = 0;

static void yield() {
  Here* mine = here;
  Fibers::yield();
  here = mine;
}
static void pause_for(u32 turns) {
  while (turns-- != 0) {
    yield();
  }
}
static void pause_at_random() {
  u32 choice = here->random() % 1024;
  if (choice < 256) {
    // Now and then for so long that the others do nearly all that they can without this thread.
    pause_for(choice == 0 ? here->random() % 256 : 1);
  }
}

u32 thread_index() { return here->thread; }
u32 thread_count() { return here->threads; }
u32 block_index() { return here->block; }
u32 block_count() { return here->blocks; }
static bool met(Meeting& meeting, bool mine, bool hands_on) {
  Here* own = here;
  bool all = meeting.meet(mine, hands_on ? &own->agent : nullptr);
  here = own;
  return all;
}
static Warp& own_warp() { return here->state->warps[here->thread / 32]; }
// What all threads of the warp show.
static const Vector* shown_in_warp(Vector words) {
  Warp& warp = own_warp();
  Vector* shown = warp.shown[warp.generation & 1];
  shown[here->thread % 32] = words;
  met(warp, true, false);
  return shown;
}

bool all_of_block(bool mine) {
  pause_at_random();
  return met(here->state->block, mine, true);
}
u32 of_first(u32 mine) {
  if (here->thread == 0) {
    here->state->of_first = mine;
  }
  all_of_block(true);
  return here->state->of_first;
}
void sync_warp() { met(own_warp(), true, true); }
bool all_of_warp(bool mine) { return met(own_warp(), mine, false); }
Vector last_words(u32 word) {
  const Vector* four = shown_in_warp({word}) + here->thread % 32 / 4 * 4;
  return {four[0].word[0], four[1].word[0], four[2].word[0], 0};
}
u32 word_of_last(const Vector& words) {
  const Vector* four = shown_in_warp(words) + here->thread % 32 / 4 * 4;
  return four[3].word[std::min(here->thread % 4, 2u)];
}
u32 word_of_next(u32 word) {
  u32 place = here->thread % 32;
  return shown_in_warp({word})[std::min(place + 1, 31u)].word[0];
}
u64 nanoseconds() { return ++clock_reads; }
void stop_device() { memory->fail("the device was stopped"); }

void wait_for_previous_kernel() {
  Launch& own = *here->state->launch;
  while (!own.is_ready) {
    yield();
  }
  here->agent.learn(own.before);
}
void let_next_kernel_begin() { here->state->has_let_next_begin = true; }

// ---- words

// When a call has given its word back, the next one may run: nothing of it accesses memory any more.
static void demand_running();
static Vector load_word(u64 address, u32 bytes, bool acquires) {
  pause_at_random();
  demand_running();
  return memory->load(here->agent, address, bytes, acquires, here->random);
}
static u64 as_number(const Vector& value) { return static_cast<u64>(value.word[1]) << 32 | value.word[0]; }
static Vector as_vector(u64 value) { return {static_cast<u32>(value), static_cast<u32>(value >> 32)}; }
static void demand_running() {
  if (here->state->launch->is_given_back) {
    memory->fail("a call has given its word back, and still runs");
  }
}
static void store_word(u64 address, u32 bytes, Vector value, bool releases) {
  pause_at_random();
  demand_running();
  memory->store(here->agent, address, bytes, value, releases);
}

void store_relaxed(u64 address, u64 value) { store_word(address, 8, as_vector(value), false); }
u64 load_relaxed(u64 address) { return as_number(load_word(address, 8, false)); }
void store_packet(u64 address, Vector packet) { store_word(address, 16, packet, false); }
void store_packet_in_halves(u64 address, Vector packet) {
  Vector half = *reinterpret_cast<const Vector*>(address);
  half.word[2] = packet.word[2];
  half.word[3] = packet.word[3];
  store_packet(address, half);
  store_packet(address, packet);
}
Vector load_packet(u64 address) { return load_word(address, 16, false); }
// In any order.
void store_halves(u64 address, Vector packet) {
  u32 first = here->random() % 2 * 2;
  for (u32 word : {first, 2 - first}) {
    store_word(address + word * 4, 8, {packet.word[word], packet.word[word + 1]}, false);
  }
}
Vector load_halves(u64 address) {
  Vector packet{};
  u32 first = here->random() % 2 * 2;
  for (u32 word : {first, 2 - first}) {
    Vector half = load_word(address + word * 4, 8, false);
    packet.word[word] = half.word[0];
    packet.word[word + 1] = half.word[1];
  }
  return packet;
}
void store_release(u64 address, u64 value) { store_word(address, 8, as_vector(value), true); }
u64 load_acquire(u64 address) { return as_number(load_word(address, 8, true)); }
void fence_device() { here->agent.fence(false); }
void fence_system() { here->agent.fence(true); }
u32 load_own(u64 address) { return load_word(address, 4, false).word[0]; }
void store_own(u64 address, u64 value) {
  store_word(address, 8, as_vector(value), false);
  here->state->launch->is_given_back = true;
}
u64 add_own(u64 address, u64 value) {
  pause_at_random();
  return memory->change(here->agent, address, 8, false, [=](u64 old) { return old + value; });
}
u64 swap_own_word_if(u64 address, u64 expected, u64 value) {
  pause_at_random();
  return memory->change(here->agent, address, 8, false, [=](u64 old) { return old == expected ? value : old; });
}
u32 swap_own_if(u64 address, u32 expected, u32 value) {
  pause_at_random();
  return memory->change(here->agent, address, 4, false, [=](u64 old) { return old == expected ? value : old; });
}

// ---- tensors and tiles

Vector load_vector(u64 address) {
  demand_running();
  memory->read(here->agent.knows.ordinary, here->agent.event(), address, sizeof(Vector));
  return *reinterpret_cast<const Vector*>(address);
}
void store_vector(u64 address, Vector value) {
  pause_at_random();
  demand_running();
  Agent& own = here->agent;
  memory->write(own.knows.ordinary, own.event(), address, sizeof(Vector));
  *reinterpret_cast<Vector*>(address) = value;
  memory->wrote(own.event(), own.rank, address, sizeof(Vector));
}
// Counts how often each part of an output was overwritten in a run.
static std::map<u64, u32> overwritten;
extern "C" u32 most_overwritten() {
  u32 most = 0;
  for (const auto& [_, times] : overwritten) {
    most = std::max(most, times);
  }
  return most;
}
void overwrite_vector(u64 address, Vector value) {
  pause_at_random();
  *reinterpret_cast<Vector*>(address) = value;
  ++overwritten[address];
}
Vector load_tile(const void* tile, u32 at) { return load_vector(reinterpret_cast<u64>(tile) + at * sizeof(Vector)); }
void store_tile(void* tile, u32 at, Vector value) {
  store_vector(reinterpret_cast<u64>(tile) + at * sizeof(Vector), value);
}

unsigned char* dynamic_shared() {
  u64 first = reinterpret_cast<u64>(here->state->shared.data());
  return reinterpret_cast<unsigned char*>((first + 127) / 128 * 128);
}

// ---- barriers and bulk copies

void barrier_init(u64* barrier, u32 arrivals) {
  World& world = *here->world;
  u32 actor = world.actor_of(here->agent.rank);
  here->state->launch->actors.push_back(actor);
  Barrier& one = here->state->barriers[barrier];
  one.arrivals = one.pending = arrivals;
  one.actor = actor;
  one.copies = world.events[actor];
  one.arriving = Knowledge(world.actors);
}
void barrier_init_done() {
  for (auto& [_, barrier] : here->state->barriers) {
    barrier.is_known_to_engine = true;
  }
}
static Barrier& initialised(u64* barrier) {
  if (here->state->barriers.count(barrier) == 0) {
    memory->fail("a barrier is used before it is initialised");
    barrier_init(barrier, 1);
  }
  return here->state->barriers.at(barrier);
}
static Barrier& arrive(u64* barrier) {
  pause_at_random();
  Barrier& one = initialised(barrier);
  --one.pending;
  return one;
}
void barrier_arrive(u64* barrier) {
  initialised(barrier).arriving.learn(here->agent.knows);
  here->agent.next();
  arrive(barrier).settle();
}
void arrive_without_release(u64* barrier) { arrive(barrier).settle(); }
void barrier_arrive_and_expect(u64* barrier, u32 bytes) {
  initialised(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
bool barrier_try_wait(u64* barrier, u32 parity) {
  bool is_over = try_wait_without_acquire(barrier, parity);
  if (is_over) {
    here->agent.learn(initialised(barrier).arrived);
  }
  return is_over;
}
bool try_wait_without_acquire(u64* barrier, u32 parity) {
  pause_at_random();
  here->state->some_load(here->random);
  return (initialised(barrier).phase & 1) != parity;
}
void bulk_load(void* to, u64 from, u32 bytes, u64* barrier) {
  BlockState* state = here->state;
  Barrier& one = initialised(barrier);
  if (!one.is_known_to_engine) {
    memory->fail("a bulk copy completes on a barrier that its engine does not know");
  }
  Event event{one.actor, ++one.copies};
  here->world->events[one.actor] = one.copies;
  auto known = std::make_shared<const Knowledge>(here->agent.knows);
  u32 rank = here->agent.rank;
  state->loads.push_back([=, &one] {
    memory->read(known->bulk, event, from, bytes);
    memory->write(known->bulk_shared, event, reinterpret_cast<u64>(to), bytes);
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    memory->wrote(event, rank, reinterpret_cast<u64>(to), bytes);
    one.bytes -= bytes;
    // All copies of a phase complete together for who waits.
    for (Numbers* numbers : {&one.arriving.ordinary, &one.arriving.bulk, &one.arriving.bulk_shared}) {
      (*numbers)[event.actor] = std::max((*numbers)[event.actor], event.number);
    }
    one.settle();
  });
}
void bulk_store(u64 to, const void* from, u32 bytes) {
  BlockState* state = here->state;
  u32 group = state->groups_before + static_cast<u32>(state->groups.size()) + 1;
  auto known = std::make_shared<const Knowledge>(here->agent.knows);
  state->open_group.push_back({to,
                               static_cast<const unsigned char*>(from),
                               bytes,
                               here->agent.rank,
                               known,
                               {state->reads_actor, group},
                               {state->writes_actor, group},
                               {}});
}
void bulk_commit() {
  BlockState* state = here->state;
  state->groups.push_back(std::move(state->open_group));
  state->open_group.clear();
  u32 groups = state->groups_before + static_cast<u32>(state->groups.size());
  here->world->events[state->reads_actor] = here->world->events[state->writes_actor] = groups;
}
void bulk_wait_read_of_all_but(u32 allowed) {
  BlockState* state = here->state;
  size_t at = 0;
  for (; at + allowed < state->groups.size(); ++at) {
    for (BulkStore& store : state->groups[at]) {
      store.do_read();
    }
  }
  Knowledge& knows = here->agent.knows;
  for (Numbers* numbers : {&knows.ordinary, &knows.bulk, &knows.bulk_shared}) {
    (*numbers)[state->reads_actor] = state->groups_before + static_cast<u32>(at);
  }
}
void bulk_wait() {
  auto groups = here->state->groups;
  std::shuffle(groups.begin(), groups.end(), here->random);
  for (auto& group : groups) {
    for (BulkStore& store : group) {
      store.do_write();
    }
  }
  bulk_wait_read_of_all_but(0);
  BlockState* state = here->state;
  state->groups_before += static_cast<u32>(state->groups.size());
  state->groups.clear();
  here->agent.knows.bulk[state->writes_actor] = state->groups_before;
}
void fence_bulk() { here->agent.fence_bulk(); }
void fence_bulk_shared() { here->agent.fence_bulk_shared(); }

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
  memory->change(here->agent, place_at(counter, rank), 8, true, [=](u64 old) { return old + count; });
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

// One at a time, as other ranks and streams run.
static void copy(Stream& on, const HostCopy* copies, u32 count) {
  Agent& stream = on.agent;
  for (u32 at = 0; at < count; ++at) {
    // Next to another stream, a copy now and then takes as long as a kernel.
    for (u32 turns = on.is_next_to_another && on.random() % 2 == 0 ? on.random() % 2000 : 0; turns != 0; --turns) {
      Fibers::yield();
    }
    const auto& [to, from, bytes] = copies[at];
    memory->read(stream.knows.ordinary, stream.event(), from, bytes);
    memory->write(stream.knows.ordinary, stream.event(), to, bytes);
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    memory->wrote(stream.event(), stream.rank, to, bytes);
    stream.next();
    Fibers::yield();
  }
}

void begin_kernel(Stream& stream, void (*kernel)(const void*), const HostCall& call, u32 seed) {
  World& world = stream.world;
  const u32 rank = stream.agent.rank;
  stream.next = std::make_unique<Launch>(world.actors);
  Launch* launch = stream.next.get();
  launch->running = call.blocks * call.threads;
  auto actor = [&world, rank, launch] {
    u32 one = world.actor_of(rank);
    launch->actors.push_back(one);
    return one;
  };
  for (u32 block = 0; block < call.blocks; ++block) {
    BlockState* state = launch->blocks.emplace_back(new BlockState(launch, call.threads, world.shared)).get();
    state->reads_actor = actor();
    state->writes_actor = actor();
    state->groups_before = std::max(world.events[state->reads_actor], world.events[state->writes_actor]);
    for (u32 thread = 0; thread < call.threads; ++thread) {
      Agent agent{actor(), rank, stream.agent.knows};
      agent.knows.ordinary[agent.actor] = world.events[agent.actor] + 1;
      u32 own_seed = seed + block * 1000 + thread;
      world.fibers.add(rank, [=, &world, arguments = call.arguments, threads = call.threads, blocks = call.blocks] {
        Here mine{thread, threads, block, blocks, state, &world, agent, Random(own_seed)};
        here = &mine;
        // Now and then a thread begins when the others have done nearly all that they can without it.
        pause_for(mine.random() % 16 == 0 ? mine.random() % 256 : 0);
        kernel(arguments);
        here = &mine;
        launch->after.learn(mine.agent.knows);
        world.events[agent.actor] = mine.agent.event().number;
        state->leave(thread);
        --launch->running;
      });
    }
  }
  stream.agent.next();
}

// What the host does: it reads the record of a rank's faults as long as the rank's calls run. A fault has a detail.
static void watch(World& world, u32 actor, u32 rank, u64 fault, const bool& is_over, u32 seed) {
  Agent host{actor, rank, Knowledge(world.actors)};
  host.knows.ordinary[actor] = 1;
  Random random(seed);
  while (!is_over) {
    if (as_number(memory->load(host, fault, 8, true, random)) != 0) {
      if (as_number(memory->load(host, fault + 8, 8, false, random)) == 0) {
        memory->fail("the host sees a fault without its detail");
      }
      return;
    }
    Fibers::yield();
  }
}

static std::string what_is_wrong;
extern "C" const char* wrong() { return what_is_wrong.c_str(); }

// Runs those calls of a rank that are unordered, or those that are not, one behind the other.
static void run_stream(Stream& stream, const std::vector<const HostCall*>& calls, BeginCall* begin_call, u32 seed) {
  const HostCall* last = nullptr;
  auto finish = [&] {
    stream.wait();
    if (last) {
      copy(stream, last->after, last->copies_after);
    }
  };
  for (const HostCall* call : calls) {
    seed += 7919;
    if (call->is_programmatic) {
      while (stream.running && !stream.running->lets_next_begin()) {
        Fibers::yield();
      }
      begin_call(stream, *call, seed);
    }
    finish();
    copy(stream, call->before, call->copies_before);
    for (u32 turns = call->late; turns != 0; --turns) {
      Fibers::yield();
    }
    if (!call->is_programmatic) {
      begin_call(stream, *call, seed);
    }
    stream.running = std::move(stream.next);
    stream.running->before = stream.agent.snapshot();
    stream.running->is_ready = true;
    ++stream.launched;
    last = call;
  }
  finish();
}

// Runs the calls of all ranks, whose kernels begin_call begins. Afterwards wrong() says what is: a deadlock, if they
// did not come to their ends within the steps; a race; nothing. Unordered calls run on a second stream of their rank,
// as soon as the first kernel of the others runs, or has ended if there are several. faults: the records that the host
// reads meanwhile, or none. to_the_end: whether the run goes on after a race, whose outcome is then that of this order
// of accesses.
extern "C" void run_ranks(BeginCall* begin_call, const HostCall* calls, u32 ranks, u32 count, size_t shared, u32 seed,
                          u64 steps, const u64* faults, bool to_the_end) {
  // A thread each, the barriers and the bulk stores of a block; of two kernels at once; two streams and the host.
  constexpr u32 BARRIERS = 16, OTHERS = 3;
  u32 each = 0, kernels = 2;
  for (u32 at = 0; at < ranks * count; ++at) {
    each = std::max(each, calls[at].blocks * (calls[at].threads + BARRIERS));
    kernels = calls[at].is_unordered ? 4 : kernels;
  }
  each = kernels * each + OTHERS;
  World world{{seed, ranks, steps}, Memory(ranks), shared, size_t(ranks) * each, Numbers(ranks * each), {}};
  memory = &world.weak;
  overwritten.clear();
  std::unique_ptr<bool[]> is_over(new bool[ranks]());
  std::vector<std::unique_ptr<Stream>> streams;
  for (u32 rank = 0; rank < ranks; ++rank) {
    auto& free = world.free.emplace_back();
    for (u32 at = each; at-- > OTHERS;) {
      free.push_back(rank * each + at);
    }
    std::vector<const HostCall*> lists[2];
    for (u32 at = 0; at < count; ++at) {
      const HostCall& call = calls[rank * count + at];
      if (call.present) {
        lists[call.is_unordered].push_back(&call);
      }
    }
    for (u32 number = 0; number < 2; ++number) {
      Agent agent{rank * each + number, rank, Knowledge(world.actors)};
      Random random(seed + rank + number * ranks);
      streams.emplace_back(new Stream{world, agent, random, nullptr, nullptr, !lists[1].empty()});
      streams.back()->agent.next();
    }
    Stream *first = streams[streams.size() - 2].get(), *second = streams.back().get();
    const u32 own_seed = seed + 7919 * rank * count;
    world.fibers.add(rank, [=, &is_over, list = lists[0]] {
      run_stream(*first, list, begin_call, own_seed);
      is_over[rank] = true;
    });
    if (!lists[1].empty()) {
      world.fibers.add(rank, [=, &is_over, list = lists[1], leading = lists[0].size() > 1 ? 2u : 1u] {
        while (!is_over[rank] && !(first->launched >= leading && first->running && first->running->has_begun())) {
          Fibers::yield();
        }
        for (u32 turns = second->random() % 256; turns != 0; --turns) {
          Fibers::yield();
        }
        run_stream(*second, list, begin_call, own_seed + 104729);
      });
    }
    if (faults) {
      world.fibers.add(rank, [=, &world, &is_over] {
        watch(world, rank * each + 2, rank, faults[rank], is_over[rank], seed + ranks + rank);
      });
    }
  }
  bool has_ended = world.fibers.run(world.weak.race(), to_the_end);
  what_is_wrong = !has_ended ? "a deadlock" : world.weak.race();
}
