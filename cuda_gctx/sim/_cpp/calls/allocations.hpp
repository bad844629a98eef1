// Memory that the machine gives out: by its address, its making and its end.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// The one that holds all of the range.
Allocation* find_allocation(Machine& machine, std::uint64_t address, std::size_t size);
CUresult allocate(Call& call, Device& device, std::size_t size, Pool* pool, CUdeviceptr* out);
CUresult allocate_managed(Call& call, int device, std::size_t size, Pool* pool, CUdeviceptr* out);
CUresult allocate_host(Call& call, int device, std::size_t size, unsigned flags, Pool* pool, CUdeviceptr* out);
CUresult place_variable(Call& call, const Module& module, const Variable& variable, std::uint64_t& place);
void release(Machine& machine, std::uint64_t address);
bool may_be_freed(const Allocation& allocation);

}  // namespace gctx::sim
