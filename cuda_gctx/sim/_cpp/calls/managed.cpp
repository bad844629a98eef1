// Managed memory: memory of the host that the host may touch at any time. Where its pages are is remembered as it was
// asked for, and nothing moves.
#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"

namespace gctx::sim {
namespace {

// Managed memory of which this is a range.
Allocation& find_managed(Call& c, CUdeviceptr address, std::size_t size) {
  Allocation* found = size == 0 ? nullptr : find_allocation(c.machine, address, size);
  refuse_if(found == nullptr || !found->managed, CUDA_ERROR_INVALID_VALUE);
  return *found;
}

bool is_place(Call& c, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < static_cast<int>(c.machine.devices.size());
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id >= 0;
    default:
      return false;
  }
}

CUmemLocation from_device(CUdevice device) {
  return device == CU_DEVICE_CPU ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, {0}}
                                 : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
}

CUdevice as_device(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id;
    case CU_MEM_LOCATION_TYPE_HOST:
      return CU_DEVICE_CPU;
    default:
      return CU_DEVICE_INVALID;
  }
}

void advise(Call& c, CUdeviceptr address, std::size_t size, CUmem_advise advice, const CUmemLocation& location) {
  Allocation& memory = find_managed(c, address, size);
  ManagedRange& range = memory.range;
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
      if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY) {
        range.accessed_by.insert(device);
      } else {
        range.accessed_by.erase(device);
      }
      return;
    }
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

void prefetch(Call& c, Stream& stream, CUdeviceptr address, std::size_t size, const CUmemLocation& location) {
  Allocation& memory = find_managed(c, address, size);
  refuse_if(!is_place(c, location), CUDA_ERROR_INVALID_DEVICE);
  // Documented: what was asked for last, whether or not it has begun.
  memory.range.prefetched = location;
  submit(c, stream, GraphNode{});
}

struct Batch {
  CUdeviceptr* addresses;
  std::size_t* sizes;
  std::size_t count;
  CUmemLocation* locations;
  std::size_t* begins;  // the range from which on each location holds
  std::size_t location_count;
};

void check(Call& c, const Batch& batch) {
  for (std::size_t i = 0; i < batch.count; ++i) {
    find_managed(c, batch.addresses[i], batch.sizes[i]);
  }
}

void prefetch_all(Call& c, Stream& stream, const Batch& batch) {
  const bool located = batch.location_count <= batch.count && batch.begins[0] == 0;
  refuse_if(!located, CUDA_ERROR_INVALID_VALUE);
  check(c, batch);
  std::size_t place = 0;
  for (std::size_t i = 0; i < batch.count; ++i) {
    while (place + 1 < batch.location_count && batch.begins[place + 1] <= i) {
      ++place;
    }
    prefetch(c, stream, batch.addresses[i], batch.sizes[i], batch.locations[place]);
  }
}

void store(void* out, std::size_t size, int value) {
  refuse_if(size != sizeof value, CUDA_ERROR_INVALID_VALUE);
  std::memcpy(out, &value, sizeof value);
}

void range_attribute(Call& c, void* out, std::size_t size, CUmem_range_attribute which, CUdeviceptr address,
                     std::size_t count) {
  const Allocation& memory = find_managed(c, address, count);
  const ManagedRange& range = memory.range;
  switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return store(out, size, range.read_mostly ? 1 : 0);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return store(out, size, as_device(range.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return store(out, size, static_cast<int>(range.preferred.type));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return store(out, size, range.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return store(out, size, as_device(range.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return store(out, size, static_cast<int>(range.prefetched.type));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return store(out, size, range.prefetched.id);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      refuse_if(size == 0 || size % sizeof(int) != 0, CUDA_ERROR_INVALID_VALUE);
      auto device = range.accessed_by.begin();
      for (std::size_t at = 0; at < size; at += sizeof(int)) {
        const int value = device == range.accessed_by.end() ? CU_DEVICE_INVALID : *device++;
        std::memcpy(static_cast<char*>(out) + at, &value, sizeof value);
      }
      return;
    }
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuMemAllocManaged, Call& c, CUdeviceptr* out, std::size_t size, unsigned) {
  return allocate_managed(c, c.current->device, size, nullptr, out);
}

GCTX_SIM_CALL(cuMemAdvise, Call& c, CUdeviceptr address, std::size_t size, CUmem_advise advice, CUdevice device) {
  return advise(c, address, size, advice, from_device(device));
}

GCTX_SIM_CALL(cuMemAdvise_v2, Call& c, CUdeviceptr address, std::size_t size, CUmem_advise advice,
              CUmemLocation location) {
  return advise(c, address, size, advice, location);
}

GCTX_SIM_CALL(cuMemPrefetchAsync, Call& c, CUdeviceptr address, std::size_t size, CUdevice device, Stream& stream) {
  return prefetch(c, stream, address, size, from_device(device));
}

GCTX_SIM_CALL(cuMemPrefetchAsync_v2, Call& c, CUdeviceptr address, std::size_t size, CUmemLocation location, unsigned,
              Stream& stream) {
  return prefetch(c, stream, address, size, location);
}

GCTX_SIM_CALL(cuMemPrefetchBatchAsync, Call& c, CUdeviceptr* addresses, std::size_t* sizes, std::size_t count,
              CUmemLocation* locations, std::size_t* begins, std::size_t location_count, unsigned long long,
              Stream& stream) {
  return prefetch_all(c, stream, {addresses, sizes, count, locations, begins, location_count});
}

GCTX_SIM_CALL(cuMemDiscardBatchAsync, Call& c, CUdeviceptr* addresses, std::size_t* sizes, std::size_t count,
              unsigned long long, Stream&) {
  // What a program reads afterwards is not defined: the bytes stay.
  return check(c, {addresses, sizes, count, nullptr, nullptr, 0});
}

GCTX_SIM_SAME(cuMemDiscardAndPrefetchBatchAsync, cuMemPrefetchBatchAsync)

GCTX_SIM_CALL(cuMemRangeGetAttribute, Call& c, void* out, std::size_t size, CUmem_range_attribute which,
              CUdeviceptr address, std::size_t count) {
  return range_attribute(c, out, size, which, address, count);
}

GCTX_SIM_CALL(cuMemRangeGetAttributes, Call& c, void** out, std::size_t* sizes, CUmem_range_attribute* which,
              std::size_t number, CUdeviceptr address, std::size_t count) {
  for (std::size_t i = 0; i < number; ++i) {
    refuse_if(out[i] == nullptr, CUDA_ERROR_INVALID_VALUE);
    range_attribute(c, out[i], sizes[i], which[i], address, count);
  }
}

GCTX_SIM_CALL(cuStreamAttachMemAsync, Call& c, Stream& stream, CUdeviceptr address, std::size_t size, unsigned) {
  const Allocation& memory = find_managed(c, address, size == 0 ? 1 : size);
  const bool whole = address == memory.handle && (size == 0 || size == memory.size);
  refuse_if(!whole, CUDA_ERROR_INVALID_VALUE);
  submit(c, stream, GraphNode{});
}
