// Memory that the machine gives out: by its address, its making and its end.
#pragma once

#include <algorithm>

#include "calls/entry.hpp"

namespace software_driver {

// The one that holds all of the range.
Allocation* find_allocation(Machine& machine, std::uint64_t address, std::size_t size);
// The bytes of a range, or none if the machine has not all of it.
Bytes bytes_at(Machine& machine, std::uint64_t address, std::uint64_t size);
// Whether the host's own pointers cannot reach it, allocated or not.
bool is_of_a_device(const Machine& machine, std::uint64_t address);
// Keeps room in the host's memory for `bytes`, which are about to be written; null where there is none.
std::shared_ptr<void> promise_pages(Machine& machine, const Bytes& bytes);
// What every kind of memory has in common: a place among the allocations, for its storage.
CUdeviceptr add_allocation(Call& call, Allocation made);
// Where memory is: on a device, on the host, or managed; the device that it is given out for.
struct MemoryPlace {
  int device;
  bool host = false;
  bool managed = false;
  bool is_device() const noexcept { return !host && !managed; }
};
CUdeviceptr allocate(Call& call, const MemoryPlace& place, std::size_t size, Pool* pool = nullptr, unsigned flags = 0);
CUdeviceptr place_variable(Call& call, const Module& module, const Variable& variable);
// The program frees memory that a graph allocated.
void free_graph_memory(Machine& machine, Allocation& allocation);
void release(Machine& machine, std::uint64_t address);
template <class Is>
void release_if(Machine& machine, Is&& is_meant) {
  std::vector<std::uint64_t> addresses;
  for (const auto& [address, allocation] : machine.allocations) {
    if (is_meant(allocation)) {
      addresses.push_back(address);
    }
  }
  std::ranges::for_each(addresses, [&](std::uint64_t address) { release(machine, address); });
}
bool may_be_freed(const Allocation& allocation);
// Made by cuMemAlloc, or as if.
bool is_plain(const Allocation& allocation);
// Whether some device has access; all have to memory that is not mapped.
bool is_reachable(const Allocation& allocation, bool writes);

}  // namespace software_driver
