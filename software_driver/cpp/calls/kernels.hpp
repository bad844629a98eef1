// Attributes of kernels, and what their blocks need.
#pragma once

#include "machine/machine.hpp"

namespace software_driver {

// The system keeps so much shared memory of each block for itself (recorded: RESERVED_SHARED_MEMORY_PER_BLOCK).
inline constexpr std::size_t reserved_shared_bytes = 1024;

int kernel_attribute(const Machine& machine, const KernelCode& code, CUfunction_attribute which);
// What a block of it takes of an SM.
BlockNeeds needs_of(const Machine& machine, const KernelCode& code, unsigned threads, std::size_t dynamic_shared_bytes);

}  // namespace software_driver
