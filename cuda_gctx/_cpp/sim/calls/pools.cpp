// Memory pools, and allocation and release in stream order.
#include "sim/calls/graphs.hpp"

namespace gctx::sim {

Pool& default_pool(Machine& machine, Device& device) {
  if (device.default_pool == nullptr) {
    auto pool = std::make_unique<Pool>();
    machine.made(*pool);
    pool->hidden = true;
    pool->device = device.ordinal;
    device.default_pool = &machine.pools.add(std::move(pool));
    device.current_pool = device.default_pool;
  }
  return *device.default_pool;
}

namespace {

Pool* find_pool(Call& c, CUmemoryPool handle, CUresult& result) {
  if (Pool* pool = c.machine.pools.find(handle)) return pool;
  if (c.machine.pools.is_stale(handle)) c.note(Misuse::use_after_destroy, handle, "the memory pool is destroyed");
  result = CUDA_ERROR_INVALID_VALUE;
  return nullptr;
}

// A node that allocates memory of the graph, whichever pool is named.
CUresult capture_allocation(Call& c, Stream& stream, std::size_t size, int device, CUdeviceptr* out) {
  if (!stream.capture->is_active()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  AllocNode made;
  made.parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  made.parameters.bytesize = size;
  if (const CUresult result = make_graph_memory(c, made); result != CUDA_SUCCESS) return result;
  *out = made.parameters.dptr;
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  node.parameters = std::move(made);
  return enqueue(c, stream, std::move(node));
}

CUresult capture_free(Call& c, Stream& stream, CUdeviceptr address) {
  if (!stream.capture->is_active()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  parameters.free.dptr = address;
  GraphNode node;
  const CUresult result = plan_node(c, stream.capture->graph(), parameters, node);
  return result == CUDA_SUCCESS ? enqueue(c, stream, std::move(node)) : result;
}

CUresult allocate_on(Call& c, Stream& stream, std::size_t size, Pool& pool, CUdeviceptr* out) {
  if (stream.capture) return capture_allocation(c, stream, size, pool.device, out);
  // Recorded: an allocation of 0 bytes succeeds here, without an address.
  if (size == 0) return give(out, CUdeviceptr{0});
  Device& device = c.machine.devices[static_cast<std::size_t>(pool.device)];
  if (const CUresult result = allocate(c, device, size, &pool, out); result != CUDA_SUCCESS) return result;
  GraphNode node;
  submit(c, stream, node);
  return CUDA_SUCCESS;
}

CUresult pool_attribute(Pool& pool, CUmemPool_attribute which, void* value, bool set) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
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
      return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: {
      auto& number = *static_cast<cuuint64_t*>(value);
      if (set) {
        pool.values[which] = number;
      } else {
        number = pool.values[which];
      }
      return CUDA_SUCCESS;
    }
    // The simulated pool keeps nothing in reserve: what is reserved is what is used.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      if (set) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<cuuint64_t*>(value) = pool.used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (set && *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      if (set) {
        pool.used_high = pool.used;
      } else {
        *static_cast<cuuint64_t*>(value) = pool.used_high;
      }
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

Device* device_of_location(Call& c, const CUmemLocation* location, CUmemAllocationType type, CUresult& result) {
  if (location == nullptr) {
    result = CUDA_ERROR_INVALID_VALUE;
    return nullptr;
  }
  // Host and managed pools are not modelled.
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    result = CUDA_ERROR_NOT_SUPPORTED;
    return nullptr;
  }
  return find_device(c, location->id, result);
}

CUresult tell_pool(Call& c, Device& device, bool current, CUmemoryPool* out) {
  Pool& standard = default_pool(c.machine, device);
  return give(out, as_handle<CUmemoryPool>(current ? *device.current_pool : standard));
}

CUresult set_pool(Call& c, Device& device, CUmemoryPool handle) {
  CUresult result = CUDA_SUCCESS;
  Pool* pool = find_pool(c, handle, result);
  if (pool == nullptr) return result;
  if (pool->device != device.ordinal) return CUDA_ERROR_INVALID_VALUE;
  default_pool(c.machine, device);
  device.current_pool = pool;
  return CUDA_SUCCESS;
}

template <Fn function, class Body>
CUresult with_device(CUdevice ordinal, Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Device* device = find_device(c, ordinal, result);
    return device == nullptr ? result : body(c, *device);
  });
}

template <Fn function, class Body>
CUresult with_location(const CUmemLocation* location, CUmemAllocationType type, Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Device* device = device_of_location(c, location, type, result);
    return device == nullptr ? result : body(c, *device);
  });
}

template <Fn function, class Body>
CUresult with_pool(CUmemoryPool handle, Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Pool* pool = find_pool(c, handle, result);
    return pool == nullptr ? result : body(c, *pool);
  });
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* out, std::size_t size, CUstream handle) {
  return call<Fn::cuMemAllocAsync>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, handle, result);
    if (stream == nullptr) return result;
    Device& device = c.machine.devices[static_cast<std::size_t>(stream->device)];
    default_pool(c.machine, device);
    return allocate_on(c, *stream, size, *device.current_pool, out);
  });
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t size, CUmemoryPool handle, CUstream where) {
  return with_pool<Fn::cuMemAllocFromPoolAsync>(handle, [&](Call& c, Pool& pool) {
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, where, result);
    return stream == nullptr ? result : allocate_on(c, *stream, size, pool, out);
  });
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return call<Fn::cuMemFreeAsync>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, handle, result);
    if (stream == nullptr) return result;
    if (address == 0) return CUDA_SUCCESS;  // what an allocation of no bytes gave. Assumed
    if (stream->capture) return capture_free(c, *stream, address);
    const auto found = c.machine.allocations.find(address);
    if (found == c.machine.allocations.end() || found->second.type != CU_MEMORYTYPE_DEVICE ||
        !may_be_freed(found->second)) {
      const bool again = c.machine.freed.contains(address) || found != c.machine.allocations.end();
      c.note(again ? Misuse::double_destroy : Misuse::unknown_handle, address, "no device memory that can be freed");
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second.freeing = true;
    GraphNode node;
    node.effect = [&machine = c.machine, address] { release(machine, address); };
    submit(c, *stream, node);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  return call<Fn::cuMemPoolCreate>([&](Call& c) {
    if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // Sharing between processes is not modelled.
    if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_SUCCESS;
    const Device* device = device_of_location(c, &props->location, props->allocType, result);
    if (device == nullptr) return result;
    auto pool = std::make_unique<Pool>();
    c.machine.made(*pool);
    pool->device = device->ordinal;
    return give(out, as_handle<CUmemoryPool>(c.machine.pools.add(std::move(pool))));
  });
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  return with_pool<Fn::cuMemPoolDestroy>(handle, [&](Call& c, Pool& pool) {
    Device& device = c.machine.devices[static_cast<std::size_t>(pool.device)];
    if (&pool == device.default_pool) return CUDA_ERROR_INVALID_VALUE;
    if (device.current_pool == &pool) device.current_pool = device.default_pool;
    for (auto& [address, allocation] : c.machine.allocations) {
      if (allocation.pool == &pool) allocation.pool = nullptr;
    }
    c.machine.pools.remove(pool);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
  return with_pool<Fn::cuMemPoolTrimTo>(handle, [&](Call&, Pool&) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_pool<Fn::cuMemPoolSetAttribute>(
      handle, [&](Call&, Pool& pool) { return pool_attribute(pool, which, value, true); });
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_pool<Fn::cuMemPoolGetAttribute>(
      handle, [&](Call&, Pool& pool) { return pool_attribute(pool, which, value, false); });
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, std::size_t count) {
  return with_pool<Fn::cuMemPoolSetAccess>(handle, [&](Call& c, Pool& pool) {
    if (access == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      CUresult result = CUDA_SUCCESS;
      if (device_of_location(c, &access[i].location, CU_MEM_ALLOCATION_TYPE_PINNED, result) == nullptr) return result;
    }
    for (std::size_t i = 0; i < count; ++i) pool.access[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return with_pool<Fn::cuMemPoolGetAccess>(handle, [&](Call& c, Pool& pool) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = device_of_location(c, location, CU_MEM_ALLOCATION_TYPE_PINNED, result);
    if (device == nullptr) return result;
    if (device->ordinal == pool.device) return give(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const auto found = pool.access.find(device->ordinal);
    return give(flags, found == pool.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second);
  });
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice ordinal) {
  return with_device<Fn::cuDeviceGetDefaultMemPool>(
      ordinal, [&](Call& c, Device& device) { return tell_pool(c, device, false, out); });
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* out, CUdevice ordinal) {
  return with_device<Fn::cuDeviceGetMemPool>(ordinal,
                                             [&](Call& c, Device& device) { return tell_pool(c, device, true, out); });
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  return with_device<Fn::cuDeviceSetMemPool>(ordinal,
                                             [&](Call& c, Device& device) { return set_pool(c, device, pool); });
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_location<Fn::cuMemGetDefaultMemPool>(
      location, type, [&](Call& c, Device& device) { return tell_pool(c, device, false, out); });
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return with_location<Fn::cuMemGetMemPool>(location, type,
                                            [&](Call& c, Device& device) { return tell_pool(c, device, true, out); });
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return with_location<Fn::cuMemSetMemPool>(location, type,
                                            [&](Call& c, Device& device) { return set_pool(c, device, pool); });
}

}  // extern "C"
