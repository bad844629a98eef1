#include "handles/process.hpp"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace gctx {
namespace {

struct Failures {
  std::mutex mutex;
  unsigned long count = 0;
  char first[256] = {};
};

// Never destroyed: the destructors of objects with static lifetime may still report here.
Failures& failures() {
  static auto* instance = new Failures;
  return *instance;
}

std::atomic<bool> any_failure{false};

}  // namespace

void begin_exit() noexcept {
  ProcessState expected = ProcessState::normal;
  process_state_word.compare_exchange_strong(expected, ProcessState::exiting);
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { process_state_word.store(ProcessState::forked); });
    // For programs without Python: static destructors and atexit handlers run after this.
    std::atexit(begin_exit);
  });
}

void note_failure(const char* what) noexcept {
  Failures& all = failures();
  const std::lock_guard lock(all.mutex);
  if (all.count++ == 0) {
    std::snprintf(all.first, sizeof(all.first), "%s", what);
  }
  any_failure.store(true, std::memory_order_release);
}

bool take_failure(char* text, unsigned long size) noexcept {
  if (!any_failure.load(std::memory_order_acquire)) {
    return false;
  }
  Failures& all = failures();
  const std::lock_guard lock(all.mutex);
  if (all.count == 0) {
    return false;
  }
  const unsigned long more = all.count - 1;
  if (more == 0) {
    std::snprintf(text, size, "%s", all.first);
  } else {
    std::snprintf(text, size, "%s (and %lu more failures)", all.first, more);
  }
  all.count = 0;
  any_failure.store(false, std::memory_order_release);
  return true;
}

}  // namespace gctx
