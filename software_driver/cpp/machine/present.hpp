// The machine that the calls of the process go to at present.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "machine/machine.hpp"

namespace software_driver {

// The one machine that calls go to, behind the one lock.
struct Present {
  std::mutex mutex;
  std::shared_ptr<Machine> machine;  // shared: a call in progress keeps its machine
  std::vector<std::shared_ptr<Machine>> aside;
  bool forked = false;             // in a child of a process that had initialised the driver
  std::atomic<bool> over = false;  // the process is ending
};
Present& present();
// Runs a body with the machine, behind the lock; without one, the answer is another.
template <class Answer, class Body>
Answer with_machine(Answer otherwise, Body&& body) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  return here.machine ? body(*here.machine) : otherwise;
}
// With the lock held: replaces the machine. Throws std::invalid_argument.
void configure(Present& present, std::string_view spec);
// With the lock held: there is a machine afterwards, that of CUDA_SOFTWARE_DRIVER_MACHINE if there was none; or it says
// why not.
bool start(Present& present);

}  // namespace software_driver
