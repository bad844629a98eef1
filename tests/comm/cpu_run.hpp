// Runs the kernels of all ranks on the CPU: each rank's calls one after the other, as on a stream.
struct HostCopy {
  u64 to, from, bytes;
};

struct HostCall {
  u32 kernel, blocks, threads, present;
  const void* arguments;
  const HostCopy* before;  // the kernel
  const HostCopy* after;
  u32 copies_before, copies_after;
};

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

template <typename Arguments>
static void run_kernel(World& world, u32 rank, void (*kernel)(const Arguments), const HostCall& call, u32 seed) {
  const Arguments& arguments = *static_cast<const Arguments*>(call.arguments);
  std::vector<std::unique_ptr<BlockState>> states;
  u32 running = call.blocks * call.threads;
  for (u32 block = 0; block < call.blocks; ++block) {
    states.push_back(std::make_unique<BlockState>(call.threads, world.shared));
    for (u32 thread = 0; thread < call.threads; ++thread)
      world.fibers.add(rank, [&, block, thread, state = states.back().get()] {
        Here mine{thread, call.threads, block, call.blocks, state, std::mt19937(seed + block * 1000 + thread)};
        here = &mine;
        kernel(arguments);
        state->leave(thread);
        --running;
      });
  }
  while (running != 0) Fibers::yield();
}

// The kernel of a call, by its number: written by cpu_kernels.py for the kernels that are in the library.
static void run_call(World& world, u32 rank, const HostCall& call, u32 seed);

// Whether all ranks came to the ends of their calls within the steps; if not, they wait for each other for ever.
extern "C" int run_ranks(const HostCall* calls, u32 ranks, u32 count, size_t shared, u32 seed, u64 steps) {
  World world{{seed, ranks, steps}, shared};
  for (u32 rank = 0; rank < ranks; ++rank)
    world.fibers.add(rank, [=, &world] {
      for (u32 at = 0; at < count; ++at) {
        const HostCall& call = calls[rank * count + at];
        if (!call.present) continue;
        copy(call.before, call.copies_before);
        u32 own_seed = seed + 7919 * (rank * count + at);
        run_call(world, rank, call, own_seed);
        copy(call.after, call.copies_after);
      }
    });
  return world.fibers.run();
}
