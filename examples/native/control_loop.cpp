// A control loop at 500 Hz next to bulk work: its latencies with a reserved partition, or with --without one. A latency is
// the time between two events around a step, so that it is the GPU's time on the software driver, too. The kernels
// stand for work of the program: each block keeps an SM for a number of nanoseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda_gctx_driver.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

constexpr auto period = std::chrono::microseconds(2000);
constexpr float deadline_us = 200;
constexpr int steps = 100;

const char* const kernels = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry run_for(.param .u64 nanoseconds) {
  .reg .pred %others, %before;
  .reg .u32 %thread;
  .reg .u64 %limit, %begin, %now;
  ld.param.u64 %limit, [nanoseconds];
  mov.u64 %begin, %globaltimer;
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %others, %thread, 0;
  @%others bra end;
again:
  nanosleep.u32 10000;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %before, %now, %limit;
  @%before bra again;
end:
  bar.sync 0;
  ret;
}
)";

void check(CUresult answer) {
  if (answer != CUDA_SUCCESS) {
    const char* name = "an unknown error";
    cuGetErrorName(answer, &name);
    throw std::runtime_error(name);
  }
}

struct Work {
  CUfunction function;
  unsigned blocks;
  unsigned long long nanoseconds;

  void enqueue(const cuda_gctx::stream& stream) {
    void* arguments[] = {&nanoseconds};
    check(cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, cuda_gctx::native(stream), arguments, nullptr));
  }
};

void run(bool is_reserved) {
  // Without a reservation, both streams are in one partition of all SMs.
  const std::vector<cuda_gctx::group> reserved = {{16, 0, 0}, {cuda_gctx::rest, 0, 0}};
  const std::vector<cuda_gctx::group> shared = {{cuda_gctx::rest, 0, 0}};
  const auto contexts = cuda_gctx::partition(0, is_reserved ? reserved : shared);
  const cuda_gctx::context &control = contexts.front(), &rest = contexts.back();
  const cuda_gctx::stream loop = control.create_stream(-1), bulk = rest.create_stream();
  const cuda_gctx::event due_at = control.create_event(true), done = control.create_event(true);

  check(cuCtxSetCurrent(cuda_gctx::native(control)));
  CUmodule module;
  CUfunction function;
  check(cuModuleLoadData(&module, kernels));
  check(cuModuleGetFunction(&function, module, "run_for"));
  Work step{function, 16, 50000};
  // Two waves of blocks, two on each SM of an H200: bulk work is under way for longer than a period.
  Work load{function, 4 * 132, 1100000};

  std::vector<float> latencies;
  int missed = 0;
  auto due = clock_type::now();
  for (int i = 0; i < steps; ++i, due += period) {
    load.enqueue(bulk);
    std::this_thread::sleep_until(due);
    loop.record(due_at);
    step.enqueue(loop);
    loop.record(done);
    done.sync();
    latencies.push_back((done - due_at) * 1000);
    missed += latencies.back() > deadline_us ? 1 : 0;
  }
  bulk.sync();
  check(cuModuleUnload(module));
  check(cuCtxSetCurrent(nullptr));
  std::sort(latencies.begin(), latencies.end());
  std::printf("%s: %u SMs for the loop, p50 %.0f us, p99 %.0f us, missed %d of %d\n",
              is_reserved ? "reserved" : "without", control.sm_count(), latencies[latencies.size() / 2],
              latencies[latencies.size() * 99 / 100], missed, steps);
}

}  // namespace

int main(int count, char** words) {
  try {
    run(count < 2 || std::strcmp(words[1], "--without") != 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
