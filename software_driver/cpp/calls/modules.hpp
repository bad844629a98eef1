// Code that is loaded.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// The function of a kernel on a device.
CUfunction function_on(Call& call, const Kernel& kernel, int device);
void unload(Machine& machine, Module& module);
void free_variables(Machine& machine, Module& module);

}  // namespace software_driver
