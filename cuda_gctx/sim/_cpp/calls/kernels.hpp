// From a handle of a function or a kernel to its code, and the attributes of both.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// The system keeps so much shared memory of each block for itself (recorded: RESERVED_SHARED_MEMORY_PER_BLOCK).
inline constexpr std::size_t reserved_shared_bytes = 1024;

// cuLaunchKernel and its like take a CUkernel where a CUfunction is due: the function is then that of the current
// context.
std::shared_ptr<KernelCode> find_code(Call& call, CUfunction handle, CUresult& result);
int kernel_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which);
// What a block of it takes of an SM.
BlockNeeds needs_of(const Machine& machine, const KernelCode& code, unsigned threads, std::size_t dynamic_shared_bytes);
// Completes a plan that has its shape: the code, what the hardware and the context allow, and the arguments.
CUresult plan_launch(Call& call, const Context& context, CUfunction function, LaunchPlan& plan, void** arguments,
                     void** extra);
Function& function_of(Machine& machine, Module& module, const std::shared_ptr<KernelCode>& code);

}  // namespace gctx::sim
