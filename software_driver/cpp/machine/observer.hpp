// The function that sees what devices do: a profiler's. It belongs to the process, whatever machine is present.
#pragma once

#include <atomic>

#include "abi/cuda_software_driver.h"

namespace software_driver {

inline std::atomic<softwareDriverObserver> observer{nullptr};

inline void observe(const softwareDriverActivity& activity) {
  if (const softwareDriverObserver function = observer.load(std::memory_order_acquire)) {
    function(&activity);
  }
}

// Reports a call of this process. launch: the number of the work that it queues.
inline void observe_call(const char* name, std::uint64_t time, std::uint64_t launch) {
  softwareDriverActivity activity{};
  activity.kind = softwareDriverCallActivity;
  activity.launch = launch;
  activity.started = activity.ended = time;
  activity.name = name;
  observe(activity);
}

}  // namespace software_driver
