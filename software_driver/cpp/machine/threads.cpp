// Numbers threads, and takes note of their ends.
#include "machine/threads.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

namespace software_driver {
namespace {

std::atomic<std::uint64_t> count{0};
std::atomic<unsigned> callers{0};
std::atomic<void (*)(std::uint64_t thread)> on_end{nullptr};

struct Thread {
  Thread() : number(++count) {}
  ~Thread() {
    if (const auto ended = on_end.load()) {
      ended(number);
    }
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  std::uint64_t number;
};

}  // namespace

Caller::Caller() : id(gettid()) { ++callers; }

std::uint64_t Caller::count_sleeps() {
  if (callers.load(std::memory_order_relaxed) < 2) {
    return 0;
  }
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<std::uint64_t>(usage.ru_nvcsw);
}

const std::shared_ptr<Caller>& this_caller() {
  thread_local const auto caller = std::make_shared<Caller>();
  return caller;
}

std::uint64_t this_thread() {
  thread_local const Thread thread;
  return thread.number;
}

void when_threads_end(void (*ended)(std::uint64_t thread)) { on_end = ended; }

}  // namespace software_driver
