// Memory pools, and allocation and release in stream order.
#include "calls/allocations.hpp"
#include "calls/graph_memory.hpp"
#include "calls/graph_nodes.hpp"
#include "calls/queueing.hpp"

namespace gctx::sim {

namespace {

// A place for memory: a device, the host, or wherever managed memory is.
struct Place {
  int device = -1;
  bool managed = false;
};

Pools& pools_of(Machine& machine, const Place& place) {
  Pools& pools = place.managed      ? machine.managed_pools
                 : place.device < 0 ? machine.host_pools
                                    : machine.devices[static_cast<std::size_t>(place.device)].pools;
  if (pools.standard == nullptr) {
    auto pool = std::make_unique<Pool>();
    machine.made(*pool);
    pool->hidden = true;
    pool->device = place.device;
    pool->managed = place.managed;
    pools.standard = &machine.pools.add(std::move(pool));
    pools.current = pools.standard;
  }
  return pools;
}

// A node that allocates memory of the graph, whichever pool is named.
void capture_allocation(Call& c, Stream& stream, std::size_t size, const Pool& pool, CUdeviceptr* out) {
  refuse_if(!stream.capture->is_active(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  refuse_if(pool.device < 0 || pool.managed, CUDA_ERROR_NOT_SUPPORTED);
  AllocNode made;
  made.parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {pool.device}};
  made.parameters.bytesize = size;
  make_graph_memory(c, made);
  *out = made.parameters.dptr;
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  node.parameters = std::move(made);
  return enqueue(c, stream, std::move(node));
}

void capture_free(Call& c, Stream& stream, CUdeviceptr address) {
  refuse_if(!stream.capture->is_active(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  parameters.free.dptr = address;
  GraphNode node;
  plan_node(c, stream.capture->graph(), parameters, node);
  return enqueue(c, stream, std::move(node));
}

// Page-locked memory of the host goes back in the order of a stream only where it came so.
bool is_from_pool(const Allocation& allocation) {
  return allocation.type == CU_MEMORYTYPE_DEVICE || allocation.pool != nullptr;
}

void allocate_on(Call& c, Stream& stream, std::size_t size, Pool& pool, CUdeviceptr* out) {
  // Recorded: an allocation of 0 bytes succeeds here, without an address.
  if (size == 0) {
    return give(out, CUdeviceptr{0});
  }
  if (stream.capture) {
    return capture_allocation(c, stream, size, pool, out);
  }
  if (pool.managed) {
    allocate_managed(c, stream.device, size, &pool, out);
  } else if (pool.device < 0) {
    allocate_host(c, stream.device, size, 0, &pool, out);
  } else {
    allocate(c, c.machine.devices[static_cast<std::size_t>(pool.device)], size, &pool, out);
  }
  submit(c, stream, GraphNode{});
}

void pool_attribute(Pool& pool, CUmemPool_attribute which, void* value, bool set) {
  switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      auto& number = *static_cast<int*>(value);
      if (set) {
        pool.values[which] = number != 0 ? 1 : 0;
      } else {
        const auto found = pool.values.find(which);
        number = found == pool.values.end() ? 1 : static_cast<int>(found->second);
      }
      return;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: {
      auto& number = *static_cast<cuuint64_t*>(value);
      if (set) {
        pool.values[which] = number;
      } else {
        number = pool.values[which];
      }
      return;
    }
    // The simulated pool keeps nothing in reserve: what is reserved is what is used.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      refuse_if(set, CUDA_ERROR_INVALID_VALUE);
      *static_cast<cuuint64_t*>(value) = pool.used;
      return;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      refuse_if(set && *static_cast<cuuint64_t*>(value) != 0, CUDA_ERROR_INVALID_VALUE);
      if (set) {
        pool.used_high = pool.used;
      } else {
        *static_cast<cuuint64_t*>(value) = pool.used_high;
      }
      return;
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

// Where a pool of this type at this location has its memory.
void read_place(Call& c, const CUmemLocation* location, CUmemAllocationType type, Place& place) {
  place.managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  refuse_if(place.managed ? c.version() < 13000 : type != CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      find_device(c, location->id);
      place.device = location->id;
      return;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return;
    case CU_MEM_LOCATION_TYPE_NONE:
      refuse_if(!place.managed, CUDA_ERROR_INVALID_VALUE);
      return;
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

void tell_pool(Call& c, const Place& place, bool current, CUmemoryPool* out) {
  const Pools& pools = pools_of(c.machine, place);
  give(out, as_handle<CUmemoryPool>(current ? *pools.current : *pools.standard));
}

void set_pool(Call& c, const Place& place, Pool& pool) {
  refuse_if(pool.managed != place.managed || (!place.managed && pool.device != place.device), CUDA_ERROR_INVALID_VALUE);
  pools_of(c.machine, place).current = &pool;
}

template <class Body>
void with_location(Call& c, const CUmemLocation* location, CUmemAllocationType type, Body&& body) {
  Place place;
  read_place(c, location, type, place);
  return body(place);
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuMemAllocAsync, Call& c, CUdeviceptr* out, std::size_t size, Stream& stream) {
  return allocate_on(c, stream, size, *pools_of(c.machine, {stream.device, false}).current, out);
}

GCTX_SIM_CALL(cuMemAllocFromPoolAsync, Call& c, CUdeviceptr* out, std::size_t size, Pool& pool, Stream& stream) {
  return allocate_on(c, stream, size, pool, out);
}

GCTX_SIM_CALL(cuMemFreeAsync, Call& c, CUdeviceptr address, Stream& stream) {
  if (address == 0) {
    return;  // what an allocation of no bytes gave. Assumed
  }
  if (stream.capture) {
    return capture_free(c, stream, address);
  }
  const auto found = c.machine.allocations.find(address);
  if (found == c.machine.allocations.end() || !is_from_pool(found->second) || !may_be_freed(found->second)) {
    const bool again = c.machine.freed.contains(address) || found != c.machine.allocations.end();
    c.note(again ? Misuse::double_destroy : Misuse::unknown_handle, address, "no device memory that can be freed");
    refuse(CUDA_ERROR_INVALID_VALUE);
  }
  GraphNode node;
  if (found->second.graphs > 0) {
    // Memory of graphs is reckoned at the call, as launches do.
    free_graph_memory(c.machine, found->second);
  } else {
    found->second.freeing = true;
    node.effect = [&machine = c.machine, address] {
      release(machine, address);
      return Rest{};
    };
  }
  submit(c, stream, node);
}

GCTX_SIM_CALL(cuMemPoolCreate, Call& c, CUmemoryPool* out, const CUmemPoolProps* props) {
  // Sharing between processes is not modelled.
  refuse_if(props->handleTypes != CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
  Place place;
  read_place(c, &props->location, props->allocType, place);
  auto pool = std::make_unique<Pool>();
  c.made(*pool);
  pool->device = place.device;
  pool->managed = place.managed;
  give(out, as_handle<CUmemoryPool>(c.machine.pools.add(std::move(pool))));
}

GCTX_SIM_CALL(cuMemPoolDestroy, Call& c, Pool& pool) {
  Pools& pools = pools_of(c.machine, {pool.device, pool.managed});
  refuse_if(&pool == pools.standard, CUDA_ERROR_INVALID_VALUE);
  if (pools.current == &pool) {
    pools.current = pools.standard;
  }
  for (auto& [address, allocation] : c.machine.allocations) {
    if (allocation.pool == &pool) {
      allocation.pool = nullptr;
    }
  }
  c.machine.pools.remove(pool);
}

GCTX_SIM_CALL(cuMemPoolTrimTo, Call&, Pool&, std::size_t) {}

GCTX_SIM_CALL(cuMemPoolSetAttribute, Call&, Pool& pool, CUmemPool_attribute which, void* value) {
  return pool_attribute(pool, which, value, true);
}

GCTX_SIM_CALL(cuMemPoolGetAttribute, Call&, Pool& pool, CUmemPool_attribute which, void* value) {
  return pool_attribute(pool, which, value, false);
}

GCTX_SIM_CALL(cuMemPoolSetAccess, Call& c, Pool& pool, const CUmemAccessDesc* access, std::size_t count) {
  refuse_if(access == nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
  for (std::size_t i = 0; i < count; ++i) {
    Place place;
    read_place(c, &access[i].location, CU_MEM_ALLOCATION_TYPE_PINNED, place);
  }
  for (std::size_t i = 0; i < count; ++i) {
    Place place;
    read_place(c, &access[i].location, CU_MEM_ALLOCATION_TYPE_PINNED, place);
    pool.access[place.device] = access[i].flags;
  }
}

GCTX_SIM_CALL(cuMemPoolGetAccess, Call& c, CUmemAccess_flags* flags, Pool& pool, CUmemLocation* location) {
  Place place;
  read_place(c, location, CU_MEM_ALLOCATION_TYPE_PINNED, place);
  if (pool.managed || place.device == pool.device) {
    return give(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  const auto found = pool.access.find(place.device);
  give(flags, found == pool.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second);
}

GCTX_SIM_CALL(cuDeviceGetDefaultMemPool, Call& c, CUmemoryPool* out, const Device& device) {
  return tell_pool(c, {device.ordinal, false}, false, out);
}

GCTX_SIM_CALL(cuDeviceGetMemPool, Call& c, CUmemoryPool* out, const Device& device) {
  return tell_pool(c, {device.ordinal, false}, true, out);
}

GCTX_SIM_CALL(cuDeviceSetMemPool, Call& c, const Device& device, Pool& pool) {
  return set_pool(c, {device.ordinal, false}, pool);
}

GCTX_SIM_CALL(cuMemGetDefaultMemPool, Call& c, CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_location(c, location, type, [&](const Place& place) { return tell_pool(c, place, false, out); });
}

GCTX_SIM_CALL(cuMemGetMemPool, Call& c, CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_location(c, location, type, [&](const Place& place) { return tell_pool(c, place, true, out); });
}

GCTX_SIM_CALL(cuMemSetMemPool, Call& c, CUmemLocation* location, CUmemAllocationType type, Pool& pool) {
  return with_location(c, location, type, [&](const Place& place) { return set_pool(c, place, pool); });
}
