// Kernels on their way through the SMs.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// A grid of a planned launch on the SMs of a context.
std::unique_ptr<Grid> make_grid(Call& call, const Context& context, const LaunchPlan& plan);
// What is to be done when it is over: the memory that its arguments reach is marked, unless its result is known.
std::function<void(Work&)> marks_of(Machine& machine, const Context& context, const LaunchPlan& plan, const Grid& grid);

}  // namespace software_driver
