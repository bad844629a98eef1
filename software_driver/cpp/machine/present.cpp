// The life of the process around its machines: its threads, its children and its end.
#include "machine/present.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "machine/graphs.hpp"
#include "machine/threads.hpp"

namespace software_driver {
namespace {

unsigned epoch_count = 0;

// So often in turn, a program has made no call before its copies are carried out without one: the time at which they
// end is to depend on calls wherever there are some, on a busy machine too.
constexpr unsigned idle_looks = 5;

// What is kept for the thread goes.
void forget(Machine& machine, std::uint64_t thread) {
  if (const auto found = machine.threads.find(thread); found != machine.threads.end()) {
    machine.clock.times().remove(found->second.time);
    machine.threads.erase(found);
  }
  machine.contexts.each([&](Context& context) {
    const auto found = context.thread_streams.find(thread);
    if (found != context.thread_streams.end()) {
      leave_capture(machine, *found->second);
      context.thread_streams.erase(found);
    }
  });
}

// The machine as the threads of its host functions see it.
HostThreads::Program program_of(const std::weak_ptr<Machine>& served) {
  return {.returned =
              [served](const WorkPtr& work) {
                if (const auto machine = served.lock()) {
                  const std::scoped_lock lock(present().mutex);
                  machine->clock.host_returned(work);
                }
              },
          .look =
              [served](HostThreads::Looks& looks, HostThreads::Expected expected) {
                const auto machine = served.lock();
                if (!machine) {
                  return;
                }
                std::unique_lock lock(present().mutex);
                const bool is_idle = std::exchange(looks.calls, machine->calls_made) == machine->calls_made;
                looks.idle = is_idle ? looks.idle + 1 : 0;
                if (expected == HostThreads::Expected::function) {
                  if (is_idle) {
                    machine->clock.reach_host_function(lock);
                  }
                } else if (looks.idle >= idle_looks) {
                  machine->clock.reach_effects(lock);
                }
              }};
}

template <class Visit>
void each_machine(Present& here, Visit&& visit) {
  if (here.machine) {
    visit(*here.machine);
  }
  for (const auto& machine : here.aside) {
    if (machine) {
      visit(*machine);
    }
  }
}

void forget_everywhere(std::uint64_t thread) {
  Present& here = present();
  if (here.over.load(std::memory_order_relaxed)) {
    return;
  }
  const std::scoped_lock lock(here.mutex);
  if (!here.forked) {
    each_machine(here, [&](Machine& machine) { forget(machine, thread); });
  }
}

void before_fork() { present().mutex.lock(); }
void after_fork_in_parent() { present().mutex.unlock(); }
void after_fork_in_child() {
  Present& here = present();
  here.forked = here.machine != nullptr && here.machine->initialized;
  this_caller()->id = gettid();
  each_machine(here, [](Machine& machine) {
    machine.host_threads.abandon();
    // The other threads are not here.
    for (auto& [number, state] : machine.threads) {
      machine.clock.times().remove(state.time);
    }
    machine.threads.clear();
  });
  here.mutex.unlock();
}

// Calls after the end of the process's main part answer CUDA_ERROR_DEINITIALIZED, as the real driver's do.
struct EndOfProcess {
  // Without the lock of the calls: a thread that is still in one may never return it.
  ~EndOfProcess() { present().over.store(true, std::memory_order_relaxed); }
};

}  // namespace

Present& present() {
  // Never destroyed: other libraries' destructors may still call at exit.
  static Present& here = []() -> Present& {
    Present& made = *std::make_unique<Present>().release();
    when_threads_end(forget_everywhere);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  static const EndOfProcess end;
  return here;
}

void configure(Present& here, std::string_view text) {
  const Spec spec = Spec::parse(text);
  here.machine = std::make_shared<Machine>(spec, ++epoch_count);
  here.machine->host_threads.serve(program_of(here.machine));
  here.forked = false;
}

bool start(Present& here) {
  if (here.machine) {
    return true;
  }
  const char* spec = std::getenv("CUDA_SOFTWARE_DRIVER_MACHINE");
  try {
    configure(here, spec == nullptr ? "" : spec);
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "software driver (simulated): CUDA_SOFTWARE_DRIVER_MACHINE: %s\n", error.what());
    return false;
  }
}

}  // namespace software_driver
