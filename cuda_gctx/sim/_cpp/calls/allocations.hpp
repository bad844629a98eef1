// Memory that the machine gives out: by its address, its making and its end.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// The one that holds all of the range.
Allocation* find_allocation(Machine& machine, std::uint64_t address, std::size_t size);
// The bytes of a range, or none if the machine has not all of it.
Bytes bytes_at(Machine& machine, std::uint64_t address, std::uint64_t size);
// Whether the host's own pointers cannot reach it, allocated or not.
bool is_of_a_device(const Machine& machine, std::uint64_t address);
// Keeps room in the host's memory for `bytes`, which are about to be written; null where there is none.
std::shared_ptr<void> promise_pages(Machine& machine, const Bytes& bytes);
void allocate(Call& call, Device& device, std::size_t size, Pool* pool, CUdeviceptr* out);
void allocate_managed(Call& call, int device, std::size_t size, Pool* pool, CUdeviceptr* out);
void allocate_host(Call& call, int device, std::size_t size, unsigned flags, Pool* pool, CUdeviceptr* out);
void place_variable(Call& call, const Module& module, const Variable& variable, std::uint64_t& place);
void release(Machine& machine, std::uint64_t address);
void release(Machine& machine, const Array& array);
bool may_be_freed(const Allocation& allocation);
// Made by cuMemAlloc, or as if.
bool is_plain(const Allocation& allocation);
// Whether some device has access; all have to memory that is not mapped.
bool is_reachable(const Allocation& allocation, bool writes);

}  // namespace gctx::sim
