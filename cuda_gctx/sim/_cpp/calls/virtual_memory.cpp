// Virtual memory: allocations of a device apart from the addresses that they are mapped to, also in other processes.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {
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
    const bool known = properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
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
  auto made = std::make_unique<MemoryHandle>();
  c.made(*made);
  made->properties = label.properties;
  made->size = label.size;
  made->storage = std::move(storage);
  made->imported = imported;
  give(out, CUmemGenericAllocationHandle{c.machine.memory_handles.add(std::move(made)).handle});
}

void create(Call& c, std::size_t size, const CUmemAllocationProp& properties, CUmemGenericAllocationHandle* out) {
  Device& device = c.machine.devices[static_cast<std::size_t>(properties.location.id)];
  refuse_if(!has_room(device, size), CUDA_ERROR_OUT_OF_MEMORY);
  Label label;
  label.size = size;
  label.properties = properties;
  label.properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;  // a hint, as documented
  Storage storage;
  if (properties.requestedHandleTypes == 0) {
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

// The memory goes when nothing refers to it and it is mapped nowhere.
void drop_if_unused(Machine& machine, const MemoryHandle& handle) {
  if (handle.references > 0 || handle.mappings > 0) {
    return;
  }
  if (!handle.imported) {
    machine.devices[static_cast<std::size_t>(handle.properties.location.id)].allocated -= handle.size;
  }
  machine.memory_handles.remove(handle);
}

void import(Call& c, int descriptor, CUmemGenericAllocationHandle* out) {
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  refuse_if(own < 0, CUDA_ERROR_INVALID_VALUE);
  Storage storage;
  storage.file = std::make_shared<File>(own);
  struct stat status{};
  Label label;
  label.magic = 0;
  if (fstat(own, &status) == 0 && status.st_size > static_cast<off_t>(page_bytes)) {
    storage.file->read(static_cast<std::uint64_t>(status.st_size) - page_bytes, &label, sizeof label);
  }
  refuse_if(label.magic != Label{}.magic || label.size + page_bytes != static_cast<std::uint64_t>(status.st_size),
            CUDA_ERROR_INVALID_VALUE);
  if (label.properties.location.id >= static_cast<int>(c.machine.devices.size())) {
    refuse(CUDA_ERROR_NOT_SUPPORTED);  // this machine has no such device
  }
  c.machine.clock.share();
  return add_handle(c, label, std::move(storage), true, out);
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

void map(Call& c, std::uint64_t address, std::size_t size, MemoryHandle& handle) {
  const Reservation* range = find_reservation(c.machine, address, size);
  const auto next = c.machine.allocations.lower_bound(address);
  const bool taken = find_allocation(c.machine, address, 1) != nullptr ||
                     (next != c.machine.allocations.end() && next->first < address + size);
  refuse_if(range == nullptr || size > handle.size || taken, CUDA_ERROR_INVALID_VALUE);
  range->map(address, *handle.storage.file, handle.storage.offset, size);
  Allocation made;
  c.made(made);
  made.handle = address;
  made.size = size;
  made.device = handle.properties.location.id;
  made.mapped = &handle;
  made.storage = {address, range->host(address), handle.storage.file, handle.storage.offset, handle.storage.owner};
  ++handle.mappings;
  c.machine.freed.erase(address);
  c.machine.allocations.emplace(address, std::move(made));
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

void unmap(Call& c, std::uint64_t address, std::size_t size) {
  const auto mappings = mappings_of(c.machine, address, size);
  refuse_if(mappings.empty(), CUDA_ERROR_INVALID_VALUE);
  wait_for_device(c, mappings.front()->device);
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

void set_access(Call& c, std::uint64_t address, std::size_t size, const CUmemAccessDesc* wanted, std::size_t count) {
  const auto mappings = mappings_of(c.machine, address, size);
  refuse_if(mappings.empty(), CUDA_ERROR_INVALID_VALUE);
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned flags = wanted[i].flags;
    refuse_if(wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                  (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
                   flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              CUDA_ERROR_INVALID_VALUE);
    find_device(c, wanted[i].location.id);
  }
  for (Allocation* mapping : mappings) {
    for (std::size_t i = 0; i < count; ++i) {
      mapping->access[wanted[i].location.id] = wanted[i].flags;
    }
  }
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

}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuMemGetAllocationGranularity, Call& c, std::size_t* out, const CUmemAllocationProp* properties,
              CUmemAllocationGranularity_flags) {
  // Recorded: what properties of no type would be answers as well.
  if (properties->type != CU_MEM_ALLOCATION_TYPE_INVALID) {
    check(c, properties);
  }
  give(out, std::size_t{granularity});
}

GCTX_SIM_CALL(cuMemCreate, Call& c, CUmemGenericAllocationHandle* out, std::size_t size,
              const CUmemAllocationProp* properties, unsigned long long) {
  refuse_if(!is_multiple(size), CUDA_ERROR_INVALID_VALUE);
  check(c, properties);
  return create(c, size, *properties, out);
}

GCTX_SIM_CALL(cuMemRelease, Call& c, MemoryHandle& memory) {
  --memory.references;
  drop_if_unused(c.machine, memory);
}

GCTX_SIM_CALL(cuMemAddressReserve, Call& c, CUdeviceptr* out, std::size_t size, std::size_t alignment, CUdeviceptr hint,
              unsigned long long) {
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

GCTX_SIM_CALL(cuMemAddressFree, Call& c, CUdeviceptr address, std::size_t size) {
  const auto found = c.machine.reservations.find(address);
  const auto next = c.machine.allocations.lower_bound(address);
  const bool mapped = next != c.machine.allocations.end() && next->first < address + size;
  refuse_if(found == c.machine.reservations.end() || found->second->range.size() != size || mapped,
            CUDA_ERROR_INVALID_VALUE);
  c.machine.reservations.erase(found);
}

GCTX_SIM_CALL(cuMemMap, Call& c, CUdeviceptr address, std::size_t size, std::size_t, MemoryHandle& memory,
              unsigned long long) {
  return is_multiple(size) && is_multiple(address) ? map(c, address, size, memory) : refuse(CUDA_ERROR_INVALID_VALUE);
}

GCTX_SIM_CALL(cuMemUnmap, Call& c, CUdeviceptr address, std::size_t size) { return unmap(c, address, size); }

GCTX_SIM_CALL(cuMemSetAccess, Call& c, CUdeviceptr address, std::size_t size, const CUmemAccessDesc* wanted,
              std::size_t count) {
  return set_access(c, address, size, wanted, count);
}

GCTX_SIM_CALL(cuMemGetAccess, Call& c, unsigned long long* out, const CUmemLocation* location, CUdeviceptr address) {
  const Allocation* found = find_allocation(c.machine, address, 1);
  refuse_if(location->type != CU_MEM_LOCATION_TYPE_DEVICE || found == nullptr || found->mapped == nullptr,
            CUDA_ERROR_INVALID_VALUE);
  find_device(c, location->id);
  const auto access = found->access.find(location->id);
  give(out, static_cast<unsigned long long>(access == found->access.end() ? 0 : access->second));
}

GCTX_SIM_CALL(cuMemExportToShareableHandle, Call& c, void* out, MemoryHandle& memory, CUmemAllocationHandleType type,
              unsigned long long) {
  refuse_if(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (memory.properties.requestedHandleTypes & type) == 0,
            CUDA_ERROR_INVALID_VALUE);
  const int descriptor = fcntl(memory.storage.file->descriptor(), F_DUPFD_CLOEXEC, 0);
  refuse_if(descriptor < 0, CUDA_ERROR_OUT_OF_MEMORY);
  c.machine.clock.share();
  return give(static_cast<int*>(out), descriptor);
}

GCTX_SIM_CALL(cuMemImportFromShareableHandle, Call& c, CUmemGenericAllocationHandle* out, void* handle,
              CUmemAllocationHandleType type) {
  return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
             ? import(c, static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), out)
             : refuse(CUDA_ERROR_NOT_SUPPORTED);
}

GCTX_SIM_CALL(cuMemGetAllocationPropertiesFromHandle, Call&, CUmemAllocationProp* out, MemoryHandle& memory) {
  give(out, memory.properties);
}

GCTX_SIM_CALL(cuMemRetainAllocationHandle, Call& c, CUmemGenericAllocationHandle* out, void* address) {
  const Allocation* found = find_allocation(c.machine, reinterpret_cast<std::uint64_t>(address), 1);
  refuse_if(found == nullptr || found->mapped == nullptr, CUDA_ERROR_INVALID_VALUE);
  ++found->mapped->references;
  give(out, CUmemGenericAllocationHandle{found->mapped->handle});
}
