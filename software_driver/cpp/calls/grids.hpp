// Kernels on their way through the SMs.
#pragma once

#include "machine/machine.hpp"

namespace software_driver {

// A grid of a planned launch on the SMs of a context.
std::unique_ptr<Grid> make_grid(Machine& machine, const Context& context, const LaunchPlan& plan);
// What is to be done when it is over: the memory that its arguments reach is marked, unless its result is known.
std::function<void(Work&)> marks_of(Machine& machine, const Context& context, const LaunchPlan& plan);

}  // namespace software_driver
