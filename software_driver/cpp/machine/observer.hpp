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

}  // namespace software_driver
