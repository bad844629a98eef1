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
  Storage array;
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

std::size_t span_of(const Extent& extent, const Side& side) {
  return (extent.depth - 1) * side.slice + (extent.height - 1) * side.pitch + extent.width;
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
  side.address = array->storage.address + place.z * side.slice + place.y * side.pitch + place.x;
  side.span = span_of(extent, side);
  side.device = true;
  side.known = true;
  side.array = array->storage;
  return true;
}

// Where the bytes are, or false if they are not where the call says.
bool locate(Call& c, const Place& place, const Extent& extent, bool writes, Side& side) {
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
  side.span = span_of(extent, side);
  const Allocation* found = find_allocation(c.machine, side.address, 1);
  if (found != nullptr) {
    // A range that begins in known memory and runs out of it is an error on either side.
    if (bytes_at(c.machine, side.address, side.span).is_empty() || !is_reachable(*found, writes)) {
      return false;
    }
    if (found->freeing) {
      c.note(Misuse::use_after_destroy, side.address, "the memory was freed before in another order");
    }
    side.known = true;
    side.device = found->type == CU_MEMORYTYPE_DEVICE;
    side.shows = !side.device || found->managed;
    return true;
  }
  if (c.machine.freed.contains(side.address) && place.type != CU_MEMORYTYPE_HOST) {
    c.note(Misuse::use_after_destroy, side.address, "the memory is freed");
    return false;
  }
  side.shows = true;
  return place.type != CU_MEMORYTYPE_DEVICE && !is_of_a_device(c.machine, side.address);
}

// The memory may have been freed on another stream meanwhile: then there are none, and nothing is copied.
Bytes bytes_of(Machine& machine, const Side& side) {
  if (side.known && side.array.address == 0) {
    return bytes_at(machine, side.address, side.span);
  }
  Bytes found;
  Storage own = side.array;
  if (!side.known) {
    own.host = reinterpret_cast<char*>(side.address);
  }
  found.add(own, side.known ? side.address - own.address : 0, side.span);
  return found;
}

// What takes long is moved without the lock, so that other threads can call meanwhile.
constexpr std::size_t long_bytes = std::size_t{1} << 20;

Rest now_or_later(const Extent& extent, Rest move) {
  if (extent.width * extent.height * extent.depth >= long_bytes) {
    return move;
  }
  move();
  return {};
}

// Of each row: by how much it is behind the first byte, on both sides. Rows that follow each other are one.
template <class Move>
void each_row(const Extent& extent, const Side& to, const Side& from, Move&& move) {
  const std::size_t size = extent.width * extent.height * extent.depth;
  if (to.span == size && from.span == size) {
    return move(0, 0, size);
  }
  for (std::size_t z = 0; z < extent.depth; ++z) {
    for (std::size_t y = 0; y < extent.height; ++y) {
      move(z * to.slice + y * to.pitch, z * from.slice + y * from.pitch, extent.width);
    }
  }
}

// What is unknown of the bytes goes with them, and the host reads it where they show. Without a source they are known.
void carry_marks(Machine& machine, const Extent& extent, const Side& to, const Side* from) {
  Unknown& unknown = machine.unknown;
  std::string read;
  for (std::size_t row = 0; !unknown.is_empty() && row < extent.height * extent.depth; ++row) {
    const std::size_t y = row % extent.height;
    const std::size_t z = row / extent.height;
    const std::uint64_t target = to.address + z * to.slice + y * to.pitch;
    std::vector<Unknown::Part> parts;
    if (from != nullptr && from->known) {
      parts = unknown.parts(from->address + z * from->slice + y * from->pitch, extent.width);
    }
    if (to.known) {
      unknown.clear(target, extent.width);
    }
    for (const Unknown::Part& part : parts) {
      read = part.kernel;
      if (to.known) {
        unknown.mark(target + part.offset, part.size, part.kernel);
      }
    }
  }
  if (to.shows && !read.empty()) {
    unknown.count_result(read);
  }
}

// Of what is to be written on the host; null where its memory has no room.
std::shared_ptr<void> promise(Call& c, const Extent& extent, const Side& to) {
  return promise_pages(c.machine, to.device && !extent.is_empty() ? bytes_of(c.machine, to) : Bytes{});
}

struct Located {
  Extent extent;
  Side to;
  Side from;
};

void locate_both(Call& c, const CUDA_MEMCPY3D& copy, Located& found) {
  found.extent = {copy.WidthInBytes, copy.Height, copy.Depth};
  if (found.extent.is_empty()) {
    return;
  }
  const bool both = locate(c, target_of(copy), found.extent, true, found.to) &&
                    locate(c, source_of(copy), found.extent, false, found.from);
  refuse_if(!both, CUDA_ERROR_INVALID_VALUE);
}

void describe(Call& c, const CUDA_MEMCPY3D& copy, const Located& found, GraphNode& node) {
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
  node.marks = [&machine = c.machine, to, from, extent] { carry_marks(machine, extent, to, &from); };
  const auto pages = promise(c, extent, to);
  refuse_if(!pages, CUDA_ERROR_OUT_OF_MEMORY);
  node.effect = [&machine = c.machine, to, from, extent, pages]() -> Rest {
    const Bytes target = bytes_of(machine, to);
    const Bytes source = bytes_of(machine, from);
    if (extent.is_empty() || target.is_empty() || source.is_empty()) {
      return {};
    }
    return now_or_later(extent, [=] {
      each_row(extent, to, from, [&](std::size_t to_at, std::size_t from_at, std::size_t width) {
        copy_bytes(target, to_at, source, from_at, width);
      });
    });
  };
}

// The bytes as they are now, one row behind the other, in place of where they come from.
void stage(Call& c, const Extent& extent, Side& from) {
  Side packed;
  packed.pitch = extent.width;
  packed.slice = extent.width * extent.height;
  packed.span = packed.slice * extent.depth;
  packed.array = take_from_host(packed.span);
  packed.address = packed.array.address;
  packed.known = true;
  Bytes target;
  target.add(packed.array, 0, packed.span);
  const Bytes source = bytes_of(c.machine, from);
  c.lock.unlock();
  each_row(extent, packed, from, [&](std::size_t to_at, std::size_t from_at, std::size_t size) {
    copy_bytes(target, to_at, source, from_at, size);
  });
  c.lock.lock();
  from = packed;
}

void copy(Call& c, const CUDA_MEMCPY3D& what, CUstream handle, bool wait) {
  Stream* stream = &find_stream(c, handle);
  Located found;
  locate_both(c, what, found);
  if (found.extent.is_empty()) {
    return;
  }
  // Pageable host memory is read before the call returns, and written before it returns, as on hardware.
  const bool pageable_source = !found.from.known && !stream->capture;
  const bool pageable_target = !found.to.known && !stream->capture;
  GraphNode node;
  if (pageable_source && !wait) {
    stage(c, found.extent, found.from);
    stream = &find_stream(c, handle);  // looked up again: the lock was open
  }
  describe(c, what, found, node);
  enqueue(c, *stream, std::move(node));
  if (wait || pageable_target) {
    wait_for(c, stream->last);
  }
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

void copy_linear(Call& c, CUmemorytype to_type, std::uint64_t to, CUmemorytype from_type, std::uint64_t from,
                 std::size_t size, CUstream stream, bool wait) {
  return copy(c, linear(to_type, to, from_type, from, size), stream, wait);
}

void fill(Call& c, const CUDA_MEMSET_NODE_PARAMS& what, CUstream handle, bool wait) {
  Stream& stream = find_stream(c, handle);
  refuse_if(what.dst % what.elementSize != 0, CUDA_ERROR_INVALID_VALUE);
  if (what.width == 0 || what.height == 0) {
    return;
  }
  GraphNode node;
  plan_fill(c, what, node);
  enqueue(c, stream, std::move(node));
  if (wait) {
    wait_for(c, stream.last);
  }
}

void fill_row(Call& c, CUdeviceptr address, unsigned value, unsigned size, std::size_t count, CUstream stream,
              bool wait) {
  return fill(c, {address, 0, value, size, count, 1}, stream, wait);
}

void fill_rows(Call& c, CUdeviceptr address, std::size_t pitch, unsigned value, unsigned size, std::size_t width,
               std::size_t height, CUstream stream, bool wait) {
  return fill(c, {address, pitch, value, size, width, height}, stream, wait);
}

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

constexpr CUmemorytype on_host = CU_MEMORYTYPE_HOST;
constexpr CUmemorytype on_device = CU_MEMORYTYPE_DEVICE;
constexpr CUmemorytype anywhere = CU_MEMORYTYPE_UNIFIED;

}  // namespace

void plan_copy(Call& c, const CUDA_MEMCPY3D& copy, GraphNode& node) {
  Located found;
  locate_both(c, copy, found);
  return describe(c, copy, found, node);
}

void plan_fill(Call& c, const CUDA_MEMSET_NODE_PARAMS& what, GraphNode& node) {
  const std::size_t size = what.elementSize;
  refuse_if((size != 1 && size != 2 && size != 4) || what.width == 0 || what.height == 0, CUDA_ERROR_INVALID_VALUE);
  const Extent extent{what.width * size, what.height, 1};
  Side side;
  const Place place{on_device, what.dst, nullptr, 0, 0, 0, what.height > 1 ? what.pitch : 0, 0};
  const bool aligned = what.dst % size == 0 && (what.height == 1 || what.pitch % size == 0);
  refuse_if(!aligned || what.width > (std::size_t{1} << 40) || !locate(c, place, extent, true, side),
            CUDA_ERROR_INVALID_VALUE);
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.parameters = what;
  node.duration = start_ns;
  node.bytes = static_cast<double>(extent.width * extent.height);
  node.shows = side.shows;
  node.marks = [&machine = c.machine, side, extent] { carry_marks(machine, extent, side, nullptr); };
  const auto pages = promise(c, what.value == 0 ? Extent{} : extent, side);
  refuse_if(!pages, CUDA_ERROR_OUT_OF_MEMORY);
  node.effect = [&machine = c.machine, side, extent, value = what.value, size, pages]() -> Rest {
    const Bytes target = bytes_of(machine, side);
    if (target.is_empty()) {
      return {};
    }
    return now_or_later(extent, [=] {
      each_row(extent, side, side,
               [&](std::size_t at, std::size_t, std::size_t width) { fill_bytes(target, at, width, value, size); });
    });
  };
}

}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuMemcpy, Call& c, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return copy_linear(c, anywhere, to, anywhere, from, size, nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyAsync, Call& c, CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear(c, anywhere, to, anywhere, from, size, stream, false);
}
GCTX_SIM_CALL(cuMemcpyHtoD_v2, Call& c, CUdeviceptr to, const void* from, std::size_t size) {
  return copy_linear(c, on_device, to, on_host, number(from), size, nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyDtoH_v2, Call& c, void* to, CUdeviceptr from, std::size_t size) {
  return copy_linear(c, on_host, number(to), on_device, from, size, nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyDtoD_v2, Call& c, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return copy_linear(c, on_device, to, on_device, from, size, nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyHtoDAsync_v2, Call& c, CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  return copy_linear(c, on_device, to, on_host, number(from), size, stream, false);
}
GCTX_SIM_CALL(cuMemcpyDtoHAsync_v2, Call& c, void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear(c, on_host, number(to), on_device, from, size, stream, false);
}
GCTX_SIM_CALL(cuMemcpyDtoDAsync_v2, Call& c, CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return copy_linear(c, on_device, to, on_device, from, size, stream, false);
}

GCTX_SIM_CALL(cuMemcpyHtoA_v2, Call& c, CUarray to, std::size_t offset, const void* from, std::size_t size) {
  return copy(c, with_array_target(linear(on_host, 0, on_host, number(from), size), to, offset), nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyHtoAAsync_v2, Call& c, CUarray to, std::size_t offset, const void* from, std::size_t size,
              CUstream stream) {
  return copy(c, with_array_target(linear(on_host, 0, on_host, number(from), size), to, offset), stream, false);
}
GCTX_SIM_CALL(cuMemcpyAtoH_v2, Call& c, void* to, CUarray from, std::size_t offset, std::size_t size) {
  return copy(c, with_array_source(linear(on_host, number(to), on_host, 0, size), from, offset), nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyAtoHAsync_v2, Call& c, void* to, CUarray from, std::size_t offset, std::size_t size,
              CUstream stream) {
  return copy(c, with_array_source(linear(on_host, number(to), on_host, 0, size), from, offset), stream, false);
}
GCTX_SIM_CALL(cuMemcpyDtoA_v2, Call& c, CUarray to, std::size_t offset, CUdeviceptr from, std::size_t size) {
  return copy(c, with_array_target(linear(on_host, 0, on_device, from, size), to, offset), nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyAtoD_v2, Call& c, CUdeviceptr to, CUarray from, std::size_t offset, std::size_t size) {
  return copy(c, with_array_source(linear(on_device, to, on_host, 0, size), from, offset), nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyAtoA_v2, Call& c, CUarray to, std::size_t to_offset, CUarray from, std::size_t from_offset,
              std::size_t size) {
  const CUDA_MEMCPY3D copied = with_array_source(linear(on_host, 0, on_host, 0, size), from, from_offset);
  return copy(c, with_array_target(copied, to, to_offset), nullptr, true);
}

GCTX_SIM_CALL(cuMemcpy2D_v2, Call& c, const CUDA_MEMCPY2D* flat) {
  return copy(c, in_three_dimensions(*flat), nullptr, true);
}
GCTX_SIM_SAME(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2)
GCTX_SIM_CALL(cuMemcpy2DAsync_v2, Call& c, const CUDA_MEMCPY2D* flat, CUstream stream) {
  return copy(c, in_three_dimensions(*flat), stream, false);
}
GCTX_SIM_CALL(cuMemcpy3D_v2, Call& c, const CUDA_MEMCPY3D* box) { return copy(c, *box, nullptr, true); }
GCTX_SIM_CALL(cuMemcpy3DAsync_v2, Call& c, const CUDA_MEMCPY3D* box, CUstream stream) {
  return copy(c, *box, stream, false);
}

GCTX_SIM_CALL(cuMemcpyPeer, Call& c, CUdeviceptr to, const Context&, CUdeviceptr from, const Context&,
              std::size_t size) {
  return copy_linear(c, on_device, to, on_device, from, size, nullptr, true);
}
GCTX_SIM_CALL(cuMemcpyPeerAsync, Call& c, CUdeviceptr to, const Context&, CUdeviceptr from, const Context&,
              std::size_t size, const Stream&) {
  return copy_linear(c, on_device, to, on_device, from, size, reinterpret_cast<CUstream>(c.arguments[5]), false);
}

GCTX_SIM_CALL(cuMemsetD8_v2, Call& c, CUdeviceptr address, unsigned char value, std::size_t count) {
  return fill_row(c, address, value, 1, count, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD16_v2, Call& c, CUdeviceptr address, unsigned short value, std::size_t count) {
  return fill_row(c, address, value, 2, count, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD32_v2, Call& c, CUdeviceptr address, unsigned value, std::size_t count) {
  return fill_row(c, address, value, 4, count, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD8Async, Call& c, CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream) {
  return fill_row(c, address, value, 1, count, stream, false);
}
GCTX_SIM_CALL(cuMemsetD16Async, Call& c, CUdeviceptr address, unsigned short value, std::size_t count,
              CUstream stream) {
  return fill_row(c, address, value, 2, count, stream, false);
}
GCTX_SIM_CALL(cuMemsetD32Async, Call& c, CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  return fill_row(c, address, value, 4, count, stream, false);
}
GCTX_SIM_CALL(cuMemsetD2D8_v2, Call& c, CUdeviceptr address, std::size_t pitch, unsigned char value, std::size_t width,
              std::size_t height) {
  return fill_rows(c, address, pitch, value, 1, width, height, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD2D16_v2, Call& c, CUdeviceptr address, std::size_t pitch, unsigned short value,
              std::size_t width, std::size_t height) {
  return fill_rows(c, address, pitch, value, 2, width, height, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD2D32_v2, Call& c, CUdeviceptr address, std::size_t pitch, unsigned value, std::size_t width,
              std::size_t height) {
  return fill_rows(c, address, pitch, value, 4, width, height, nullptr, true);
}
GCTX_SIM_CALL(cuMemsetD2D8Async, Call& c, CUdeviceptr address, std::size_t pitch, unsigned char value,
              std::size_t width, std::size_t height, CUstream stream) {
  return fill_rows(c, address, pitch, value, 1, width, height, stream, false);
}
GCTX_SIM_CALL(cuMemsetD2D16Async, Call& c, CUdeviceptr address, std::size_t pitch, unsigned short value,
              std::size_t width, std::size_t height, CUstream stream) {
  return fill_rows(c, address, pitch, value, 2, width, height, stream, false);
}
GCTX_SIM_CALL(cuMemsetD2D32Async, Call& c, CUdeviceptr address, std::size_t pitch, unsigned value, std::size_t width,
              std::size_t height, CUstream stream) {
  return fill_rows(c, address, pitch, value, 4, width, height, stream, false);
}
