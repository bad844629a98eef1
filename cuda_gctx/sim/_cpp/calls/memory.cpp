// Device and page-locked host memory: host memory with its bounds on record, so that copies really happen and a wrong
// address answers an error.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "calls/graphs.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {

namespace {

constexpr std::size_t alignment = 512;
constexpr std::size_t mapping_from = std::size_t{1} << 18;
constexpr std::size_t page = 4096;

}  // namespace

Storage::Storage(std::size_t size) {
  if (size >= mapping_from) {
    mapped_ = (size + page - 1) / page * page;
    data_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      mapped_ = 0;
      throw std::bad_alloc();
    }
    return;
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, rounded);
  if (data_ == nullptr) throw std::bad_alloc();
  // What a fresh allocation holds is not defined; a pattern shows a program that relies on it.
  std::memset(data_, 0xa5, rounded);
}

Storage::~Storage() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

Allocation* find_allocation(Machine& machine, std::uint64_t address, std::size_t size) {
  auto found = machine.allocations.upper_bound(address);
  if (found == machine.allocations.begin()) return nullptr;
  --found;
  const std::uint64_t offset = address - found->first;
  if (offset >= found->second.size || size > found->second.size - offset) return nullptr;
  return &found->second;
}

namespace {

// The same for every kind of memory that the driver gives out.
CUdeviceptr add(Call& c, Allocation made, Pool* pool) {
  c.machine.made(made);
  made.pool = pool;
  made.storage = Storage(made.size);
  made.handle = made.storage.address();
  if (!c.thread.stack.empty()) made.context_id = c.thread.stack.back().id;
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
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!has_room(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation made;
  made.size = size;
  made.device = device.ordinal;
  const CUdeviceptr address = add(c, std::move(made), pool);
  device.allocated += size;
  return give(out, address);
}

CUresult allocate_managed(Call& c, int device, std::size_t size, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation made;
  made.size = size;
  made.device = device;
  made.managed = true;
  return give(out, add(c, std::move(made), pool));
}

CUresult allocate_host(Call& c, int device, std::size_t size, unsigned flags, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation made;
  made.size = size;
  made.device = device;
  made.type = CU_MEMORYTYPE_HOST;
  made.flags = flags;
  return give(out, add(c, std::move(made), pool));
}

CUresult place_variable(Call& c, const Module& module, const Variable& variable, std::uint64_t& place) {
  Device& device = c.machine.devices[static_cast<std::size_t>(module.device)];
  if (!has_room(device, variable.size)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation made;
  made.size = variable.size;
  made.device = module.device;
  made.module = &module;
  made.hidden = true;
  place = add(c, std::move(made), nullptr);
  device.allocated += variable.size;
  auto* bytes = reinterpret_cast<char*>(place);
  if (variable.size < mapping_from) std::fill_n(bytes, variable.size, '\0');  // mapped memory is zero already
  std::copy(variable.initial.begin(), variable.initial.end(), bytes);
  return CUDA_SUCCESS;
}

bool may_be_freed(const Allocation& allocation) {
  // Memory of a graph: only while it is in use, and only what the graph does not free itself.
  return !allocation.freeing && allocation.live && !allocation.freed_in_graph && allocation.module == nullptr;
}

void release(Machine& machine, std::uint64_t address) {
  const auto found = machine.allocations.find(address);
  if (found == machine.allocations.end()) return;
  Allocation& allocation = found->second;
  if (allocation.graphs > 0) return free_graph_memory(machine, allocation);
  if (allocation.type == CU_MEMORYTYPE_DEVICE && !allocation.managed) {
    machine.devices[static_cast<std::size_t>(allocation.device)].allocated -= allocation.size;
  }
  if (allocation.pool != nullptr) allocation.pool->used -= allocation.size;
  machine.freed.insert(address);
  machine.allocations.erase(found);
}

namespace {

CUresult current_device(Call& c, Device*& device) {
  CUresult result = CUDA_SUCCESS;
  const Context* context = current_context(c, result);
  if (context != nullptr) device = &c.machine.devices[static_cast<std::size_t>(context->device)];
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
  if (address == 0) return CUDA_SUCCESS;
  const Allocation* found = find_freeable(c, address, type);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Freeing waits for the device, as on hardware. Another thread may have freed the memory meanwhile.
  if (const CUresult result = wait_for_device(c, found->device); result != CUDA_SUCCESS) return result;
  if (find_freeable(c, address, type) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  release(c.machine, address);
  return CUDA_SUCCESS;
}

CUresult allocate_page_locked(Call& c, const Device& device, void** out, std::size_t size, unsigned flags) {
  CUdeviceptr address = 0;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = allocate_host(c, device.ordinal, size, flags, nullptr, &address);
  return result == CUDA_SUCCESS ? give(out, reinterpret_cast<void*>(address)) : result;
}

std::uint64_t context_of(Machine& machine, const Allocation& allocation) {
  std::uint64_t handle = 0;
  machine.contexts.each([&](const Context& context) {
    if (context.id == allocation.context_id) handle = context.handle;
  });
  return handle;
}

template <class T>
CUresult store(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(Call& c, void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* found = find_allocation(c.machine, pointer, 1);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return store(out, context_of(c.machine, *found));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store(out, static_cast<unsigned>(found->type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return store(out, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found->type != CU_MEMORYTYPE_HOST && !found->managed) return CUDA_ERROR_INVALID_VALUE;
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
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *free = device.memory - used_memory(device);
    *total = device.memory;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* out, std::size_t size) {
  return with_device<Fn::cuMemAlloc_v2>([&](Call& c, Device& device) {
    if (disturbs_capture(c)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return allocate(c, device, size, nullptr, out);
  });
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch, std::size_t width, std::size_t height,
                                    unsigned element_size) {
  return with_device<Fn::cuMemAllocPitch_v2>([&](Call& c, Device& device) {
    const bool element_fits = element_size == 4 || element_size == 8 || element_size == 16;
    if (pitch == nullptr || width == 0 || height == 0 || !element_fits) return CUDA_ERROR_INVALID_VALUE;
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
    if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = found->handle;
    if (size != nullptr) *size = found->size;
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
    if (flags != 0 || found == nullptr || found->type != CU_MEMORYTYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
    return give(out, static_cast<CUdeviceptr>(address));
  });
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return call<Fn::cuMemHostGetFlags>([&](Call& c) {
    const Allocation* found = find_allocation(c.machine, reinterpret_cast<std::uint64_t>(pointer), 1);
    if (found == nullptr || found->type != CU_MEMORYTYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
    return give(flags, found->flags);
  });
}

CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, std::size_t size, unsigned flags) {
  return with_device<Fn::cuMemHostRegister_v2>([&](Call& c, Device& device) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    constexpr unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                               CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (pointer == nullptr || size == 0 || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (find_allocation(c.machine, address, 1) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
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
    if (const CUresult result = wait_for_device(c, found->second.device); result != CUDA_SUCCESS) return result;
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
    if (which == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      if (pointer_attribute(c, out[i], which[i], pointer) == CUDA_SUCCESS || out[i] == nullptr) continue;
      std::memset(out[i], 0, attribute_size(which[i]));
      if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) store(out[i], -2);
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
