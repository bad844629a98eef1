// Memory pools, and allocation and release in stream order.
#include "calls/allocations.hpp"
#include "calls/graph_memory.hpp"
#include "calls/graph_nodes.hpp"
#include "calls/queueing.hpp"

namespace software_driver {

namespace {

// A place of pools: a device, the host (-1), or wherever managed memory is.
struct PoolPlace {
  int device = -1;
  bool managed = false;
};

Pool& add_pool(Call& c, const PoolPlace& place, const CUmemLocation& location) {
  Pool& pool = c.add(c.machine.pools);
  pool.device = place.device;
  pool.managed = place.managed;
  pool.location = location;
  return pool;
}

Pools& pools_of(Call& c, const PoolPlace& place) {
  Pools& pools = place.managed      ? c.machine.managed_pools
                 : place.device < 0 ? c.machine.host_pools
                                    : c.machine.device(place.device).pools;
  if (pools.standard == nullptr) {
    const CUmemLocationType where = place.managed      ? CU_MEM_LOCATION_TYPE_NONE
                                    : place.device < 0 ? CU_MEM_LOCATION_TYPE_HOST
                                                       : CU_MEM_LOCATION_TYPE_DEVICE;
    pools.standard = pools.current = &add_pool(c, place, {where, {std::max(place.device, 0)}});
    pools.standard->hidden = true;
  }
  return pools;
}

// A node that allocates memory of the graph, whichever pool is named.
void capture_allocation(Call& c, Stream& stream, std::size_t size, const Pool& pool, CUdeviceptr* out) {
  refuse_if(pool.device < 0 || pool.managed, CUDA_ERROR_NOT_SUPPORTED);
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  CUDA_MEM_ALLOC_NODE_PARAMS_v2& wanted = node.parameters.alloc;
  wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {pool.device}};
  wanted.bytesize = size;
  make_graph_memory(c, node);
  *out = wanted.dptr;
  return enqueue(c, stream, std::move(node));
}

void capture_free(Call& c, Stream& stream, CUdeviceptr address) {
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

void allocate_from(Call& c, CUdeviceptr* out, std::size_t size, Pool& pool, Stream& stream) {
  // Recorded: an allocation of 0 bytes succeeds here, without an address.
  if (size == 0) {
    return give(out, CUdeviceptr{0});
  }
  if (stream.capture) {
    return capture_allocation(c, stream, size, pool, out);
  }
  refuse_if(pool.max_size != 0 && size > pool.max_size - std::min(pool.used, pool.max_size), CUDA_ERROR_OUT_OF_MEMORY);
  const bool host = pool.device < 0 && !pool.managed;
  give(out, allocate(c, {host || pool.managed ? stream.device : pool.device, host, pool.managed}, size, &pool));
  submit(c, stream, GraphNode{});
}

template <class T>
void pass(T& own, void* value, bool set) {
  auto& given = *static_cast<T*>(value);
  (set ? own : given) = set ? given : own;
}

// Attributes that say how a pool was made. A pool has no locality domain, and is not shared with other processes.
void pool_property(const Pool& pool, CUmemPool_attribute which, void* value) {
  int& number = *static_cast<int*>(value);
  switch (which) {
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
      number = pool.managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
      return;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      number = pool.location.id;
      return;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      number = pool.location.type;
      return;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *static_cast<cuuint64_t*>(value) = pool.max_size;
      return;
    case CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID:
      number = -1;
      return;
    default:
      number = 0;
  }
}

int newest_pool_attribute(int version) {
  return version >= 13040   ? CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID
         : version >= 13020 ? CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED
                            : CU_MEMPOOL_ATTR_USED_MEM_HIGH;
}

void pool_attribute(Call& c, Pool& pool, CUmemPool_attribute which, void* value, bool set) {
  switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      int& allowed = pool.reuses.emplace(which, 1).first->second;
      pass(allowed, value, set);
      allowed = allowed != 0 ? 1 : 0;
      return;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return pass(pool.release_threshold, value, set);
    // The simulated pool keeps nothing in reserve: what is reserved is what is used.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      refuse_if(set, CUDA_ERROR_INVALID_VALUE);
      return pass(pool.used, value, set);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      refuse_if(set && *static_cast<cuuint64_t*>(value) != 0, CUDA_ERROR_INVALID_VALUE);
      pass(pool.used_high, value, set);
      pool.used_high = set ? pool.used : pool.used_high;
      return;
    default:
      refuse_if(which < CU_MEMPOOL_ATTR_ALLOCATION_TYPE || which > newest_pool_attribute(c.version()),
                CUDA_ERROR_NOT_SUPPORTED);
      refuse_if(set, CUDA_ERROR_INVALID_VALUE);
      return pool_property(pool, which, value);
  }
}

// Where a pool of this type at this location has its memory.
PoolPlace read_place(Call& c, const CUmemLocation* location, CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED) {
  const bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  refuse_if(managed ? c.version() < 13000 : type != CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return {find_device(c, location->id).ordinal, managed};
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return {-1, managed};
    case CU_MEM_LOCATION_TYPE_NONE:
      refuse_if(!managed, CUDA_ERROR_INVALID_VALUE);
      return {-1, managed};
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

void set_pool(Call& c, const PoolPlace& place, Pool& pool) {
  refuse_if(pool.managed != place.managed || (!place.managed && pool.device != place.device), CUDA_ERROR_INVALID_VALUE);
  pools_of(c, place).current = &pool;
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuMemAllocAsync, Call& c, CUdeviceptr* out, std::size_t size, Stream& stream) {
  return allocate_from(c, out, size, *pools_of(c, {stream.device}).current, stream);
}

SOFTWARE_DRIVER_ROW(cuMemAllocFromPoolAsync, allocate_from)

SOFTWARE_DRIVER_CALL(cuMemFreeAsync, Call& c, CUdeviceptr address, Stream& stream) {
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

SOFTWARE_DRIVER_CALL(cuMemPoolCreate, Call& c, CUmemoryPool* out, const CUmemPoolProps* props) {
  // Sharing between processes is not modelled.
  refuse_if(props->handleTypes != CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
  const bool on_any_node = props->location.type == CU_MEM_LOCATION_TYPE_HOST && c.version() < 13000;
  refuse_if(on_any_node || props->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CUDA_ERROR_INVALID_VALUE);
  const bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  refuse_if(managed && c.version() >= 13010 && (props->maxSize != 0 || props->usage != 0), CUDA_ERROR_INVALID_VALUE);
  Pool& pool = add_pool(c, read_place(c, &props->location, props->allocType), props->location);
  pool.max_size = (props->maxSize + granularity - 1) / granularity * granularity;
  give(out, pool);
}

SOFTWARE_DRIVER_CALL(cuMemPoolDestroy, Call& c, Pool& pool) {
  Pools& pools = pools_of(c, {pool.device, pool.managed});
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

SOFTWARE_DRIVER_CALL(cuMemPoolTrimTo, Call&, Pool&, std::size_t) {}

SOFTWARE_DRIVER_CALL(cuMemPoolSetAttribute, Call& c, Pool& pool, CUmemPool_attribute which, void* value) {
  return pool_attribute(c, pool, which, value, true);
}

SOFTWARE_DRIVER_CALL(cuMemPoolGetAttribute, Call& c, Pool& pool, CUmemPool_attribute which, void* value) {
  return pool_attribute(c, pool, which, value, false);
}

SOFTWARE_DRIVER_CALL(cuMemPoolSetAccess, Call& c, Pool& pool, const CUmemAccessDesc* access, std::size_t count) {
  refuse_if(access == nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
  auto changed = pool.access;
  for (std::size_t i = 0; i < count; ++i) {
    changed[read_place(c, &access[i].location).device] = access[i].flags;
  }
  pool.access = std::move(changed);
}

SOFTWARE_DRIVER_CALL(cuMemPoolGetAccess, Call& c, CUmemAccess_flags* flags, Pool& pool, CUmemLocation* location) {
  const PoolPlace place = read_place(c, location);
  if (pool.managed || place.device == pool.device) {
    return give(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  const auto found = pool.access.find(place.device);
  give(flags, found == pool.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second);
}

SOFTWARE_DRIVER_CALL(cuDeviceGetDefaultMemPool, Call& c, CUmemoryPool* out, const Device& device) {
  give(out, *pools_of(c, {device.ordinal}).standard);
}

SOFTWARE_DRIVER_CALL(cuDeviceGetMemPool, Call& c, CUmemoryPool* out, const Device& device) {
  give(out, *pools_of(c, {device.ordinal}).current);
}

SOFTWARE_DRIVER_CALL(cuDeviceSetMemPool, Call& c, const Device& device, Pool& pool) {
  return set_pool(c, {device.ordinal}, pool);
}

SOFTWARE_DRIVER_CALL(cuMemGetDefaultMemPool, Call& c, CUmemoryPool* out, CUmemLocation* location,
                     CUmemAllocationType type) {
  give(out, *pools_of(c, read_place(c, location, type)).standard);
}

SOFTWARE_DRIVER_CALL(cuMemGetMemPool, Call& c, CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  give(out, *pools_of(c, read_place(c, location, type)).current);
}

SOFTWARE_DRIVER_CALL(cuMemSetMemPool, Call& c, CUmemLocation* location, CUmemAllocationType type, Pool& pool) {
  return set_pool(c, read_place(c, location, type), pool);
}
