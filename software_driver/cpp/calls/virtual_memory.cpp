// Virtual memory: allocations of a device apart from the addresses that they are mapped to, also in other processes.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

// What follows the bytes of memory that other processes can import, in its file.
struct Label {
  std::uint64_t magic = 0x67637478'766d6d31;
  std::uint64_t size = 0;
  CUmemAllocationProp properties{};
};

bool is_multiple(std::uint64_t value) { return value % granularity == 0; }

void check(Call& c, const CUmemAllocationProp* properties) {
  refuse_if(properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || properties->win32HandleMetaData != nullptr,
            CUDA_ERROR_INVALID_VALUE);
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    // Memory of the host without addresses for the host is what cuMemHostAlloc is for.
    const bool known = (properties->location.type == CU_MEM_LOCATION_TYPE_HOST && c.version() >= 13000) ||
                       properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    refuse_if(known && properties->requestedHandleTypes == 0, CUDA_ERROR_NOT_SUPPORTED);
    refuse(CUDA_ERROR_INVALID_VALUE);
  }
  find_device(c, properties->location.id);
  // Descriptors are the one kind that Linux without a fabric has.
  constexpr unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  refuse_if((properties->requestedHandleTypes & ~known) != 0, CUDA_ERROR_NOT_SUPPORTED);
}

void add_handle(Call& c, const Label& label, Storage storage, bool imported, CUmemGenericAllocationHandle* out) {
  MemoryHandle& made = c.add(c.machine.memory_handles);
  made.properties = label.properties;
  made.size = label.size;
  made.storage = std::move(storage);
  made.imported = imported;
  give(out, made);
}

// The memory goes when nothing refers to it and it is mapped nowhere.
void drop_if_unused(Machine& machine, const MemoryHandle& handle) {
  if (handle.references > 0 || handle.mappings > 0) {
    return;
  }
  if (!handle.imported) {
    machine.device(handle.properties.location.id).allocated -= handle.size;
  }
  machine.memory_handles.remove(handle);
}

// The reservation that holds all of the range.
const Reservation* find_reservation(const Machine& machine, std::uint64_t address, std::uint64_t size) {
  const auto next = machine.reservations.upper_bound(address);
  if (next == machine.reservations.begin()) {
    return nullptr;
  }
  const Reservation& range = std::prev(next)->second->range;
  return range.contains(address) && size <= range.address() + range.size() - address ? &range : nullptr;
}

// The mappings that make up the range, without a gap and without a part of one; none where it is not so.
std::vector<Allocation*> mappings_of(Machine& machine, std::uint64_t address, std::uint64_t size) {
  std::vector<Allocation*> found;
  const std::uint64_t end = address + size;
  while (address < end) {
    const auto at = machine.allocations.find(address);
    if (at == machine.allocations.end() || at->second.mapped == nullptr || at->second.size > end - address) {
      return {};
    }
    found.push_back(&at->second);
    address += at->second.size;
  }
  return found;
}

std::vector<Allocation*> need_mappings_of(Call& c, std::uint64_t address, std::uint64_t size) {
  std::vector<Allocation*> found = mappings_of(c.machine, address, size);
  refuse_if(found.empty(), CUDA_ERROR_INVALID_VALUE);
  return found;
}

const Allocation& need_mapping_at(Call& c, std::uint64_t address) {
  const Allocation* found = find_allocation(c.machine, address, 1);
  refuse_if(found == nullptr || found->mapped == nullptr, CUDA_ERROR_INVALID_VALUE);
  return *found;
}

// Whether something is mapped to a part of a range.
bool is_mapped(Machine& machine, std::uint64_t address, std::uint64_t size) {
  const auto next = machine.allocations.lower_bound(address);
  return find_allocation(machine, address, 1) != nullptr ||
         (next != machine.allocations.end() && next->first < address + size);
}

}  // namespace

MemoryHandle& find_memory(Call& c, CUmemGenericAllocationHandle handle) {
  constexpr const char* gone = "the memory handle is released";
  MemoryHandle& found = find_in(c, c.machine.memory_handles, handle, CUDA_ERROR_INVALID_VALUE, gone);
  if (found.references == 0) {
    c.note(Misuse::use_after_destroy, handle, gone);
    refuse(CUDA_ERROR_INVALID_VALUE);
  }
  return found;
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuMemGetAllocationGranularity, Call& c, std::size_t* out, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
  // Recorded: what properties of no type would be answers as well.
  if (properties->type != CU_MEM_ALLOCATION_TYPE_INVALID) {
    check(c, properties);
  }
  give(out, std::size_t{granularity});
}

SOFTWARE_DRIVER_CALL(cuMemCreate, Call& c, CUmemGenericAllocationHandle* out, std::size_t size,
                     const CUmemAllocationProp* properties) {
  refuse_if(!is_multiple(size), CUDA_ERROR_INVALID_VALUE);
  check(c, properties);
  Device& device = c.machine.device(properties->location.id);
  refuse_if(!has_room(device, size), CUDA_ERROR_OUT_OF_MEMORY);
  Label label;
  label.size = size;
  label.properties = *properties;
  label.properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;  // a hint, as documented
  Storage storage;
  if (properties->requestedHandleTypes == 0) {
    storage = device.take(size);
  } else {
    storage.file = std::make_shared<File>(size + page_bytes);
    storage.file->write(size, &label, sizeof label);
    std::erase_if(device.shareable, [](const auto& file) { return file.expired(); });
    device.shareable.push_back(storage.file);
  }
  device.allocated += size;
  return add_handle(c, label, std::move(storage), false, out);
}

SOFTWARE_DRIVER_CALL(cuMemRelease, Call& c, MemoryHandle& memory) {
  --memory.references;
  drop_if_unused(c.machine, memory);
}

SOFTWARE_DRIVER_CALL(cuMemAddressReserve, Call& c, CUdeviceptr* out, std::size_t size, std::size_t alignment,
                     CUdeviceptr hint, unsigned long long) {
  refuse_if(size % page_bytes != 0 || hint % page_bytes != 0 || (alignment & (alignment - 1)) != 0,
            CUDA_ERROR_INVALID_VALUE);
  constexpr std::size_t most = std::size_t{1} << 46;
  refuse_if(size > most || alignment > most, CUDA_ERROR_OUT_OF_MEMORY);
  auto made = std::make_unique<AddressRange>(size, std::max<std::uint64_t>(alignment, granularity), hint);
  c.made(*made);
  made->handle = made->range.address();
  const CUdeviceptr address = made->handle;
  c.machine.reservations.emplace(address, std::move(made));
  give(out, address);
}

SOFTWARE_DRIVER_CALL(cuMemAddressFree, Call& c, CUdeviceptr address, std::size_t size) {
  const auto found = c.machine.reservations.find(address);
  refuse_if(found == c.machine.reservations.end() || found->second->range.size() != size ||
                is_mapped(c.machine, address, size),
            CUDA_ERROR_INVALID_VALUE);
  c.machine.reservations.erase(found);
}

SOFTWARE_DRIVER_CALL(cuMemMap, Call& c, CUdeviceptr address, std::size_t size, std::size_t, MemoryHandle& memory) {
  const Reservation* range = find_reservation(c.machine, address, size);
  refuse_if(!is_multiple(size) || !is_multiple(address) || range == nullptr || size > memory.size ||
                is_mapped(c.machine, address, size),
            CUDA_ERROR_INVALID_VALUE);
  range->map(address, *memory.storage.file, memory.storage.offset, size);
  Allocation made;
  made.size = size;
  made.device = memory.properties.location.id;
  made.mapped = &memory;
  made.storage = {address, range->host(address), memory.storage.file, memory.storage.offset, memory.storage.owner};
  ++memory.mappings;
  add_allocation(c, std::move(made));
}

SOFTWARE_DRIVER_CALL(cuMemUnmap, Call& c, CUdeviceptr address, std::size_t size) {
  wait_for_device(c, need_mappings_of(c, address, size).front()->device);
  // Looked up again: another thread may have unmapped them meanwhile.
  for (const Allocation* mapping : mappings_of(c.machine, address, size)) {
    MemoryHandle& handle = *mapping->mapped;
    find_reservation(c.machine, mapping->handle, mapping->size)->unmap(mapping->handle, mapping->size);
    c.machine.freed.insert(mapping->handle);
    c.machine.allocations.erase(mapping->handle);
    --handle.mappings;
    drop_if_unused(c.machine, handle);
  }
}

SOFTWARE_DRIVER_CALL(cuMemSetAccess, Call& c, CUdeviceptr address, std::size_t size, const CUmemAccessDesc* wanted,
                     std::size_t count) {
  const std::vector<Allocation*> mappings = need_mappings_of(c, address, size);
  std::map<int, CUmemAccess_flags> access;
  for (std::size_t i = 0; i < count; ++i) {
    const CUmemAccess_flags flags = wanted[i].flags;
    refuse_if(wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                  (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
                   flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              CUDA_ERROR_INVALID_VALUE);
    access[find_device(c, wanted[i].location.id).ordinal] = flags;
  }
  for (Allocation* mapping : mappings) {
    for (const auto& [device, flags] : access) {
      mapping->access[device] = flags;
    }
  }
}

SOFTWARE_DRIVER_CALL(cuMemGetAccess, Call& c, unsigned long long* out, const CUmemLocation* location,
                     CUdeviceptr address) {
  refuse_if(location->type != CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
  const Allocation& mapping = need_mapping_at(c, address);
  const auto access = mapping.access.find(find_device(c, location->id).ordinal);
  give(out, static_cast<unsigned long long>(access == mapping.access.end() ? 0 : access->second));
}

SOFTWARE_DRIVER_CALL(cuMemExportToShareableHandle, Call& c, void* out, MemoryHandle& memory,
                     CUmemAllocationHandleType type) {
  refuse_if(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (memory.properties.requestedHandleTypes & type) == 0,
            CUDA_ERROR_INVALID_VALUE);
  const int descriptor = fcntl(memory.storage.file->descriptor(), F_DUPFD_CLOEXEC, 0);
  refuse_if(descriptor < 0, CUDA_ERROR_OUT_OF_MEMORY);
  memory.storage.file->marks();  // before another process looks for them
  c.machine.clock.share();
  return give(static_cast<int*>(out), descriptor);
}

SOFTWARE_DRIVER_CALL(cuMemImportFromShareableHandle, Call& c, CUmemGenericAllocationHandle* out, void* handle,
                     CUmemAllocationHandleType type) {
  refuse_if(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
  const int own = fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), F_DUPFD_CLOEXEC, 0);
  refuse_if(own < 0, CUDA_ERROR_INVALID_VALUE);
  Storage storage;
  storage.file = std::make_shared<File>(own);
  struct stat status{};
  Label label;
  label.magic = 0;
  // The label and the marks stand behind the bytes.
  constexpr std::uint64_t behind = page_bytes + mark_bytes;
  const std::uint64_t whole = fstat(own, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  if (whole > behind) {
    storage.file->read(whole - behind, &label, sizeof label);
  }
  refuse_if(label.magic != Label{}.magic || label.size + behind != whole, CUDA_ERROR_INVALID_VALUE);
  // This machine may have no such device.
  refuse_if(label.properties.location.id >= static_cast<int>(c.machine.devices.size()), CUDA_ERROR_NOT_SUPPORTED);
  c.machine.clock.share();
  return add_handle(c, label, std::move(storage), true, out);
}

SOFTWARE_DRIVER_CALL(cuMemRetainAllocationHandle, Call& c, CUmemGenericAllocationHandle* out, void* address) {
  MemoryHandle& memory = *need_mapping_at(c, reinterpret_cast<std::uint64_t>(address)).mapped;
  ++memory.references;
  give(out, memory);
}

SOFTWARE_DRIVER_GET(cuMemGetAllocationPropertiesFromHandle, &MemoryHandle::properties)
