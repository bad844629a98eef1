// Launches.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// Completes a plan that has its shape: the code, what the hardware allows, and the arguments.
void plan_launch(Call& call, const Context& context, CUfunction function, LaunchPlan& plan, void** arguments,
                 void** extra);
// Launch attributes that change nothing here are taken; what would change something and is not modelled is refused.
void read_attribute(const CUlaunchAttribute& attribute, LaunchPlan& plan);
// Attributes of launches that are known and make no difference here.
bool changes_nothing(CUlaunchAttributeID which);
// Whether the SMs of a context have room for its clusters, and for all of a cooperative grid.
void check_room(const Machine& machine, const Context& context, const LaunchPlan& plan);

}  // namespace software_driver
