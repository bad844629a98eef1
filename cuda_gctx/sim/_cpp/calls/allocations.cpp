// The bounds of all memory on record, so that copies really happen and a wrong address answers an error.
#include "calls/allocations.hpp"

#include <algorithm>
#include <cstdio>

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

Bytes bytes_at(Machine& machine, std::uint64_t address, std::uint64_t size) {
  Bytes found;
  while (size > 0) {
    const Allocation* allocation = find_allocation(machine, address, 1);
    // Only mappings next to each other are one range.
    if (allocation == nullptr || (!found.is_empty() && allocation->mapped == nullptr)) {
      return {};
    }
    const std::uint64_t at = address - allocation->handle;
    const std::uint64_t part = std::min(size, allocation->size - at);
    if (part < size && allocation->mapped == nullptr) {
      return {};
    }
    found.add(allocation->storage, at, part);
    address += part;
    size -= part;
  }
  return found;
}

bool is_reachable(const Allocation& allocation, bool writes) {
  return allocation.mapped == nullptr || std::ranges::any_of(allocation.access, [&](const auto& of_device) {
           return of_device.second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
                  (!writes && of_device.second == CU_MEM_ACCESS_FLAGS_PROT_READ);
         });
}

bool is_of_a_device(const Machine& machine, std::uint64_t address) {
  const auto next = machine.reservations.upper_bound(address);
  return (next != machine.reservations.begin() && std::prev(next)->second->range.contains(address)) ||
         std::ranges::any_of(machine.devices,
                             [&](const Device& device) { return device.arena && device.arena->contains(address); });
}

std::shared_ptr<void> promise_pages(Machine& machine, const Bytes& bytes) {
  if (bytes.is_empty()) {
    return machine.promised;
  }
  std::uint64_t taken = *machine.promised;
  for (const Device& device : machine.devices) {
    taken += device.resident();
  }
  std::uint64_t wanted = bytes.size();
  if (taken + wanted > machine.resident_limit) {
    wanted = bytes.missing();
  }
  if (taken + wanted > machine.resident_limit) {
    static std::atomic_flag said;
    if (!said.test_and_set()) {
      std::fprintf(
          stderr,
          "cuda_gctx software driver (simulated): CUDA_ERROR_OUT_OF_MEMORY: the contents of device memory would "
          "take more than %llu bytes of this machine's memory; resident=BYTES in its description allows more\n",
          static_cast<unsigned long long>(machine.resident_limit));
    }
    return nullptr;
  }
  *machine.promised += wanted;
  return {static_cast<void*>(machine.promised.get()),
          [promised = machine.promised, wanted](void*) { *promised -= wanted; }};
}

namespace {

// The same for every kind of memory that the driver gives out.
CUdeviceptr add(Call& c, Allocation made, Storage storage, Pool* pool) {
  c.made(made);
  made.pool = pool;
  made.storage = std::move(storage);
  made.handle = made.storage.address;
  if (!c.thread.stack.empty()) {
    made.context_id = c.thread.stack.back().id;
  }
  if (pool != nullptr) {
    pool->used += made.size;
    pool->used_high = std::max(pool->used_high, pool->used);
  }
  const std::uint64_t address = made.handle;
  c.machine.freed.erase(address);
  c.machine.unknown.clear(address, made.size);
  c.machine.allocations.emplace(address, std::move(made));
  return address;
}

}  // namespace

void allocate(Call& c, Device& device, std::size_t size, Pool* pool, CUdeviceptr* out) {
  refuse_if(size == 0, CUDA_ERROR_INVALID_VALUE);
  refuse_if(!has_room(device, size), CUDA_ERROR_OUT_OF_MEMORY);
  Allocation made;
  made.size = size;
  made.device = device.ordinal;
  const CUdeviceptr address = add(c, std::move(made), device.take(size), pool);
  device.allocated += size;
  give(out, address);
}

void allocate_managed(Call& c, int device, std::size_t size, Pool* pool, CUdeviceptr* out) {
  refuse_if(size == 0, CUDA_ERROR_INVALID_VALUE);
  Allocation made;
  made.size = size;
  made.device = device;
  made.managed = true;
  give(out, add(c, std::move(made), take_from_host(size), pool));
}

void allocate_host(Call& c, int device, std::size_t size, unsigned flags, Pool* pool, CUdeviceptr* out) {
  refuse_if(size == 0, CUDA_ERROR_INVALID_VALUE);
  Allocation made;
  made.size = size;
  made.device = device;
  made.type = CU_MEMORYTYPE_HOST;
  made.flags = flags;
  give(out, add(c, std::move(made), take_from_host(size), pool));
}

void place_variable(Call& c, const Module& module, const Variable& variable, std::uint64_t& place) {
  Device& device = c.machine.devices[static_cast<std::size_t>(module.device)];
  refuse_if(!has_room(device, variable.size), CUDA_ERROR_OUT_OF_MEMORY);
  Allocation made;
  made.size = variable.size;
  made.device = module.device;
  made.module = &module;
  made.hidden = true;
  Storage storage = device.take(variable.size);
  storage.file->clear(storage.offset, variable.size);
  storage.file->write(storage.offset, variable.initial.data(), variable.initial.size());
  place = add(c, std::move(made), std::move(storage), nullptr);
  device.allocated += variable.size;
  if (!variable.is_constant && !module.written_by.empty()) {
    c.machine.unknown.mark(place, variable.size, module.written_by);
  }
}

bool may_be_freed(const Allocation& allocation) {
  // Memory of a graph: only while it is in use, and only what the graph does not free itself.
  return !allocation.freeing && allocation.live && !allocation.freed_in_graph && allocation.module == nullptr &&
         allocation.mapped == nullptr && allocation.opened == 0;
}

bool is_plain(const Allocation& allocation) {
  return may_be_freed(allocation) && allocation.type == CU_MEMORYTYPE_DEVICE && !allocation.managed &&
         allocation.pool == nullptr && allocation.graphs == 0;
}

void release(Machine& machine, std::uint64_t address) {
  const auto found = machine.allocations.find(address);
  if (found == machine.allocations.end()) {
    return;
  }
  Allocation& allocation = found->second;
  if (allocation.mapped != nullptr) {
    return;  // until it is unmapped
  }
  if (allocation.graphs > 0) {
    return free_graph_memory(machine, allocation);
  }
  if (allocation.type == CU_MEMORYTYPE_DEVICE && !allocation.managed && allocation.opened == 0) {
    machine.devices[static_cast<std::size_t>(allocation.device)].allocated -= allocation.size;
  }
  if (allocation.pool != nullptr) {
    allocation.pool->used -= allocation.size;
  }
  machine.freed.insert(address);
  machine.unknown.clear(address, allocation.size);
  machine.allocations.erase(found);
}

void release(Machine& machine, const Array& array) {
  machine.devices[static_cast<std::size_t>(array.device)].allocated -= array.bytes();
  machine.arrays.remove(array);
}

}  // namespace gctx::sim
