// Numbers threads, and takes note of their ends.
#include "machine/threads.hpp"

#include <atomic>

namespace software_driver {
namespace {

std::atomic<std::uint64_t> count{0};
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

std::uint64_t this_thread() {
  thread_local const Thread thread;
  return thread.number;
}

void when_threads_end(void (*ended)(std::uint64_t thread)) { on_end = ended; }

}  // namespace software_driver
