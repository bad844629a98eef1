// Virtual time of two threads, on the software driver: each sentence of the page "Time and threads" has one answer.
//   sim_threads_test [--runs N]
#include <cuda.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/check.hpp"
#include "tests/sim_library.hpp"

namespace {

using software_driver::test::symbol;

#define OK(name, ...) CHECK(CALL(name, __VA_ARGS__) == CUDA_SUCCESS)

constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry brief() { ret; }
.visible .entry bulk() { ret; }
.visible .entry seen() { ret; }
)";
constexpr std::uint64_t brief_ns = 50'000;
constexpr std::uint64_t bulk_ns = 10'000'000;

std::uint64_t now() { return symbol<decltype(softwareDriverTime)>("softwareDriverTime")(); }

void register_kernel(const char* name, std::uint64_t ns, softwareDriverKernelFunction function = nullptr) {
  const softwareDriverKernelCost cost{ns, 0, 0, 0, 0, 0, 0};
  symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")(name, function, nullptr, &cost, nullptr, 0);
}

// A partition with a stream, and its background with another.
class Bench {
 public:
  Bench() {
    std::array<CUdevResource, 2> parts{};
    CUdevResource all{};
    CUlibrary library = nullptr;
    unsigned count = 1;
    software_driver::test::configure("h200@13.0");
    OK(cuInit, 0);
    OK(cuDevicePrimaryCtxRetain, &context, 0);
    OK(cuCtxSetCurrent, context);
    OK(cuLibraryLoadData, &library, program, nullptr, nullptr, 0, nullptr, nullptr, 0);
    OK(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    OK(cuDevSmResourceSplitByCount, parts.data(), &count, &all, &parts[1], 0, 16);
    std::array<CUstream*, 2> streams{&partition, &background};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CUdevResourceDesc descriptor = nullptr;
      CUgreenCtx green = nullptr;
      OK(cuDevResourceGenerateDesc, &descriptor, &parts[i], 1);
      OK(cuGreenCtxCreate, &green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM);
      OK(cuGreenCtxStreamCreate, streams[i], green, CU_STREAM_NON_BLOCKING, 0);
    }
    register_kernel("brief", brief_ns);
    register_kernel("bulk", bulk_ns);
    OK(cuLibraryGetKernel, &brief, library, "brief");
    OK(cuLibraryGetKernel, &bulk, library, "bulk");
    OK(cuLibraryGetKernel, &seen, library, "seen");
  }

  CUcontext context = nullptr;
  CUstream partition = nullptr;
  CUstream background = nullptr;
  CUkernel brief = nullptr;
  CUkernel bulk = nullptr;
  CUkernel seen = nullptr;

  static void launch(CUkernel kernel, CUstream stream) {
    OK(cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 8, 1, 1, 128, 1, 1, 0, stream, nullptr, nullptr);
  }
};

// Returns whether the system says that a thread sleeps.
bool is_asleep(long thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto name = text.rfind(") ");
  return name != std::string::npos && text[name + 2] == 'S';
}

// Runs `body` on a thread that has called the driver before `meanwhile` begins on this one.
template <class Body, class Meanwhile>
void run_beside(const Bench& bench, Body&& body, Meanwhile&& meanwhile) {
  std::atomic<bool> has_called = false;
  std::thread thread([&] {
    OK(cuCtxSetCurrent, bench.context);
    has_called = true;
    body();
  });
  while (!has_called) {
  }
  meanwhile();
  thread.join();
}

// The one answer of all runs. Virtual time goes on without a thread that does not call for long, so a run says nothing
// if a busy machine kept a thread from running: another run takes its place, as often as there are runs.
template <class Run>
std::uint64_t one_answer(const char* sentence, unsigned runs, Run&& run) {
  constexpr std::chrono::milliseconds long_run(20);
  std::set<std::uint64_t> answers;
  unsigned repeats = 0;
  for (unsigned done = 0; done < runs;) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t answer = run();
    if (std::chrono::steady_clock::now() - begin >= long_run && repeats < runs) {
      ++repeats;
      continue;
    }
    answers.insert(answer);
    ++done;
  }
  if (answers.size() != 1) {
    std::fprintf(stderr, "%s: %zu answers, from %llu to %llu\n", sentence, answers.size(),
                 static_cast<unsigned long long>(*answers.begin()), static_cast<unsigned long long>(*answers.rbegin()));
  }
  CHECK(answers.size() == 1);
  return *answers.begin();
}

std::uint64_t elapsed_ns(CUevent from, CUevent to) {
  float ms = 0;
  OK(cuEventElapsedTime, &ms, from, to);
  return static_cast<std::uint64_t>(static_cast<double>(ms) * 1e6 + 0.5);
}

// Twenty brief kernels, one after the other, with a wait behind each.
std::uint64_t measure_twenty(const Bench& bench) {
  CUevent first = nullptr;
  CUevent last = nullptr;
  OK(cuEventCreate, &first, 0);
  OK(cuEventCreate, &last, 0);
  OK(cuEventRecord, first, bench.partition);
  for (int i = 0; i < 20; ++i) {
    Bench::launch(bench.brief, bench.partition);
    OK(cuStreamSynchronize, bench.partition);
  }
  OK(cuEventRecord, last, bench.partition);
  OK(cuEventSynchronize, last);
  const std::uint64_t found = elapsed_ns(first, last);
  OK(cuEventDestroy, first);
  OK(cuEventDestroy, last);
  return found;
}

void call_many_times(unsigned calls) {
  for (unsigned i = 0; i < calls; ++i) {
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent, &current);
  }
}

void a_call_takes_its_thread_one_time(unsigned runs) {
  const Bench bench;
  const std::uint64_t found = one_answer("a call takes its thread 100 ns", runs, [&] {
    std::uint64_t took = 0;
    Bench::launch(bench.bulk, bench.background);
    run_beside(
        bench,
        [&] {
          const std::uint64_t before = now();
          call_many_times(100);
          took = now() - before;
        },
        [&] { OK(cuStreamSynchronize, bench.background); });
    return took;
  });
  CHECK(found == 100 * 100);
}

void an_isolated_partition_is_not_disturbed_by_a_waiting_thread(unsigned runs) {
  const Bench bench;
  const std::uint64_t alone = measure_twenty(bench);
  const std::uint64_t beside = one_answer("a wait moves the clock of its own thread alone", runs, [&] {
    std::uint64_t took = 0;
    Bench::launch(bench.bulk, bench.background);
    run_beside(bench, [&] { took = measure_twenty(bench); }, [&] { OK(cuStreamSynchronize, bench.background); });
    return took;
  });
  CHECK(beside == alone);
  CHECK(alone >= 20 * brief_ns && alone < 21 * brief_ns);
}

void each_thread_wakes_at_the_end_of_its_own_work(unsigned runs) {
  const Bench bench;
  const std::uint64_t bulk = one_answer("the longer wait ends with its own work", runs, [&] {
    std::uint64_t ended = 0;
    std::uint64_t brief_ended = 0;
    const std::uint64_t before = now();
    Bench::launch(bench.bulk, bench.background);
    run_beside(
        bench,
        [&] {
          const std::uint64_t begin = now();
          Bench::launch(bench.brief, bench.partition);
          OK(cuStreamSynchronize, bench.partition);
          brief_ended = now() - begin;
        },
        [&] {
          OK(cuStreamSynchronize, bench.background);
          ended = now() - before;
        });
    return brief_ended >= brief_ns && brief_ended < brief_ns + 10'000 ? ended : 0;
  });
  CHECK(bulk >= bulk_ns && bulk < bulk_ns + 10'000);
}

void a_poll_jumps_after_five_equal_answers(unsigned runs) {
  const Bench bench;
  const std::uint64_t polls = one_answer("the fifth poll jumps", runs, [&] {
    std::uint64_t count = 1;
    std::uint64_t took = 0;
    const long own = syscall(SYS_gettid);
    Bench::launch(bench.bulk, bench.background);
    run_beside(
        bench,
        [&] {
          while (!is_asleep(own)) {
          }
          const std::uint64_t begin = now();
          Bench::launch(bench.brief, bench.partition);
          while (CALL(cuStreamQuery, bench.partition) == CUDA_ERROR_NOT_READY) {
            ++count;
          }
          took = now() - begin;
        },
        [&] { OK(cuStreamSynchronize, bench.background); });
    return took >= brief_ns && took < brief_ns + 20'000 ? count : 0;
  });
  CHECK(polls == 5);
}

std::atomic<int> spins = 0;
int spin(void*, const softwareDriverBlock*) {
  for (int i = 0; i < 100'000; ++i) {
    ++spins;
  }
  return 0;
}

void the_time_of_a_kernels_function_is_no_threads(unsigned runs) {
  const Bench bench;
  register_kernel("seen", brief_ns, &spin);
  const std::uint64_t took = one_answer("functions of kernels take the program no time", runs, [&] {
    std::uint64_t time = 0;
    Bench::launch(bench.seen, bench.background);
    run_beside(
        bench,
        [&] {
          const std::uint64_t before = now();
          for (int i = 0; i < 50; ++i) {
            CUcontext current = nullptr;
            OK(cuCtxGetCurrent, &current);
          }
          time = now() - before;
        },
        [&] { OK(cuStreamSynchronize, bench.background); });
    return time;
  });
  CHECK(took == 50 * 100);
}

void a_thread_that_slept_is_not_before_the_thread_that_woke_it(unsigned runs) {
  const Bench bench;
  const long own = syscall(SYS_gettid);
  const std::uint64_t lead = one_answer("a thread that slept goes on at the latest time of any thread", runs, [&] {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t theirs = 0;
    std::thread thread([&] {
      call_many_times(1'000);
      while (!is_asleep(own)) {
      }
      const std::scoped_lock lock(mutex);
      theirs = now();
      changed.notify_one();
    });
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return theirs != 0; });
    }
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent, &current);
    thread.join();
    return now() - theirs;
  });
  CHECK(lead == 100);
}

// Stands for a library that ends what it has made current on the thread.
struct Calls {
  ~Calls() {
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent, &current);
  }
};

void a_thread_may_call_until_it_has_ended() {
  for (int i = 0; i < 50; ++i) {
    std::thread([] {
      [[maybe_unused]] thread_local const Calls calls;  // destroyed after what the driver makes for the thread
      static_cast<void>(&calls);
      CUcontext current = nullptr;
      OK(cuCtxGetCurrent, &current);
    }).join();
    CHECK(symbol<decltype(softwareDriverReset)>("softwareDriverReset")() == 0);
    OK(cuInit, 0);
  }
}

// For a build that looks for races of threads.
void a_thread_may_end_while_the_machine_is_replaced() {
  for (unsigned i = 0; i < 50; ++i) {
    std::thread ending([] {
      CUcontext current = nullptr;
      CALL(cuCtxGetCurrent, &current);  // of either machine
    });
    CHECK(symbol<decltype(softwareDriverReset)>("softwareDriverReset")() == 0);
    software_driver::test::configure("h200@13.0");
    OK(cuInit, 0);
    ending.join();
  }
}

}  // namespace

int main(int count_of, char** values) {
  if (!software_driver::test::open_library()) {
    return 2;
  }
  const bool chosen = count_of == 3 && std::string(values[1]) == "--runs";
  const auto runs = static_cast<unsigned>(chosen ? std::strtoul(values[2], nullptr, 10) : 1'000);
  a_call_takes_its_thread_one_time(runs);
  an_isolated_partition_is_not_disturbed_by_a_waiting_thread(runs);
  each_thread_wakes_at_the_end_of_its_own_work(runs);
  a_poll_jumps_after_five_equal_answers(runs);
  the_time_of_a_kernels_function_is_no_threads(runs);
  a_thread_that_slept_is_not_before_the_thread_that_woke_it(runs);
  a_thread_may_call_until_it_has_ended();
  a_thread_may_end_while_the_machine_is_replaced();
  return software_driver::test::summary("sim_threads_test");
}
