// The bounds of all memory on record, so that copies really happen and a wrong address answers an error.
#include "calls/allocations.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "machine/costs.hpp"

namespace software_driver {

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
          "software driver (simulated): CUDA_ERROR_OUT_OF_MEMORY: the contents of device memory would "
          "take more than %llu bytes of this machine's memory; resident=BYTES in its description allows more\n",
          static_cast<unsigned long long>(machine.resident_limit));
    }
    return nullptr;
  }
  *machine.promised += wanted;
  return {static_cast<void*>(machine.promised.get()),
          [promised = machine.promised, wanted](void*) { *promised -= wanted; }};
}

CUdeviceptr add_allocation(Call& c, Allocation made) {
  c.made(made);
  if (made.pool != nullptr) {
    made.pool->used += made.size;
    made.pool->used_high = std::max(made.pool->used_high, made.pool->used);
  }
  const std::uint64_t address = made.handle = made.storage.address;
  c.machine.freed.erase(address);
  // Memory that is mapped or opened keeps its marks: it was there before.
  const bool is_fresh = made.mapped == nullptr && made.opened == 0;
  const Allocation& added = c.machine.allocations.emplace(address, std::move(made)).first->second;
  if (is_fresh) {
    Bytes bytes;
    bytes.add(added.storage, 0, added.size);
    c.machine.unknown.clear(bytes, 0, added.size);
  }
  return address;
}

// 0 where no context is current.
static std::uint64_t current_id(const Call& c) { return c.thread.stack.empty() ? 0 : c.thread.stack.back().id; }

CUdeviceptr allocate(Call& c, const MemoryPlace& place, std::size_t size, Pool* pool, unsigned flags) {
  refuse_if(size == 0, CUDA_ERROR_INVALID_VALUE);
  Device& device = c.machine.device(place.device);
  refuse_if(place.is_device() && !has_room(device, size), CUDA_ERROR_OUT_OF_MEMORY);
  Allocation made;
  made.size = size;
  made.device = place.device;
  made.type = place.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  made.managed = place.managed;
  made.context_id = current_id(c);
  made.pool = pool;
  made.flags = flags;
  made.storage = place.is_device() ? device.take(size) : take_from_host(size);
  device.allocated += place.is_device() ? size : 0;
  return add_allocation(c, std::move(made));
}

CUdeviceptr place_variable(Call& c, const Module& module, const Variable& variable) {
  Device& device = c.machine.device(module.device);
  const bool managed = variable.is_managed;
  refuse_if(!managed && !has_room(device, variable.size), CUDA_ERROR_OUT_OF_MEMORY);
  Allocation made;
  made.size = variable.size;
  made.device = module.device;
  made.module = &module;
  made.context_id = current_id(c);
  made.hidden = true;
  made.managed = managed;
  made.storage = managed ? take_from_host(variable.size) : device.take(variable.size);
  if (managed) {
    std::memset(made.storage.host, 0, variable.size);
    std::memcpy(made.storage.host, variable.initial.data(), variable.initial.size());
  } else {
    made.storage.file->clear(made.storage.offset, variable.size);
    made.storage.file->write(made.storage.offset, variable.initial.data(), variable.initial.size());
    device.allocated += variable.size;
  }
  const CUdeviceptr address = add_allocation(c, std::move(made));
  if (!variable.is_constant && !module.written_by.empty()) {
    c.machine.unknown.mark(bytes_at(c.machine, address, variable.size), 0, variable.size, module.written_by);
  }
  return address;
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

void free_graph_memory(Machine& machine, Allocation& allocation) {
  Device& device = machine.device(allocation.device);
  device.graph_memory.freed += allocation.size;
  device.allocated -= allocation.size;
  allocation.live = false;
  allocation.freeing = false;
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
    machine.device(allocation.device).allocated -= allocation.size;
  }
  if (allocation.pool != nullptr) {
    allocation.pool->used -= allocation.size;
  }
  machine.freed.insert(address);
  if (!allocation.storage.file) {
    machine.unknown.clear(bytes_at(machine, address, allocation.size), 0, allocation.size);
  }
  machine.allocations.erase(found);
}

}  // namespace software_driver
