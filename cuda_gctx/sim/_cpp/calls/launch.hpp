// Launches.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// Completes a plan that has its shape: the code, what the hardware and the context allow, and the arguments.
CUresult plan_launch(Call& call, const Context& context, CUfunction function, LaunchPlan& plan, void** arguments,
                     void** extra);

}  // namespace gctx::sim
