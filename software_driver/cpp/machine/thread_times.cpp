// Moves the clocks of threads, and tells which threads are expected to call.
#include "machine/thread_times.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <utility>

namespace software_driver {
namespace {

thread_local ThreadTime* calling = nullptr;

// Precise to some milliseconds, and cheap.
std::uint64_t coarse_clock() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Returns whether a thread has the processor, or would have it on a machine with more of them.
bool is_computing(int thread) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "r"), &std::fclose);
  char state = '\0';
  // The name of the thread, in parentheses, may contain any character but a line's end.
  return file && std::fscanf(file.get(), "%*d (%*[^\n)]) %c", &state) == 1 && state == 'R';
}

}  // namespace

void ThreadTimes::add(ThreadTime& thread) { threads_.push_back(&thread); }

void ThreadTimes::remove(ThreadTime& thread) { std::erase(threads_, &thread); }

void ThreadTimes::enter(ThreadTime& thread, std::uint64_t time, std::uint64_t call_ns) {
  const std::uint64_t quiet = thread.quiet_since == 0 ? 0 : host_clock() - thread.quiet_since;
  if (quiet >= counted_pause_ns) {
    thread.now += quiet;
  }
  // A thread that has slept may have been woken by any other, and is not before that one.
  if (thread.now < latest_ && (thread.quiet_since == 0 || thread.caller->sleeps != thread.sleeps)) {
    thread.now = latest_;
  }
  thread.now = std::max(thread.now, time) + call_ns;
  const std::uint64_t host = host_clock();
  if (thread.quiet_since == 0 || thread.now - thread.level_now > host - thread.level_host) {
    thread.level_now = thread.now;
    thread.level_host = host;
  }
  thread.is_idle = false;
  calling = &thread;
}

void ThreadTimes::leave(ThreadTime& thread) {
  latest_ = std::max(latest_, thread.now);
  thread.quiet_since = host_clock();
  thread.sleeps = Caller::count_sleeps();
  calling = nullptr;
}

void ThreadTimes::wake(const WorkPtr& work, std::uint64_t time) {
  for (ThreadTime* thread : threads_) {
    if (thread->target == work) {
      thread->target = nullptr;
      thread->now = std::max(thread->now, time);
      thread->level_now = thread->now;
      thread->level_host = thread->quiet_since = host_clock();
      thread->is_idle = false;
    }
  }
}

bool ThreadTimes::expects_call_before(std::uint64_t moment, const ThreadTime* self) {
  return std::ranges::any_of(threads_, [&](ThreadTime* thread) {
    return thread != self && thread->now < moment && !thread->target && !thread->is_callback &&
           is_expected_before(moment, *thread);
  });
}

bool ThreadTimes::is_expected_before(std::uint64_t moment, ThreadTime& thread) const {
  if (host_clock() - thread.level_host >= computing_patience_ns + (moment - thread.level_now)) {
    return false;
  }
  if (thread.is_idle) {
    return thread.caller->calls > 0;
  }
  const std::uint64_t quiet = host_clock() - thread.quiet_since;
  if (thread.caller->calls > 0 || quiet < sleeping_patience_ns) {
    return true;
  }
  thread.is_idle = quiet >= computing_patience_ns || !is_computing(thread.caller->id);
  return !thread.is_idle;
}

void ThreadTimes::begin_driver_time() { driver_since_ = coarse_clock(); }

void ThreadTimes::end_driver_time() {
  driver_ns_ += coarse_clock() - driver_since_;
  driver_since_ = 0;
}

std::uint64_t ThreadTimes::host_clock() const {
  const std::uint64_t now = coarse_clock();
  return now - driver_ns_ - (driver_since_ == 0 ? 0 : now - driver_since_);
}

std::uint64_t ThreadTimes::submit(std::uint64_t time) {
  if (calling == nullptr) {
    return time;
  }
  calling->polled.clear();
  return std::max(calling->now, time);
}

}  // namespace software_driver
