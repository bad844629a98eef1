// From a handle of a function or a kernel to its code, and the attributes of both.
#pragma once

#include "sim/calls/entry.hpp"

namespace gctx::sim {

// cuLaunchKernel and its like take a CUkernel where a CUfunction is due: the function is then that of the current
// context.
std::shared_ptr<KernelCode> find_code(Call& call, CUfunction handle, CUresult& result);
int kernel_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which);
Function& function_of(Machine& machine, Module& module, const std::shared_ptr<KernelCode>& code);

}  // namespace gctx::sim
