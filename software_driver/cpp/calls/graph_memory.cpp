// Memory that graphs allocate and free: at one address as long as the graph is there, in use from a launch on until it
// is freed.
#include "calls/graph_memory.hpp"

#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

constexpr std::pair<CUgraphMem_attribute, std::uint64_t GraphMemory::*> graph_memory_attributes[] = {
    {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &GraphMemory::used},
    {CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &GraphMemory::used_high},
    {CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &GraphMemory::reserved},
    {CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &GraphMemory::reserved_high}};

}  // namespace

void make_graph_memory(Call& c, Step& node) {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2& wanted = node.parameters.alloc;
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
  made.hidden = true;
  made.size = wanted.bytesize;
  made.device = device.ordinal;
  made.managed = managed;
  made.live = false;
  wanted.dptr = add_allocation(c, std::move(made));
}

void allocate_at_launch(Call& c, const GraphExec& exec, CUdeviceptr address) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end(), CUDA_ERROR_INVALID_VALUE);
  Allocation& allocation = found->second;
  if (allocation.live) {
    refuse_if((exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0, CUDA_ERROR_INVALID_VALUE);
    free_graph_memory(c.machine, allocation);
  }
  Device& device = c.machine.device(allocation.device);
  refuse_if(!has_room(device, allocation.size), CUDA_ERROR_OUT_OF_MEMORY);
  allocation.live = true;
  device.allocated += allocation.size;
  GraphMemory& memory = device.graph_memory;
  // What the program freed is given back when a graph needs memory.
  memory.used += allocation.size - std::exchange(memory.freed, 0);
  memory.reserved = std::max(memory.reserved, memory.used);
  memory.used_high = std::max(memory.used_high, memory.used);
  memory.reserved_high = std::max(memory.reserved_high, memory.reserved);
}

void free_at_launch(Call& c, CUdeviceptr address) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end() || !found->second.live, CUDA_ERROR_INVALID_VALUE);
  free_graph_memory(c.machine, found->second);
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuDeviceGraphMemTrim, Call&, Device& device) {
  GraphMemory& memory = device.graph_memory;
  memory.used -= std::exchange(memory.freed, 0);
  memory.reserved = memory.used;
}

SOFTWARE_DRIVER_CALL(cuDeviceGetGraphMemAttribute, Call&, Device& device, CUgraphMem_attribute which, void* out) {
  const auto member = need(value_of(graph_memory_attributes, which), CUDA_ERROR_INVALID_VALUE);
  std::memcpy(out, &(device.graph_memory.*member), sizeof(std::uint64_t));
}

// Only the highest values can be set, to zero: they begin anew.
SOFTWARE_DRIVER_CALL(cuDeviceSetGraphMemAttribute, Call&, Device& device, CUgraphMem_attribute which, void* in) {
  const bool used = which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
  std::uint64_t wanted = 0;
  refuse_if(!used && which != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, CUDA_ERROR_INVALID_VALUE);
  std::memcpy(&wanted, in, sizeof wanted);
  refuse_if(wanted != 0, CUDA_ERROR_INVALID_VALUE);
  GraphMemory& memory = device.graph_memory;
  (used ? memory.used_high : memory.reserved_high) = used ? memory.used : memory.reserved;
}
