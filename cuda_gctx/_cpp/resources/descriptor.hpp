// The driver's description of a whole set of SMs, from which a context is made.
#pragma once

#include <cuda.h>

#include "driver/driver.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// Throws where a set of SMs is no more than a plan, or empty.
void demand_sms(const SmResource& resource);

// One descriptor of all units. The driver has no call that frees it, and takes it for any number of contexts.
CUdevResourceDesc descriptor_of(const Driver& driver, const SmResource& resource);

}  // namespace gctx
