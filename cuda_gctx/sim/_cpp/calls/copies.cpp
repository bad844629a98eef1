// Copies and fills: they really happen, at the virtual time at which their stream gets to them.
#include "calls/copies.hpp"

#include <cstring>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"

namespace gctx::sim {
namespace {

// Assumed: the rate of the link to the host, in bytes per nanosecond, and the time that a copy takes to begin.
constexpr std::uint64_t host_rate = 25;
constexpr std::uint64_t start_ns = 1'000;

// One side of a copy: rows of bytes.
struct Side {
  std::uint64_t address = 0;  // of the first byte
  std::size_t pitch = 0;      // from a row to the next
  std::size_t slice = 0;      // and from a plane of rows to the next
  std::size_t span = 0;       // from the first byte to the last
  bool known = false;         // memory of the driver: its bounds are checked
  bool device = false;        // in device memory
  bool shows = false;         // the host reads it too
  std::shared_ptr<Storage> array;
};

struct Extent {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t depth = 1;

  bool is_empty() const noexcept { return width == 0 || height == 0 || depth == 0; }
};

// How a copy names one of its sides.
struct Place {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  std::uint64_t address = 0;
  CUarray array = nullptr;
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
  std::size_t pitch = 0;
  std::size_t height = 0;
};

Place source_of(const CUDA_MEMCPY3D& copy) {
  const bool host = copy.srcMemoryType == CU_MEMORYTYPE_HOST;
  return {copy.srcMemoryType, host ? reinterpret_cast<std::uint64_t>(copy.srcHost) : copy.srcDevice,
          copy.srcArray,      copy.srcXInBytes,
          copy.srcY,          copy.srcZ,
          copy.srcPitch,      copy.srcHeight};
}

Place target_of(const CUDA_MEMCPY3D& copy) {
  const bool host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  return {copy.dstMemoryType, host ? reinterpret_cast<std::uint64_t>(copy.dstHost) : copy.dstDevice,
          copy.dstArray,      copy.dstXInBytes,
          copy.dstY,          copy.dstZ,
          copy.dstPitch,      copy.dstHeight};
}

bool locate_array(Call& c, const Place& place, const Extent& extent, Side& side) {
  const Array* array = c.machine.arrays.find(place.array);
  if (array == nullptr) {
    return false;
  }
  const auto fits = [](std::size_t at, std::size_t size, std::size_t whole) {
    return at <= whole && size <= whole - at;
  };
  if (!fits(place.x, extent.width, array->row_bytes()) || !fits(place.y, extent.height, array->rows()) ||
      !fits(place.z, extent.depth, array->slices())) {
    return false;
  }
  side.pitch = array->row_bytes();
  side.slice = side.pitch * array->rows();
  side.address = array->storage->address() + place.z * side.slice + place.y * side.pitch + place.x;
  side.device = true;
  side.known = true;
  side.array = array->storage;
  return true;
}

// Where the bytes are, or false if they are not where the call says.
bool locate(Call& c, const Place& place, const Extent& extent, Side& side) {
  if (place.type == CU_MEMORYTYPE_ARRAY) {
    return locate_array(c, place, extent, side);
  }
  if (place.type < CU_MEMORYTYPE_HOST || place.type > CU_MEMORYTYPE_UNIFIED || place.address == 0) {
    return false;
  }
  constexpr std::size_t limit = std::size_t{1} << 40;  // beyond it, products of what follows could overflow
  const bool huge = std::max({place.x, place.y, place.z, place.pitch, place.height, extent.width}) > limit ||
                    std::max(extent.height, extent.depth) > (std::size_t{1} << 20) || place.pitch > (1U << 31);
  if (huge && extent.height * extent.depth > 1) {
    return false;
  }
  // One row needs no pitch.
  if (place.pitch != 0 && (place.pitch < extent.width || extent.width + place.x > place.pitch)) {
    return false;
  }
  if (place.height != 0 && place.height < extent.height) {
    return false;
  }
  side.pitch = place.pitch != 0 ? place.pitch : extent.width;
  side.slice = side.pitch * (place.height != 0 ? place.height : extent.height);
  side.address = place.address + place.z * side.slice + place.y * side.pitch + place.x;
  side.span = (extent.depth - 1) * side.slice + (extent.height - 1) * side.pitch + extent.width;
  const Allocation* found = find_allocation(c.machine, side.address, side.span);
  if (found != nullptr) {
    if (found->freeing) {
      c.note(Misuse::use_after_destroy, side.address, "the memory was freed before in another order");
    }
    side.known = true;
    side.device = found->type == CU_MEMORYTYPE_DEVICE;
    side.shows = !side.device || found->managed;
    return true;
  }
  // A range that begins in known memory and runs out of it is an error on either side.
  if (find_allocation(c.machine, side.address, 1) != nullptr) {
    return false;
  }
  if (c.machine.freed.contains(side.address) && place.type != CU_MEMORYTYPE_HOST) {
    c.note(Misuse::use_after_destroy, side.address, "the memory is freed");
    return false;
  }
  side.shows = true;
  return place.type != CU_MEMORYTYPE_DEVICE;
}

bool is_there(Machine& machine, const Side& side) {
  return !side.known || side.array || find_allocation(machine, side.address, side.span) != nullptr;
}

template <class Move>
void each_row(const Extent& extent, Move&& move) {
  for (std::size_t z = 0; z < extent.depth; ++z) {
    for (std::size_t y = 0; y < extent.height; ++y) {
      move(y, z);
    }
  }
}

using Bytes = std::shared_ptr<std::vector<unsigned char>>;

Bytes read_rows(const Side& from, const Extent& extent) {
  auto bytes = std::make_shared<std::vector<unsigned char>>();
  bytes->reserve(extent.width * extent.height * extent.depth);
  each_row(extent, [&](std::size_t y, std::size_t z) {
    const auto* row = reinterpret_cast<const unsigned char*>(from.address + z * from.slice + y * from.pitch);
    bytes->insert(bytes->end(), row, row + extent.width);
  });
  return bytes;
}

struct Located {
  Extent extent;
  Side to;
  Side from;
};

CUresult locate_both(Call& c, const CUDA_MEMCPY3D& copy, Located& found) {
  found.extent = {copy.WidthInBytes, copy.Height, copy.Depth};
  if (found.extent.is_empty()) {
    return CUDA_SUCCESS;
  }
  const bool both =
      locate(c, target_of(copy), found.extent, found.to) && locate(c, source_of(copy), found.extent, found.from);
  return both ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void describe(Call& c, const CUDA_MEMCPY3D& copy, const Located& found, bool snapshot, GraphNode& node) {
  const Side& to = found.to;
  const Side& from = found.from;
  const Extent& extent = found.extent;
  const std::size_t size = extent.width * extent.height * extent.depth;
  node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  node.parameters = copy;
  node.duration = start_ns;
  if (to.device && from.device) {
    // Read and written.
    node.engine = Engine::in_device;
    node.bytes = 2.0 * static_cast<double>(size);
  } else {
    node.engine = to.device ? Engine::to_device : from.device ? Engine::to_host : Engine::none;
    node.duration += size / host_rate;
  }
  node.shows = to.shows;
  const Bytes staged = snapshot ? read_rows(from, extent) : nullptr;
  node.effect = [&machine = c.machine, to, from, extent, staged] {
    // The memory may have been freed on another stream meanwhile: then nothing is copied rather than the process
    // harmed.
    if (extent.is_empty() || !is_there(machine, to) || !is_there(machine, from)) {
      return;
    }
    const unsigned char* packed = staged ? staged->data() : nullptr;
    each_row(extent, [&](std::size_t y, std::size_t z) {
      const void* source = packed != nullptr ? static_cast<const void*>(packed)
                                             : reinterpret_cast<void*>(from.address + z * from.slice + y * from.pitch);
      std::memmove(reinterpret_cast<void*>(to.address + z * to.slice + y * to.pitch), source, extent.width);
      if (packed != nullptr) {
        packed += extent.width;
      }
    });
  };
}

// Looked up again: queueing may have opened the lock, and another thread may have destroyed the stream.
CUresult wait_for_last(Call& c, CUstream handle) {
  CUresult result = CUDA_SUCCESS;
  const Stream* stream = find_stream(c, handle, result);
  return stream == nullptr ? result : wait_for(c, stream->last);
}

CUresult copy(Call& c, const CUDA_MEMCPY3D& what, CUstream handle, bool wait) {
  CUresult result = CUDA_SUCCESS;
  Stream* stream = find_stream(c, handle, result);
  if (stream == nullptr) {
    return result;
  }
  if (wait && disturbs_capture(c)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Located found;
  if (result = locate_both(c, what, found); result != CUDA_SUCCESS) {
    return result;
  }
  if (found.extent.is_empty()) {
    return CUDA_SUCCESS;
  }
  // Pageable host memory is read before the call returns, and written before it returns, as on hardware.
  const bool pageable_source = !found.from.known && !stream->capture;
  const bool pageable_target = !found.to.known && !stream->capture;
  GraphNode node;
  describe(c, what, found, pageable_source && !wait, node);
  result = enqueue(c, *stream, std::move(node));
  return result == CUDA_SUCCESS && (wait || pageable_target) ? wait_for_last(c, handle) : result;
}

CUDA_MEMCPY3D linear(CUmemorytype to_type, std::uint64_t to, CUmemorytype from_type, std::uint64_t from,
                     std::size_t size) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = from_type;
  copy.dstMemoryType = to_type;
  copy.srcHost = reinterpret_cast<const void*>(from);
  copy.dstHost = reinterpret_cast<void*>(to);
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.WidthInBytes = size;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUDA_MEMCPY3D with_array_target(CUDA_MEMCPY3D copy, CUarray array, std::size_t offset) {
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.dstXInBytes = offset;
  return copy;
}

CUDA_MEMCPY3D with_array_source(CUDA_MEMCPY3D copy, CUarray array, std::size_t offset) {
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.srcXInBytes = offset;
  return copy;
}

CUDA_MEMCPY3D in_three_dimensions(const CUDA_MEMCPY2D& flat) {
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = flat.srcXInBytes;
  copy.srcY = flat.srcY;
  copy.srcMemoryType = flat.srcMemoryType;
  copy.srcHost = flat.srcHost;
  copy.srcDevice = flat.srcDevice;
  copy.srcArray = flat.srcArray;
  copy.srcPitch = flat.srcPitch;
  copy.dstXInBytes = flat.dstXInBytes;
  copy.dstY = flat.dstY;
  copy.dstMemoryType = flat.dstMemoryType;
  copy.dstHost = flat.dstHost;
  copy.dstDevice = flat.dstDevice;
  copy.dstArray = flat.dstArray;
  copy.dstPitch = flat.dstPitch;
  copy.WidthInBytes = flat.WidthInBytes;
  copy.Height = flat.Height;
  copy.Depth = 1;
  return copy;
}

template <Fn function>
CUresult copy_linear(CUmemorytype to_type, std::uint64_t to, CUmemorytype from_type, std::uint64_t from,
                     std::size_t size, CUstream stream, bool wait) {
  return call<function>([&](Call& c) { return copy(c, linear(to_type, to, from_type, from, size), stream, wait); });
}

template <Fn function>
CUresult copy_flat(const CUDA_MEMCPY2D* flat, CUstream stream, bool wait) {
  return call<function>([&](Call& c) {
    return flat == nullptr ? CUDA_ERROR_INVALID_VALUE : copy(c, in_three_dimensions(*flat), stream, wait);
  });
}

template <Fn function>
CUresult copy_box(const CUDA_MEMCPY3D* box, CUstream stream, bool wait) {
  return call<function>(
      [&](Call& c) { return box == nullptr ? CUDA_ERROR_INVALID_VALUE : copy(c, *box, stream, wait); });
}

CUresult fill(Call& c, const CUDA_MEMSET_NODE_PARAMS& what, CUstream handle, bool wait) {
  CUresult result = CUDA_SUCCESS;
  Stream* stream = find_stream(c, handle, result);
  if (stream == nullptr) {
    return result;
  }
  if (wait && disturbs_capture(c)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (what.dst % what.elementSize != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (what.width == 0 || what.height == 0) {
    return CUDA_SUCCESS;
  }
  GraphNode node;
  if (result = plan_fill(c, what, node); result != CUDA_SUCCESS) {
    return result;
  }
  result = enqueue(c, *stream, std::move(node));
  return result == CUDA_SUCCESS && wait ? wait_for_last(c, handle) : result;
}

template <Fn function>
CUresult fill_row(CUdeviceptr address, unsigned value, unsigned size, std::size_t count, CUstream stream, bool wait) {
  return call<function>([&](Call& c) { return fill(c, {address, 0, value, size, count, 1}, stream, wait); });
}

template <Fn function>
CUresult fill_rows(CUdeviceptr address, std::size_t pitch, unsigned value, unsigned size, std::size_t width,
                   std::size_t height, CUstream stream, bool wait) {
  return call<function>([&](Call& c) { return fill(c, {address, pitch, value, size, width, height}, stream, wait); });
}

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

constexpr CUmemorytype on_host = CU_MEMORYTYPE_HOST;
constexpr CUmemorytype on_device = CU_MEMORYTYPE_DEVICE;
constexpr CUmemorytype anywhere = CU_MEMORYTYPE_UNIFIED;

}  // namespace

CUresult plan_copy(Call& c, const CUDA_MEMCPY3D& copy, bool snapshot, GraphNode& node) {
  Located found;
  if (const CUresult result = locate_both(c, copy, found); result != CUDA_SUCCESS) {
    return result;
  }
  describe(c, copy, found, snapshot, node);
  return CUDA_SUCCESS;
}

CUresult plan_fill(Call& c, const CUDA_MEMSET_NODE_PARAMS& what, GraphNode& node) {
  const std::size_t size = what.elementSize;
  if ((size != 1 && size != 2 && size != 4) || what.width == 0 || what.height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Extent extent{what.width * size, what.height, 1};
  Side side;
  const Place place{on_device, what.dst, nullptr, 0, 0, 0, what.height > 1 ? what.pitch : 0, 0};
  const bool aligned = what.dst % size == 0 && (what.height == 1 || what.pitch % size == 0);
  if (!aligned || what.width > (std::size_t{1} << 40) || !locate(c, place, extent, side)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.parameters = what;
  node.duration = start_ns;
  node.bytes = static_cast<double>(extent.width * extent.height);
  node.shows = side.shows;
  node.effect = [&machine = c.machine, side, extent, value = what.value, size, width = what.width] {
    if (!is_there(machine, side)) {
      return;
    }
    each_row(extent, [&](std::size_t y, std::size_t) {
      auto* row = reinterpret_cast<unsigned char*>(side.address + y * side.pitch);
      if (size == 1) {
        std::fill_n(row, width, static_cast<unsigned char>(value));
      } else if (size == 2) {
        std::fill_n(reinterpret_cast<std::uint16_t*>(row), width, static_cast<std::uint16_t>(value));
      } else {
        std::fill_n(reinterpret_cast<std::uint32_t*>(row), width, static_cast<std::uint32_t>(value));
      }
    });
  };
  return CUDA_SUCCESS;
}

}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return copy_linear<Fn::cuMemcpy>(anywhere, to, anywhere, from, size, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear<Fn::cuMemcpyAsync>(anywhere, to, anywhere, from, size, stream, false);
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t size) {
  return copy_linear<Fn::cuMemcpyHtoD_v2>(on_device, to, on_host, number(from), size, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t size) {
  return copy_linear<Fn::cuMemcpyDtoH_v2>(on_host, number(to), on_device, from, size, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return copy_linear<Fn::cuMemcpyDtoD_v2>(on_device, to, on_device, from, size, nullptr, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  return copy_linear<Fn::cuMemcpyHtoDAsync_v2>(on_device, to, on_host, number(from), size, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear<Fn::cuMemcpyDtoHAsync_v2>(on_host, number(to), on_device, from, size, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear<Fn::cuMemcpyDtoDAsync_v2>(on_device, to, on_device, from, size, stream, false);
}

CUresult CUDAAPI cuMemcpyHtoA_v2(CUarray to, std::size_t offset, const void* from, std::size_t size) {
  return call<Fn::cuMemcpyHtoA_v2>([&](Call& c) {
    return copy(c, with_array_target(linear(on_host, 0, on_host, number(from), size), to, offset), nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyHtoAAsync_v2(CUarray to, std::size_t offset, const void* from, std::size_t size,
                                      CUstream stream) {
  return call<Fn::cuMemcpyHtoAAsync_v2>([&](Call& c) {
    return copy(c, with_array_target(linear(on_host, 0, on_host, number(from), size), to, offset), stream, false);
  });
}
CUresult CUDAAPI cuMemcpyAtoH_v2(void* to, CUarray from, std::size_t offset, std::size_t size) {
  return call<Fn::cuMemcpyAtoH_v2>([&](Call& c) {
    return copy(c, with_array_source(linear(on_host, number(to), on_host, 0, size), from, offset), nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyAtoHAsync_v2(void* to, CUarray from, std::size_t offset, std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyAtoHAsync_v2>([&](Call& c) {
    return copy(c, with_array_source(linear(on_host, number(to), on_host, 0, size), from, offset), stream, false);
  });
}
CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray to, std::size_t offset, CUdeviceptr from, std::size_t size) {
  return call<Fn::cuMemcpyDtoA_v2>([&](Call& c) {
    return copy(c, with_array_target(linear(on_host, 0, on_device, from, size), to, offset), nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, std::size_t offset, std::size_t size) {
  return call<Fn::cuMemcpyAtoD_v2>([&](Call& c) {
    return copy(c, with_array_source(linear(on_device, to, on_host, 0, size), from, offset), nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyAtoA_v2(CUarray to, std::size_t to_offset, CUarray from, std::size_t from_offset,
                                 std::size_t size) {
  return call<Fn::cuMemcpyAtoA_v2>([&](Call& c) {
    const CUDA_MEMCPY3D copied = with_array_source(linear(on_host, 0, on_host, 0, size), from, from_offset);
    return copy(c, with_array_target(copied, to, to_offset), nullptr, true);
  });
}

CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* flat) { return copy_flat<Fn::cuMemcpy2D_v2>(flat, nullptr, true); }
CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* flat) {
  return copy_flat<Fn::cuMemcpy2DUnaligned_v2>(flat, nullptr, true);
}
CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* flat, CUstream stream) {
  return copy_flat<Fn::cuMemcpy2DAsync_v2>(flat, stream, false);
}
CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D* box) { return copy_box<Fn::cuMemcpy3D_v2>(box, nullptr, true); }
CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* box, CUstream stream) {
  return copy_box<Fn::cuMemcpy3DAsync_v2>(box, stream, false);
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              std::size_t size) {
  return call<Fn::cuMemcpyPeer>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (find_context(c, to_context, result) == nullptr || find_context(c, from_context, result) == nullptr) {
      return result;
    }
    return copy(c, linear(on_device, to, on_device, from, size), nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyPeerAsync>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (find_context(c, to_context, result) == nullptr || find_context(c, from_context, result) == nullptr) {
      return result;
    }
    return copy(c, linear(on_device, to, on_device, from, size), stream, false);
  });
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr address, unsigned char value, std::size_t count) {
  return fill_row<Fn::cuMemsetD8_v2>(address, value, 1, count, nullptr, true);
}
CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr address, unsigned short value, std::size_t count) {
  return fill_row<Fn::cuMemsetD16_v2>(address, value, 2, count, nullptr, true);
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr address, unsigned value, std::size_t count) {
  return fill_row<Fn::cuMemsetD32_v2>(address, value, 4, count, nullptr, true);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream) {
  return fill_row<Fn::cuMemsetD8Async>(address, value, 1, count, stream, false);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr address, unsigned short value, std::size_t count, CUstream stream) {
  return fill_row<Fn::cuMemsetD16Async>(address, value, 2, count, stream, false);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  return fill_row<Fn::cuMemsetD32Async>(address, value, 4, count, stream, false);
}
CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr address, std::size_t pitch, unsigned char value, std::size_t width,
                                 std::size_t height) {
  return fill_rows<Fn::cuMemsetD2D8_v2>(address, pitch, value, 1, width, height, nullptr, true);
}
CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr address, std::size_t pitch, unsigned short value, std::size_t width,
                                  std::size_t height) {
  return fill_rows<Fn::cuMemsetD2D16_v2>(address, pitch, value, 2, width, height, nullptr, true);
}
CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr address, std::size_t pitch, unsigned value, std::size_t width,
                                  std::size_t height) {
  return fill_rows<Fn::cuMemsetD2D32_v2>(address, pitch, value, 4, width, height, nullptr, true);
}
CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr address, std::size_t pitch, unsigned char value, std::size_t width,
                                   std::size_t height, CUstream stream) {
  return fill_rows<Fn::cuMemsetD2D8Async>(address, pitch, value, 1, width, height, stream, false);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr address, std::size_t pitch, unsigned short value, std::size_t width,
                                    std::size_t height, CUstream stream) {
  return fill_rows<Fn::cuMemsetD2D16Async>(address, pitch, value, 2, width, height, stream, false);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr address, std::size_t pitch, unsigned value, std::size_t width,
                                    std::size_t height, CUstream stream) {
  return fill_rows<Fn::cuMemsetD2D32Async>(address, pitch, value, 4, width, height, stream, false);
}

}  // extern "C"
