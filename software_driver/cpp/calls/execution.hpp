// Kernels that are executed: a program in PTX on the memory and the SMs of a machine.
#pragma once

#include <map>
#include <string>

#include "calls/entry.hpp"

namespace software_driver {

// The address of a variable of a module, which gets its place when it is first asked for.
std::uint64_t address_of(Call& call, Module& module, const Variable& variable);
// The addresses of the variables that have been placed: managed ones of a library are those of all devices.
std::map<std::string, std::uint64_t, std::less<>>& places_of(Module& module, const Variable& variable);
// Makes a grid execute its kernel. False where it cannot; Unknown then knows why.
bool execute(Call& call, const Context& context, const LaunchPlan& plan, Grid& grid);
// The steps that follow when the kernel is over.
void end_execution(Machine& machine, Work& work);

}  // namespace software_driver
