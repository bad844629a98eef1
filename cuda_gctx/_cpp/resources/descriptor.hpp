// The driver's descriptor of a set of SMs, from which it creates a context.
#pragma once

#include <cuda.h>

#include "driver/driver.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// Throws if a set of SMs comes from a dry run, or is empty.
void demand_sms(const SmResource& resource);

// Returns one descriptor of all units. The driver cannot free it, and accepts it for any number of contexts.
CUdevResourceDesc descriptor_of(const Driver& driver, const SmResource& resource);

}  // namespace gctx
