// Numbers threads, and takes note of their ends.
#include "machine/threads.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace software_driver {
namespace {

std::atomic<std::uint64_t> count{0};
std::atomic<unsigned> callers{0};
std::atomic<void (*)(std::uint64_t thread)> on_end{nullptr};

struct Thread {
  const std::uint64_t number = ++count;
  const std::shared_ptr<Caller> caller = std::make_shared<Caller>();
};

// Not an object with a destructor: those of the program's objects of the thread can run later, and call the driver. The
// system ends a key after them, and once more where a call came later still.
thread_local Thread* here = nullptr;

pthread_key_t make_key() {
  pthread_key_t key{};
  const auto end = [](void* thread) {
    const std::unique_ptr<Thread> ended(static_cast<Thread*>(thread));
    here = nullptr;
    if (const auto note = on_end.load()) {
      note(ended->number);
    }
  };
  if (pthread_key_create(&key, end) != 0) {
    std::abort();
  }
  return key;
}

Thread& this_one() {
  if (here == nullptr) {
    static const pthread_key_t key = make_key();
    here = new Thread;
    pthread_setspecific(key, here);
  }
  return *here;
}

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

const std::shared_ptr<Caller>& this_caller() { return this_one().caller; }

std::uint64_t this_thread() { return this_one().number; }

void when_threads_end(void (*ended)(std::uint64_t thread)) { on_end = ended; }

}  // namespace software_driver
