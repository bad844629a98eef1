// Memory that graphs allocate and free: at one address as long as the graph is there, in use from a launch on until it
// is freed.
#include "calls/graph_memory.hpp"

#include <algorithm>
#include <cstring>

#include "machine/costs.hpp"

namespace gctx::sim {
namespace {

Device& device_of(Machine& machine, const Allocation& allocation) {
  return machine.devices[static_cast<std::size_t>(allocation.device)];
}

void begin_use(Machine& machine, Allocation& allocation) {
  Device& device = device_of(machine, allocation);
  GraphMemory& memory = device.graph_memory;
  // What the program freed is given back when a graph needs memory.
  memory.used -= std::exchange(memory.freed, 0);
  allocation.live = true;
  device.allocated += allocation.size;
  memory.used += allocation.size;
  memory.reserved = std::max(memory.reserved, memory.used);
  memory.used_high = std::max(memory.used_high, memory.used);
  memory.reserved_high = std::max(memory.reserved_high, memory.reserved);
}

void end_use(Machine& machine, Allocation& allocation) {
  Device& device = device_of(machine, allocation);
  allocation.live = false;
  allocation.freeing = false;
  device.allocated -= allocation.size;
}

std::uint64_t* value_of(GraphMemory& memory, CUgraphMem_attribute which) {
  switch (which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      return &memory.used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      return &memory.used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      return &memory.reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      return &memory.reserved_high;
    default:
      return nullptr;
  }
}

}  // namespace

void make_graph_memory(Call& c, AllocNode& node) {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2& wanted = node.parameters;
  // Memory of the host is not modelled here, and sharing with other processes is not possible.
  refuse_if(wanted.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE || wanted.bytesize == 0, CUDA_ERROR_INVALID_VALUE);
  const CUmemLocation& where = wanted.poolProps.location;
  const bool managed = wanted.poolProps.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  refuse_if(where.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                (!managed && wanted.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED),
            CUDA_ERROR_NOT_SUPPORTED);
  Device& device = find_device(c, where.id);
  refuse_if(wanted.accessDescs == nullptr && wanted.accessDescCount > 0, CUDA_ERROR_INVALID_VALUE);
  refuse_if(!has_room(device, wanted.bytesize), CUDA_ERROR_OUT_OF_MEMORY);
  for (std::size_t i = 0; i < wanted.accessDescCount; ++i) {
    find_device(c, wanted.accessDescs[i].location.id);
    node.access.push_back(wanted.accessDescs[i]);
  }
  Allocation made;
  made.storage = managed ? take_from_host(wanted.bytesize) : device.take(wanted.bytesize);
  c.made(made);
  made.hidden = true;
  made.size = wanted.bytesize;
  made.device = device.ordinal;
  made.managed = managed;
  made.live = false;
  made.handle = made.storage.address;
  wanted.dptr = made.handle;
  c.machine.freed.erase(made.handle);
  c.machine.allocations.emplace(made.handle, std::move(made));
}

void allocate_at_launch(Call& c, const GraphExec& exec, CUdeviceptr address) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end(), CUDA_ERROR_INVALID_VALUE);
  Allocation& allocation = found->second;
  if (allocation.live) {
    refuse_if((exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0, CUDA_ERROR_INVALID_VALUE);
    free_graph_memory(c.machine, allocation);
  }
  refuse_if(!has_room(device_of(c.machine, allocation), allocation.size), CUDA_ERROR_OUT_OF_MEMORY);
  begin_use(c.machine, allocation);
}

void free_at_launch(Call& c, CUdeviceptr address) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end() || !found->second.live, CUDA_ERROR_INVALID_VALUE);
  free_graph_memory(c.machine, found->second);
}

void free_graph_memory(Machine& machine, Allocation& allocation) {
  device_of(machine, allocation).graph_memory.freed += allocation.size;
  end_use(machine, allocation);
}

}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuDeviceGraphMemTrim, Call&, Device& device) {
  GraphMemory& memory = device.graph_memory;
  memory.used -= std::exchange(memory.freed, 0);
  memory.reserved = memory.used;
}

GCTX_SIM_CALL(cuDeviceGetGraphMemAttribute, Call&, Device& device, CUgraphMem_attribute which, void* out) {
  const std::uint64_t* value = value_of(device.graph_memory, which);
  refuse_if(value == nullptr, CUDA_ERROR_INVALID_VALUE);
  std::memcpy(out, value, sizeof *value);
}

// Only the highest values can be set, to zero: they begin anew.
GCTX_SIM_CALL(cuDeviceSetGraphMemAttribute, Call&, Device& device, CUgraphMem_attribute which, void* in) {
  const bool high = which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  std::uint64_t wanted = 0;
  refuse_if(!high, CUDA_ERROR_INVALID_VALUE);
  std::memcpy(&wanted, in, sizeof wanted);
  refuse_if(wanted != 0, CUDA_ERROR_INVALID_VALUE);
  GraphMemory& memory = device.graph_memory;
  *value_of(memory, which) = which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? memory.used : memory.reserved;
}
