// Runs the kernels of all ranks on the CPU: each rank does its calls one after the other, as a stream does.
struct HostCall {
  u32 is_two_exchange, blocks, threads, present;
  const void* arguments;
  u64 copy_to, copy_from, copy_bytes;     // before the kernel
  u64 result_to, result_from, result_bytes;  // after it
};

template <typename Arguments>
static void run_kernel(void (*kernel)(const Arguments), const HostCall& call, size_t shared, u32 seed) {
  const Arguments& arguments = *static_cast<const Arguments*>(call.arguments);
  std::vector<std::unique_ptr<BlockState>> states;
  std::vector<std::thread> threads;
  for (u32 block = 0; block < call.blocks; ++block) {
    states.push_back(std::make_unique<BlockState>(call.threads, shared));
    for (u32 thread = 0; thread < call.threads; ++thread)
      threads.emplace_back([&, block, thread, state = states.back().get()] {
        Here mine{thread, call.threads, block, call.blocks, state, std::mt19937(seed + block * 1000 + thread)};
        here = &mine;
        kernel(arguments);
        state->leave();
      });
  }
  for (std::thread& thread : threads) thread.join();
}

extern "C" void run_ranks(const HostCall* calls, u32 ranks, u32 count, size_t shared, u32 seed) {
  std::vector<std::thread> streams;
  for (u32 rank = 0; rank < ranks; ++rank)
    streams.emplace_back([=] {
      for (u32 at = 0; at < count; ++at) {
        const HostCall& call = calls[rank * count + at];
        if (!call.present) continue;
        if (call.copy_bytes)
          std::memcpy(reinterpret_cast<void*>(call.copy_to), reinterpret_cast<void*>(call.copy_from), call.copy_bytes);
        if (call.is_two_exchange)
          run_kernel<TwoExchange>(two_exchange, call, shared, seed + 7919 * (rank * count + at));
        else
          run_kernel<OneExchange>(one_exchange, call, shared, seed + 7919 * (rank * count + at));
        if (call.result_bytes)
          std::memcpy(reinterpret_cast<void*>(call.result_to), reinterpret_cast<void*>(call.result_from),
                      call.result_bytes);
      }
    });
  for (std::thread& stream : streams) stream.join();
}

extern "C" u64 size_of_one_exchange() { return sizeof(OneExchange); }
extern "C" u64 size_of_two_exchange() { return sizeof(TwoExchange); }
