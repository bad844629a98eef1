#include "driver/process.hpp"

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace gctx {

std::atomic<ProcessState> process_state_word{ProcessState::normal};

namespace {

struct Failures {
  std::mutex mutex;
  unsigned long count = 0;
  char first[256] = {};
};

// Never destroyed, because destructors of static objects may still report failures. Never allocated, because memory may
// have run out.
Failures& failures() {
  alignas(Failures) static std::array<std::byte, sizeof(Failures)> storage;
  static auto* instance = new (storage.data()) Failures;
  return *instance;
}

std::atomic<bool> any_failure{false};

std::atomic<int> uses{0};

// The handler is registered when the library is loaded, before any lock is taken.
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] {
  if (uses.load() != 0) {
    process_state_word.store(ProcessState::forked);
  }
});

}  // namespace

void begin_exit() noexcept {
  ProcessState expected = ProcessState::normal;
  process_state_word.compare_exchange_strong(expected, ProcessState::exiting);
}

void begin_use() noexcept { uses.fetch_add(1); }
void end_use() noexcept { uses.fetch_sub(1); }

void watch_exit() {
  static std::atomic<bool> is_watched{false};
  if (!is_watched.exchange(true)) {
    std::atexit(begin_exit);
  }
}

void note_failure(const char* what) noexcept {
  if (is_forked()) {
    return;
  }
  Failures& all = failures();
  const std::lock_guard lock(all.mutex);
  if (all.count++ == 0) {
    std::snprintf(all.first, sizeof(all.first), "%s", what);
  }
  any_failure.store(true, std::memory_order_release);
}

bool has_failure() noexcept { return any_failure.load(std::memory_order_acquire) && !is_forked(); }

bool take_failure(char* text, unsigned long size) noexcept {
  if (!has_failure()) {
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
