// Device and page-locked host memory: getting, asking, freeing.
#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

// What can be freed so; anything else is noted.
const Allocation& find_freeable(Call& c, std::uint64_t address, CUmemorytype type) {
  const auto found = c.machine.allocations.find(address);
  if (found != c.machine.allocations.end() && found->second.type == type && !found->second.registered &&
      may_be_freed(found->second)) {
    return found->second;
  }
  const bool again = c.machine.freed.contains(address);
  c.note(again ? Misuse::double_destroy : Misuse::unknown_handle, address, "no memory that can be freed so");
  refuse(CUDA_ERROR_INVALID_VALUE);
}

void free_address(Call& c, std::uint64_t address, CUmemorytype type) {
  if (address == 0) {
    return;
  }
  // Freeing waits for the device, as on hardware. Another thread may have freed the memory meanwhile.
  wait_for_device(c, find_freeable(c, address, type).device);
  find_freeable(c, address, type);
  release(c.machine, address);
}

void allocate_page_locked(Call& c, void** out, std::size_t size, unsigned flags) {
  const CUdeviceptr address = allocate(c, {.device = c.current->device, .host = true}, size, nullptr, flags);
  give(out, reinterpret_cast<void*>(address));
}

const Allocation& find_page_locked(Call& c, void* pointer) {
  const Allocation* found = find_allocation(c.machine, reinterpret_cast<std::uint64_t>(pointer), 1);
  refuse_if(found == nullptr || found->type != CU_MEMORYTYPE_HOST, CUDA_ERROR_INVALID_VALUE);
  return *found;
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

std::uint64_t handle_types_of(const Allocation& allocation) {
  return allocation.mapped == nullptr ? CU_MEM_HANDLE_TYPE_NONE : allocation.mapped->properties.requestedHandleTypes;
}

std::uint64_t pool_of(const Allocation& allocation) { return allocation.pool == nullptr ? 0 : allocation.pool->handle; }

// What an attribute is of memory that has a pointer: a number of 4 or 8 bytes.
struct Answer {
  template <class T>
  Answer(T value) : size(sizeof value) {
    std::memcpy(&bits, &value, sizeof value);
  }
  Answer(bool truth) : Answer(truth ? 1 : 0) {}
  std::uint64_t bits = 0;
  std::size_t size;
};
using Ask = Answer (*)(Machine& machine, const Allocation& memory, CUdeviceptr pointer);

template <auto what>
Answer ask(Machine&, const Allocation& memory, CUdeviceptr) {
  return std::invoke(what, memory);
}
Answer ask_context(Machine& machine, const Allocation& memory, CUdeviceptr) { return context_of(machine, memory); }
Answer ask_pointer(Machine&, const Allocation&, CUdeviceptr pointer) { return pointer; }
Answer ask_host_pointer(Machine&, const Allocation& memory, CUdeviceptr pointer) {
  return memory.type == CU_MEMORYTYPE_HOST || memory.managed ? pointer : CUdeviceptr{0};
}

constexpr std::pair<CUpointer_attribute, Ask> pointer_attributes[] = {
    {CU_POINTER_ATTRIBUTE_CONTEXT, ask_context},
    {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ask<&Allocation::type>},
    {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ask_pointer},
    {CU_POINTER_ATTRIBUTE_HOST_POINTER, ask_host_pointer},
    {CU_POINTER_ATTRIBUTE_BUFFER_ID, ask<&Allocation::id>},
    {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ask<&Allocation::device>},
    {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ask<&Allocation::handle>},
    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, ask<&Allocation::size>},
    {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ask<pool_of>},
    {CU_POINTER_ATTRIBUTE_IS_MANAGED, ask<&Allocation::managed>},
    {CU_POINTER_ATTRIBUTE_MAPPED, ask<[](const Allocation&) { return true; }>},
    {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ask<is_plain>},
    {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ask<[](const Allocation&) { return false; }>},
    {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, ask<[](const Allocation&) { return false; }>},
    {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ask<handle_types_of>},
    {CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, ask<[](const Allocation&) { return false; }>},
    {CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL, ask<[](const Allocation&) { return -1; }>},
};

const Ask* find_pointer_attribute(CUpointer_attribute which, int version) {
  const int newest = version >= 13040   ? CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL
                     : version >= 12080 ? CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
                                        : CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
  return which > newest ? nullptr : value_of(pointer_attributes, which);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuMemGetInfo_v2, Call& c, std::size_t* free, std::size_t* total) {
  const Device& device = c.device();
  give(free, device.memory - used_memory(device));
  give(total, device.memory);
}

SOFTWARE_DRIVER_CALL(cuMemAlloc_v2, Call& c, CUdeviceptr* out, std::size_t size) {
  give(out, allocate(c, {c.current->device}, size));
}

SOFTWARE_DRIVER_CALL(cuMemAllocPitch_v2, Call& c, CUdeviceptr* out, std::size_t* pitch, std::size_t width,
                     std::size_t height, unsigned element_size) {
  const bool element_fits = element_size == 4 || element_size == 8 || element_size == 16;
  refuse_if(width == 0 || height == 0 || !element_fits, CUDA_ERROR_INVALID_VALUE);
  constexpr std::size_t alignment = 512;
  *pitch = (width + alignment - 1) / alignment * alignment;
  give(out, allocate(c, {c.current->device}, *pitch * height));
}

SOFTWARE_DRIVER_CALL(cuMemFree_v2, Call& c, CUdeviceptr address) {
  return free_address(c, address, CU_MEMORYTYPE_DEVICE);
}

SOFTWARE_DRIVER_CALL(cuMemGetAddressRange_v2, Call& c, CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  const Allocation& found = need(find_allocation(c.machine, address, 1), CUDA_ERROR_NOT_FOUND);
  give(base, found.handle);
  give(size, found.size);
}

SOFTWARE_DRIVER_ROW(cuMemAllocHost_v2, allocate_page_locked)
SOFTWARE_DRIVER_ROW(cuMemHostAlloc, allocate_page_locked)

SOFTWARE_DRIVER_CALL(cuMemFreeHost, Call& c, void* pointer) {
  return free_address(c, reinterpret_cast<std::uint64_t>(pointer), CU_MEMORYTYPE_HOST);
}

SOFTWARE_DRIVER_CALL(cuMemHostGetDevicePointer_v2, Call& c, CUdeviceptr* out, void* pointer) {
  find_page_locked(c, pointer);
  give(out, reinterpret_cast<CUdeviceptr>(pointer));
}

SOFTWARE_DRIVER_CALL(cuMemHostGetFlags, Call& c, unsigned* flags, void* pointer) {
  give(flags, find_page_locked(c, pointer).flags);
}

SOFTWARE_DRIVER_CALL(cuMemHostRegister_v2, Call& c, void* pointer, std::size_t size, unsigned flags) {
  Allocation made;
  made.storage.address = reinterpret_cast<std::uint64_t>(pointer);
  made.storage.host = static_cast<char*>(pointer);
  made.size = size;
  made.device = c.current->device;
  made.type = CU_MEMORYTYPE_HOST;
  made.registered = true;
  made.flags = flags;
  refuse_if(find_allocation(c.machine, made.storage.address, 1) != nullptr, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  add_allocation(c, std::move(made));
}

SOFTWARE_DRIVER_CALL(cuMemHostUnregister, Call& c, void* pointer) {
  const auto found = c.machine.allocations.find(reinterpret_cast<std::uint64_t>(pointer));
  refuse_if(found == c.machine.allocations.end() || !found->second.registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  wait_for_device(c, found->second.device);
  c.machine.allocations.erase(reinterpret_cast<std::uint64_t>(pointer));
}

SOFTWARE_DRIVER_CALL(cuPointerGetAttribute, Call& c, void* out, CUpointer_attribute which, CUdeviceptr pointer) {
  const Allocation& memory = need(find_allocation(c.machine, pointer, 1), CUDA_ERROR_INVALID_VALUE);
  const Answer answer =
      need(find_pointer_attribute(which, c.version()), CUDA_ERROR_NOT_SUPPORTED)(c.machine, memory, pointer);
  refuse_if(which == CU_POINTER_ATTRIBUTE_HOST_POINTER && answer.bits == 0, CUDA_ERROR_INVALID_VALUE);
  std::memcpy(out, &answer.bits, answer.size);
}

// Unlike the single query, an address that is not the driver's answers zeros and success.
SOFTWARE_DRIVER_CALL(cuPointerGetAttributes, Call& c, unsigned count, CUpointer_attribute* which, void** out,
                     CUdeviceptr pointer) {
  refuse_if(std::find(which, which + count, CUpointer_attribute{}) != which + count, CUDA_ERROR_INVALID_VALUE);
  const Allocation* found = find_allocation(c.machine, pointer, 1);
  for (unsigned i = 0; i < count; ++i) {
    const Ask* asked = find_pointer_attribute(which[i], c.version());
    Answer answer =
        asked == nullptr ? Answer(0) : (*asked)(c.machine, found == nullptr ? Allocation{} : *found, pointer);
    if (found == nullptr) {
      answer.bits = which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? Answer(-2).bits : 0;
    }
    if (out[i] != nullptr) {
      std::memcpy(out[i], &answer.bits, answer.size);
    }
  }
}
