// Managed memory: memory of the host that the host may touch at any time. Where its pages are is remembered as it was
// asked for, and nothing moves.
#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
namespace {

// Managed memory of which this is a range.
Allocation& find_managed(Call& c, CUdeviceptr address, std::size_t size) {
  Allocation* found = size == 0 ? nullptr : find_allocation(c.machine, address, size);
  refuse_if(found == nullptr || !found->managed, CUDA_ERROR_INVALID_VALUE);
  return *found;
}

bool is_place(Call& c, const CUmemLocation& location) {
  refuse_if(location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN && c.version() >= 13040,
            CUDA_ERROR_NOT_SUPPORTED);
  const auto devices = static_cast<int>(c.machine.devices.size());
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ||
         (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location.id >= 0) ||
         (location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 && location.id < devices);
}

CUmemLocation as_location(const CUmemLocation& location) { return location; }
CUmemLocation as_location(CUdevice device) {
  return device == CU_DEVICE_CPU ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, {0}}
                                 : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
}

CUdevice as_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id
         : location.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU
                                                      : CU_DEVICE_INVALID;
}

// Where the header means a place, it names a device or, in newer versions, a location.
template <class Where>
void advise(Call& c, CUdeviceptr address, std::size_t size, CUmem_advise advice, Where where) {
  const CUmemLocation location = as_location(where);
  ManagedRange& range = find_managed(c, address, size).range;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      range.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      return;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      refuse_if(!is_place(c, location), CUDA_ERROR_INVALID_DEVICE);
      range.preferred = location;
      return;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      range.preferred = {};
      return;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: {
      const CUdevice device = as_device(location);
      refuse_if(!is_place(c, location) || device == CU_DEVICE_INVALID, CUDA_ERROR_INVALID_DEVICE);
      range.accessed_by.erase(device);
      if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY) {
        range.accessed_by.insert(device);
      }
      return;
    }
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

void prefetch(Call& c, Stream& stream, CUdeviceptr address, std::size_t size, const CUmemLocation& location) {
  ManagedRange& range = find_managed(c, address, size).range;
  refuse_if(!is_place(c, location), CUDA_ERROR_INVALID_DEVICE);
  // Documented: what was asked for last, whether or not it has begun.
  range.prefetched = location;
  submit(c, stream, GraphNode{});
}

void find_all(Call& c, CUdeviceptr* addresses, std::size_t* sizes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    find_managed(c, addresses[i], sizes[i]);
  }
}

// Each location holds from the range on at which it begins.
void prefetch_all(Call& c, CUdeviceptr* addresses, std::size_t* sizes, std::size_t count, CUmemLocation* locations,
                  std::size_t* begins, std::size_t location_count, unsigned long long, Stream& stream) {
  refuse_if(location_count > count || begins[0] != 0, CUDA_ERROR_INVALID_VALUE);
  find_all(c, addresses, sizes, count);
  for (std::size_t i = 0, place = 0; i < count; ++i) {
    while (place + 1 < location_count && begins[place + 1] <= i) {
      ++place;
    }
    prefetch(c, stream, addresses[i], sizes[i], locations[place]);
  }
}

constexpr std::pair<CUmem_range_attribute, int (*)(const ManagedRange& range)> range_attributes[] = {
    {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, [](const ManagedRange& range) { return range.read_mostly ? 1 : 0; }},
    {CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, [](const ManagedRange& range) { return as_device(range.preferred); }},
    {CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, [](const auto& range) { return int{range.preferred.type}; }},
    {CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, [](const ManagedRange& range) { return range.preferred.id; }},
    {CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, [](const auto& range) { return as_device(range.prefetched); }},
    {CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, [](const auto& range) { return int{range.prefetched.type}; }},
    {CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, [](const ManagedRange& range) { return range.prefetched.id; }},
};

void range_attribute(Call& c, void* out, std::size_t size, CUmem_range_attribute which, CUdeviceptr address,
                     std::size_t count) {
  const ManagedRange& range = find_managed(c, address, count).range;
  if (which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    refuse_if(size == 0 || size % sizeof(int) != 0, CUDA_ERROR_INVALID_VALUE);
    auto device = range.accessed_by.begin();
    for (std::size_t at = 0; at < size; at += sizeof(int)) {
      const int value = device == range.accessed_by.end() ? CU_DEVICE_INVALID : *device++;
      std::memcpy(static_cast<char*>(out) + at, &value, sizeof value);
    }
    return;
  }
  const auto* ask = value_of(range_attributes, which);
  refuse_if(ask == nullptr || size != sizeof(int), CUDA_ERROR_INVALID_VALUE);
  const int value = (*ask)(range);
  std::memcpy(out, &value, sizeof value);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuMemAllocManaged, Call& c, CUdeviceptr* out, std::size_t size) {
  give(out, allocate(c, {.device = c.current->device, .managed = true}, size));
}

SOFTWARE_DRIVER_CALL(cuMemPrefetchAsync, Call& c, CUdeviceptr address, std::size_t size, CUdevice device,
                     Stream& stream) {
  return prefetch(c, stream, address, size, as_location(device));
}

SOFTWARE_DRIVER_CALL(cuMemPrefetchAsync_v2, Call& c, CUdeviceptr address, std::size_t size, CUmemLocation location,
                     unsigned, Stream& stream) {
  return prefetch(c, stream, address, size, location);
}

// What a program reads afterwards is not defined: the bytes stay.
SOFTWARE_DRIVER_CALL(cuMemDiscardBatchAsync, Call& c, CUdeviceptr* addresses, std::size_t* sizes, std::size_t count,
                     unsigned long long, const Stream&) {
  return find_all(c, addresses, sizes, count);
}

SOFTWARE_DRIVER_ROW(cuMemAdvise, advise<CUdevice>)
SOFTWARE_DRIVER_ROW(cuMemAdvise_v2, advise<CUmemLocation>)
SOFTWARE_DRIVER_ROW(cuMemPrefetchBatchAsync, prefetch_all)
SOFTWARE_DRIVER_ROW(cuMemDiscardAndPrefetchBatchAsync, prefetch_all)
SOFTWARE_DRIVER_ROW(cuMemRangeGetAttribute, range_attribute)

SOFTWARE_DRIVER_CALL(cuMemRangeGetAttributes, Call& c, void** out, std::size_t* sizes, CUmem_range_attribute* which,
                     std::size_t number, CUdeviceptr address, std::size_t count) {
  for (std::size_t i = 0; i < number; ++i) {
    refuse_if(out[i] == nullptr, CUDA_ERROR_INVALID_VALUE);
    range_attribute(c, out[i], sizes[i], which[i], address, count);
  }
}

SOFTWARE_DRIVER_CALL(cuStreamAttachMemAsync, Call& c, Stream& stream, CUdeviceptr address, std::size_t size, unsigned) {
  const Allocation& memory = find_managed(c, address, size == 0 ? 1 : size);
  const bool whole = address == memory.handle && (size == 0 || size == memory.size);
  refuse_if(!whole, CUDA_ERROR_INVALID_VALUE);
  submit(c, stream, GraphNode{});
}
