// Calls host functions, and moves the clock of a program that waits for one without making calls.
#include "machine/host_threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace software_driver {

// Shared with the threads, which may outlive the machine.
struct HostThreads::State {
  using Clock = std::chrono::steady_clock;

  std::mutex mutex;
  std::condition_variable changed;
  Program program;
  std::deque<WorkPtr> due;
  std::vector<Clock::time_point> running;  // since when, of each thread that is inside a function
  std::size_t functions = 0;               // queued, and not due yet
  std::size_t effects = 0;                 // queued, and not there yet
  std::size_t waiting = 0;                 // threads that are in no function
  bool over = false;

  bool expects_nothing() const { return functions == 0 && effects == 0; }
  bool may_call() const {
    const auto patience_ended = Clock::now() - host_patience;
    return !due.empty() &&
           std::all_of(running.begin(), running.end(), [&](auto since) { return since < patience_ended; });
  }
};

namespace {

thread_local int functions_entered = 0;

using State = HostThreads::State;

void serve_functions(const std::shared_ptr<State>& state);

// With the state locked. One thread is always left to look.
void keep_one_waiting(const std::shared_ptr<State>& state) {
  if (state->waiting > 0) {
    return;
  }
  std::thread(serve_functions, state).detach();
  ++state->waiting;
}

void call_next(const std::shared_ptr<State>& state, std::unique_lock<std::mutex>& lock) {
  const WorkPtr work = state->due.front();
  state->due.pop_front();
  const auto since = State::Clock::now();
  state->running.push_back(since);
  --state->waiting;
  keep_one_waiting(state);
  lock.unlock();
  {
    const HostThreads::InsideFunction inside;
    work->host();
  }
  state->program.returned(work);
  lock.lock();
  state->running.erase(std::find(state->running.begin(), state->running.end(), since));
  ++state->waiting;
  state->changed.notify_all();
}

void serve_functions(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  HostThreads::Looks looks;
  while (!state->over) {
    if (state->may_call()) {
      call_next(state, lock);
      if (state->waiting > 1) {
        break;
      }
      continue;
    }
    if (state->due.empty() && state->expects_nothing()) {
      looks = {};
      state->changed.wait(lock);
      continue;
    }
    if (state->changed.wait_for(lock, between_looks) == std::cv_status::no_timeout || state->expects_nothing()) {
      continue;
    }
    const auto expected = state->functions > 0 ? HostThreads::Expected::function : HostThreads::Expected::effect;
    lock.unlock();
    state->program.look(looks, expected);
    lock.lock();
  }
  --state->waiting;
}

}  // namespace

HostThreads::HostThreads() : state_(std::make_shared<State>()) {}

HostThreads::~HostThreads() {
  const std::scoped_lock lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

void HostThreads::serve(Program program) { state_->program = std::move(program); }

void HostThreads::expect(Expected what) {
  const std::scoped_lock lock(state_->mutex);
  keep_one_waiting(state_);
  ++(what == Expected::function ? state_->functions : state_->effects);
  state_->changed.notify_all();
}

void HostThreads::shown() {
  const std::scoped_lock lock(state_->mutex);
  --state_->effects;
}

void HostThreads::post(const WorkPtr& work) {
  const std::scoped_lock lock(state_->mutex);
  --state_->functions;
  state_->due.push_back(work);
  state_->changed.notify_all();
}

void HostThreads::run(std::function<void()> function) {
  auto work = std::make_shared<Work>();
  work->host = std::move(function);
  const std::scoped_lock lock(state_->mutex);
  keep_one_waiting(state_);
  state_->due.push_back(std::move(work));
  state_->changed.notify_all();
}

void HostThreads::abandon() {
  // Never destroyed: its mutex may have been locked by a thread that is not here.
  std::make_unique<std::shared_ptr<State>>(state_).release();
  Program program = state_->program;
  state_ = std::make_shared<State>();
  state_->program = std::move(program);
}

bool HostThreads::is_inside_function() noexcept { return functions_entered > 0; }
HostThreads::InsideFunction::InsideFunction() noexcept { ++functions_entered; }
HostThreads::InsideFunction::~InsideFunction() { --functions_entered; }

}  // namespace software_driver
