// Device and page-locked host memory: getting, asking, freeing.
#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {
namespace {

// What can be freed so; null, and noted, otherwise.
const Allocation* find_freeable(Call& c, std::uint64_t address, CUmemorytype type) {
  const auto found = c.machine.allocations.find(address);
  if (found != c.machine.allocations.end() && found->second.type == type && !found->second.registered &&
      may_be_freed(found->second)) {
    return &found->second;
  }
  const bool again = c.machine.freed.contains(address);
  c.note(again ? Misuse::double_destroy : Misuse::unknown_handle, address, "no memory that can be freed so");
  return nullptr;
}

void free_address(Call& c, std::uint64_t address, CUmemorytype type) {
  if (address == 0) {
    return;
  }
  const Allocation* found = find_freeable(c, address, type);
  refuse_if(found == nullptr, CUDA_ERROR_INVALID_VALUE);
  // Freeing waits for the device, as on hardware. Another thread may have freed the memory meanwhile.
  wait_for_device(c, found->device);
  refuse_if(find_freeable(c, address, type) == nullptr, CUDA_ERROR_INVALID_VALUE);
  release(c.machine, address);
}

void allocate_page_locked(Call& c, const Device& device, void** out, std::size_t size, unsigned flags) {
  CUdeviceptr address = 0;
  allocate_host(c, device.ordinal, size, flags, nullptr, &address);
  give(out, reinterpret_cast<void*>(address));
}

std::uint64_t context_of(Machine& machine, const Allocation& allocation) {
  std::uint64_t handle = 0;
  machine.contexts.each([&](const Context& context) {
    if (context.id == allocation.context_id) {
      handle = context.handle;
    }
  });
  return handle;
}

template <class T>
void store(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
}

CUmemAllocationHandleType handle_types_of(const Allocation& allocation) {
  return allocation.mapped == nullptr ? CU_MEM_HANDLE_TYPE_NONE : allocation.mapped->properties.requestedHandleTypes;
}

void pointer_attribute(Call& c, void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  const Allocation* found = find_allocation(c.machine, pointer, 1);
  refuse_if(found == nullptr, CUDA_ERROR_INVALID_VALUE);
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return store(out, context_of(c.machine, *found));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store(out, static_cast<unsigned>(found->type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return store(out, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      refuse_if(found->type != CU_MEMORYTYPE_HOST && !found->managed, CUDA_ERROR_INVALID_VALUE);
      return store(out, pointer);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return store(out, static_cast<unsigned long long>(found->id));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return store(out, found->device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return store(out, found->handle);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return store(out, found->size);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return store(out, found->pool == nullptr ? std::uint64_t{0} : found->pool->handle);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return store(out, found->managed ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return store(out, 1u);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return store(out, is_plain(*found) ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return store(out, 0u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return store(out, std::uint64_t{handle_types_of(*found)});
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

std::size_t attribute_size(CUpointer_attribute which) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return 8;
    default:
      return 4;
  }
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuMemGetInfo_v2, Call& c, std::size_t* free, std::size_t* total) {
  const Device& device = c.device();
  give(free, device.memory - used_memory(device));
  give(total, device.memory);
}

GCTX_SIM_CALL(cuMemAlloc_v2, Call& c, CUdeviceptr* out, std::size_t size) {
  return allocate(c, c.device(), size, nullptr, out);
}

GCTX_SIM_CALL(cuMemAllocPitch_v2, Call& c, CUdeviceptr* out, std::size_t* pitch, std::size_t width, std::size_t height,
              unsigned element_size) {
  const bool element_fits = element_size == 4 || element_size == 8 || element_size == 16;
  refuse_if(width == 0 || height == 0 || !element_fits, CUDA_ERROR_INVALID_VALUE);
  constexpr std::size_t alignment = 512;
  *pitch = (width + alignment - 1) / alignment * alignment;
  return allocate(c, c.device(), *pitch * height, nullptr, out);
}

GCTX_SIM_CALL(cuMemFree_v2, Call& c, CUdeviceptr address) { return free_address(c, address, CU_MEMORYTYPE_DEVICE); }

GCTX_SIM_CALL(cuMemGetAddressRange_v2, Call& c, CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  const Allocation* found = find_allocation(c.machine, address, 1);
  refuse_if(found == nullptr, CUDA_ERROR_NOT_FOUND);
  give(base, found->handle);
  give(size, found->size);
}

GCTX_SIM_CALL(cuMemAllocHost_v2, Call& c, void** out, std::size_t size) {
  return allocate_page_locked(c, c.device(), out, size, 0);
}

GCTX_SIM_CALL(cuMemHostAlloc, Call& c, void** out, std::size_t size, unsigned flags) {
  return allocate_page_locked(c, c.device(), out, size, flags);
}

GCTX_SIM_CALL(cuMemFreeHost, Call& c, void* pointer) {
  return free_address(c, reinterpret_cast<std::uint64_t>(pointer), CU_MEMORYTYPE_HOST);
}

GCTX_SIM_CALL(cuMemHostGetDevicePointer_v2, Call& c, CUdeviceptr* out, void* pointer, unsigned) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const Allocation* found = find_allocation(c.machine, address, 1);
  refuse_if(found == nullptr || found->type != CU_MEMORYTYPE_HOST, CUDA_ERROR_INVALID_VALUE);
  give(out, static_cast<CUdeviceptr>(address));
}

GCTX_SIM_CALL(cuMemHostGetFlags, Call& c, unsigned* flags, void* pointer) {
  const Allocation* found = find_allocation(c.machine, reinterpret_cast<std::uint64_t>(pointer), 1);
  refuse_if(found == nullptr || found->type != CU_MEMORYTYPE_HOST, CUDA_ERROR_INVALID_VALUE);
  give(flags, found->flags);
}

GCTX_SIM_CALL(cuMemHostRegister_v2, Call& c, void* pointer, std::size_t size, unsigned flags) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  refuse_if(find_allocation(c.machine, address, 1) != nullptr, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  Allocation made;
  c.made(made);
  made.handle = made.storage.address = address;
  made.storage.host = static_cast<char*>(pointer);
  made.size = size;
  made.device = c.current->device;
  made.type = CU_MEMORYTYPE_HOST;
  made.registered = true;
  made.flags = flags;
  c.machine.allocations.emplace(address, std::move(made));
  c.machine.unknown.clear(address, size);
}

GCTX_SIM_CALL(cuMemHostUnregister, Call& c, void* pointer) {
  const auto found = c.machine.allocations.find(reinterpret_cast<std::uint64_t>(pointer));
  refuse_if(found == c.machine.allocations.end() || !found->second.registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  wait_for_device(c, found->second.device);
  c.machine.allocations.erase(reinterpret_cast<std::uint64_t>(pointer));
}

GCTX_SIM_CALL(cuPointerGetAttribute, Call& c, void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  return pointer_attribute(c, out, which, pointer);
}

// Unlike the single query, an address that is not the driver's answers zeros and success.
GCTX_SIM_CALL(cuPointerGetAttributes, Call& c, unsigned count, CUpointer_attribute* which, void** out,
              CUdeviceptr pointer) {
  refuse_if(std::find(which, which + count, CUpointer_attribute{}) != which + count, CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < count; ++i) {
    if (out[i] == nullptr) {
      continue;
    }
    try {
      pointer_attribute(c, out[i], which[i], pointer);
      continue;
    } catch (const Refused&) {
    }
    std::memset(out[i], 0, attribute_size(which[i]));
    if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      store(out[i], -2);
    }
  }
}
