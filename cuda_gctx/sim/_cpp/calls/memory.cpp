// Device and page-locked host memory: getting, asking, freeing.
#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {
namespace {

CUresult current_device(Call& c, Device*& device) {
  CUresult result = CUDA_SUCCESS;
  const Context* context = current_context(c, result);
  if (context != nullptr) {
    device = &c.machine.devices[static_cast<std::size_t>(context->device)];
  }
  return result;
}

template <Fn function, class Body>
CUresult with_device(Body&& body) noexcept {
  return call<function>([&](Call& c) {
    Device* device = nullptr;
    const CUresult result = current_device(c, device);
    return device == nullptr ? result : body(c, *device);
  });
}

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

CUresult free_address(Call& c, std::uint64_t address, CUmemorytype type) {
  if (address == 0) {
    return CUDA_SUCCESS;
  }
  const Allocation* found = find_freeable(c, address, type);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Freeing waits for the device, as on hardware. Another thread may have freed the memory meanwhile.
  if (const CUresult result = wait_for_device(c, found->device); result != CUDA_SUCCESS) {
    return result;
  }
  if (find_freeable(c, address, type) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(c.machine, address);
  return CUDA_SUCCESS;
}

CUresult allocate_page_locked(Call& c, const Device& device, void** out, std::size_t size, unsigned flags) {
  CUdeviceptr address = 0;
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = allocate_host(c, device.ordinal, size, flags, nullptr, &address);
  return result == CUDA_SUCCESS ? give(out, reinterpret_cast<void*>(address)) : result;
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
CUresult store(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(Call& c, void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Allocation* found = find_allocation(c.machine, pointer, 1);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return store(out, context_of(c.machine, *found));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store(out, static_cast<unsigned>(found->type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return store(out, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found->type != CU_MEMORYTYPE_HOST && !found->managed) {
        return CUDA_ERROR_INVALID_VALUE;
      }
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
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return store(out, 0u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return store(out, std::uint64_t{0});
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
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

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return with_device<Fn::cuMemGetInfo_v2>([&](Call&, Device& device) {
    if (free == nullptr || total == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *free = device.memory - used_memory(device);
    *total = device.memory;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* out, std::size_t size) {
  return with_device<Fn::cuMemAlloc_v2>([&](Call& c, Device& device) {
    if (disturbs_capture(c)) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return allocate(c, device, size, nullptr, out);
  });
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch, std::size_t width, std::size_t height,
                                    unsigned element_size) {
  return with_device<Fn::cuMemAllocPitch_v2>([&](Call& c, Device& device) {
    const bool element_fits = element_size == 4 || element_size == 8 || element_size == 16;
    if (pitch == nullptr || width == 0 || height == 0 || !element_fits) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr std::size_t alignment = 512;
    *pitch = (width + alignment - 1) / alignment * alignment;
    return allocate(c, device, *pitch * height, nullptr, out);
  });
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  return call<Fn::cuMemFree_v2>([&](Call& c) { return free_address(c, address, CU_MEMORYTYPE_DEVICE); });
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  return call<Fn::cuMemGetAddressRange_v2>([&](Call& c) {
    const Allocation* found = find_allocation(c.machine, address, 1);
    if (found == nullptr) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
      *base = found->handle;
    }
    if (size != nullptr) {
      *size = found->size;
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAllocHost_v2(void** out, std::size_t size) {
  return with_device<Fn::cuMemAllocHost_v2>(
      [&](Call& c, Device& device) { return allocate_page_locked(c, device, out, size, 0); });
}

CUresult CUDAAPI cuMemHostAlloc(void** out, std::size_t size, unsigned flags) {
  constexpr unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  return with_device<Fn::cuMemHostAlloc>([&](Call& c, Device& device) {
    return (flags & ~known) != 0 ? CUDA_ERROR_INVALID_VALUE : allocate_page_locked(c, device, out, size, flags);
  });
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
  return call<Fn::cuMemFreeHost>(
      [&](Call& c) { return free_address(c, reinterpret_cast<std::uint64_t>(pointer), CU_MEMORYTYPE_HOST); });
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  return call<Fn::cuMemHostGetDevicePointer_v2>([&](Call& c) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const Allocation* found = find_allocation(c.machine, address, 1);
    if (flags != 0 || found == nullptr || found->type != CU_MEMORYTYPE_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return give(out, static_cast<CUdeviceptr>(address));
  });
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return call<Fn::cuMemHostGetFlags>([&](Call& c) {
    const Allocation* found = find_allocation(c.machine, reinterpret_cast<std::uint64_t>(pointer), 1);
    if (found == nullptr || found->type != CU_MEMORYTYPE_HOST) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return give(flags, found->flags);
  });
}

CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, std::size_t size, unsigned flags) {
  return with_device<Fn::cuMemHostRegister_v2>([&](Call& c, Device& device) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    constexpr unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                               CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (pointer == nullptr || size == 0 || (flags & ~known) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (find_allocation(c.machine, address, 1) != nullptr) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    Allocation made;
    c.machine.made(made);
    made.handle = address;
    made.size = size;
    made.device = device.ordinal;
    made.type = CU_MEMORYTYPE_HOST;
    made.registered = true;
    made.flags = flags;
    c.machine.allocations.emplace(address, std::move(made));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
  return call<Fn::cuMemHostUnregister>([&](Call& c) {
    const auto found = c.machine.allocations.find(reinterpret_cast<std::uint64_t>(pointer));
    if (found == c.machine.allocations.end() || !found->second.registered) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    if (const CUresult result = wait_for_device(c, found->second.device); result != CUDA_SUCCESS) {
      return result;
    }
    c.machine.allocations.erase(reinterpret_cast<std::uint64_t>(pointer));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  return call<Fn::cuPointerGetAttribute>([&](Call& c) { return pointer_attribute(c, out, which, pointer); });
}

// Unlike the single query, an address that is not the driver's answers zeros and success.
CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** out, CUdeviceptr pointer) {
  return call<Fn::cuPointerGetAttributes>([&](Call& c) {
    if (which == nullptr || out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
      if (pointer_attribute(c, out[i], which[i], pointer) == CUDA_SUCCESS || out[i] == nullptr) {
        continue;
      }
      std::memset(out[i], 0, attribute_size(which[i]));
      if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        store(out[i], -2);
      }
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
