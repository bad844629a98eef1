// Code that is loaded.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// cuLaunchKernel and its like take a CUkernel where a CUfunction is due: the function is then that of the current
// context.
std::shared_ptr<KernelCode> find_code(Call& call, CUfunction handle, CUresult& result);
void unload(Machine& machine, Module& module);
void free_variables(Machine& machine, Module& module);

}  // namespace gctx::sim
