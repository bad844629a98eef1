// The bounds of all memory on record, so that copies really happen and a wrong address answers an error.
#include "calls/allocations.hpp"

#include <algorithm>

#include "calls/graph_memory.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {

Allocation* find_allocation(Machine& machine, std::uint64_t address, std::size_t size) {
  auto found = machine.allocations.upper_bound(address);
  if (found == machine.allocations.begin()) {
    return nullptr;
  }
  --found;
  const std::uint64_t offset = address - found->first;
  if (offset >= found->second.size || size > found->second.size - offset) {
    return nullptr;
  }
  return &found->second;
}

namespace {

// The same for every kind of memory that the driver gives out.
CUdeviceptr add(Call& c, Allocation made, Pool* pool) {
  c.machine.made(made);
  made.pool = pool;
  made.storage = Storage(made.size);
  made.handle = made.storage.address();
  if (!c.thread.stack.empty()) {
    made.context_id = c.thread.stack.back().id;
  }
  if (pool != nullptr) {
    pool->used += made.size;
    pool->used_high = std::max(pool->used_high, pool->used);
  }
  const std::uint64_t address = made.handle;
  c.machine.freed.erase(address);
  c.machine.allocations.emplace(address, std::move(made));
  return address;
}

}  // namespace

CUresult allocate(Call& c, Device& device, std::size_t size, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!has_room(device, size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation made;
  made.size = size;
  made.device = device.ordinal;
  const CUdeviceptr address = add(c, std::move(made), pool);
  device.allocated += size;
  return give(out, address);
}

CUresult allocate_managed(Call& c, int device, std::size_t size, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Allocation made;
  made.size = size;
  made.device = device;
  made.managed = true;
  return give(out, add(c, std::move(made), pool));
}

CUresult allocate_host(Call& c, int device, std::size_t size, unsigned flags, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Allocation made;
  made.size = size;
  made.device = device;
  made.type = CU_MEMORYTYPE_HOST;
  made.flags = flags;
  return give(out, add(c, std::move(made), pool));
}

CUresult place_variable(Call& c, const Module& module, const Variable& variable, std::uint64_t& place) {
  Device& device = c.machine.devices[static_cast<std::size_t>(module.device)];
  if (!has_room(device, variable.size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation made;
  made.size = variable.size;
  made.device = module.device;
  made.module = &module;
  made.hidden = true;
  place = add(c, std::move(made), nullptr);
  device.allocated += variable.size;
  auto* bytes = reinterpret_cast<char*>(place);
  if (variable.size < Storage::mapped_from) {
    std::fill_n(bytes, variable.size, '\0');  // mapped memory is zero already
  }
  std::copy(variable.initial.begin(), variable.initial.end(), bytes);
  return CUDA_SUCCESS;
}

bool may_be_freed(const Allocation& allocation) {
  // Memory of a graph: only while it is in use, and only what the graph does not free itself.
  return !allocation.freeing && allocation.live && !allocation.freed_in_graph && allocation.module == nullptr;
}

void release(Machine& machine, std::uint64_t address) {
  const auto found = machine.allocations.find(address);
  if (found == machine.allocations.end()) {
    return;
  }
  Allocation& allocation = found->second;
  if (allocation.graphs > 0) {
    return free_graph_memory(machine, allocation);
  }
  if (allocation.type == CU_MEMORYTYPE_DEVICE && !allocation.managed) {
    machine.devices[static_cast<std::size_t>(allocation.device)].allocated -= allocation.size;
  }
  if (allocation.pool != nullptr) {
    allocation.pool->used -= allocation.size;
  }
  machine.freed.insert(address);
  machine.allocations.erase(found);
}

}  // namespace gctx::sim
