// Copies and fills: they really happen, at the virtual time at which their stream gets to them.
#include "calls/copies.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
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
  Storage staged;             // bytes that were read when the call was made
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
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
  std::size_t pitch = 0;
  std::size_t height = 0;
};

Place source_of(const CUDA_MEMCPY3D& copy) {
  const bool host = copy.srcMemoryType == CU_MEMORYTYPE_HOST;
  return {copy.srcMemoryType, host ? reinterpret_cast<std::uint64_t>(copy.srcHost) : copy.srcDevice,
          copy.srcXInBytes,   copy.srcY,
          copy.srcZ,          copy.srcPitch,
          copy.srcHeight};
}

Place target_of(const CUDA_MEMCPY3D& copy) {
  const bool host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  return {copy.dstMemoryType, host ? reinterpret_cast<std::uint64_t>(copy.dstHost) : copy.dstDevice,
          copy.dstXInBytes,   copy.dstY,
          copy.dstZ,          copy.dstPitch,
          copy.dstHeight};
}

std::size_t span_of(const Extent& extent, const Side& side) {
  return (extent.depth - 1) * side.slice + (extent.height - 1) * side.pitch + extent.width;
}

// Where the bytes are; refused if they are not where the call says.
Side locate(Call& c, const Place& place, const Extent& extent, bool writes) {
  refuse_if(place.type == CU_MEMORYTYPE_ARRAY, CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(place.type < CU_MEMORYTYPE_HOST || place.type > CU_MEMORYTYPE_UNIFIED || place.address == 0,
            CUDA_ERROR_INVALID_VALUE);
  constexpr std::size_t limit = std::size_t{1} << 40;  // beyond it, products of what follows could overflow
  const bool huge = std::max({place.x, place.y, place.z, place.pitch, place.height, extent.width}) > limit ||
                    std::max(extent.height, extent.depth) > (std::size_t{1} << 20) || place.pitch > (1U << 31);
  refuse_if(huge && extent.height * extent.depth > 1, CUDA_ERROR_INVALID_VALUE);
  // One row needs no pitch.
  refuse_if(place.pitch != 0 && (place.pitch < extent.width || extent.width + place.x > place.pitch),
            CUDA_ERROR_INVALID_VALUE);
  refuse_if(place.height != 0 && place.height < extent.height, CUDA_ERROR_INVALID_VALUE);
  Side side;
  side.pitch = place.pitch != 0 ? place.pitch : extent.width;
  side.slice = side.pitch * (place.height != 0 ? place.height : extent.height);
  side.address = place.address + place.z * side.slice + place.y * side.pitch + place.x;
  side.span = span_of(extent, side);
  if (const Allocation* found = find_allocation(c.machine, side.address, 1)) {
    // A range that begins in known memory and runs out of it is an error on either side.
    refuse_if(bytes_at(c.machine, side.address, side.span).is_empty() || !is_reachable(*found, writes),
              CUDA_ERROR_INVALID_VALUE);
    if (found->freeing) {
      c.note(Misuse::use_after_destroy, side.address, "the memory was freed before in another order");
    }
    side.known = true;
    side.device = found->type == CU_MEMORYTYPE_DEVICE;
    side.shows = !side.device || found->managed;
    return side;
  }
  if (c.machine.freed.contains(side.address) && place.type != CU_MEMORYTYPE_HOST) {
    c.note(Misuse::use_after_destroy, side.address, "the memory is freed");
    refuse(CUDA_ERROR_INVALID_VALUE);
  }
  refuse_if(place.type == CU_MEMORYTYPE_DEVICE || is_of_a_device(c.machine, side.address), CUDA_ERROR_INVALID_VALUE);
  side.shows = true;
  return side;
}

// The memory may have been freed on another stream meanwhile: then there are none, and nothing is copied.
Bytes bytes_of(Machine& machine, const Side& side) {
  if (side.known && side.staged.address == 0) {
    return bytes_at(machine, side.address, side.span);
  }
  Bytes found;
  Storage own = side.staged;
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

// Moves the marks of the bytes along with the bytes. The work fails where the host reads marked bytes. Bytes without a
// source are known.
void carry_marks(Machine& machine, Work& work, const Extent& extent, const Side& to, const Side* from) {
  Unknown& unknown = machine.unknown;
  const Bytes target = bytes_of(machine, to);
  const Bytes source = from == nullptr ? Bytes{} : bytes_of(machine, *from);
  std::string read;
  each_row(extent, to, from == nullptr ? to : *from, [&](std::size_t to_at, std::size_t from_at, std::size_t width) {
    const std::vector<MarkTable::Part> parts = unknown.parts(source, from_at, width);
    unknown.clear(target, to_at, width);
    for (const MarkTable::Part& part : parts) {
      read = part.kernel;
      if (to.known) {
        unknown.mark(target, to_at + part.offset, part.size, part.kernel);
      }
    }
  });
  if (const FailurePtr failure = to.shows && !read.empty() ? unknown.read(read) : nullptr) {
    work.fail(failure);
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

Located locate_both(Call& c, const CUDA_MEMCPY3D& copy) {
  Located found{{copy.WidthInBytes, copy.Height, copy.Depth}, {}, {}};
  if (!found.extent.is_empty()) {
    found.to = locate(c, target_of(copy), found.extent, true);
    found.from = locate(c, source_of(copy), found.extent, false);
  }
  return found;
}

void describe(Call& c, const CUDA_MEMCPY3D& copy, const Located& found, GraphNode& node) {
  const Side& to = found.to;
  const Side& from = found.from;
  const Extent& extent = found.extent;
  const std::size_t size = extent.width * extent.height * extent.depth;
  node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  node.parameters.memcpy.copyParams = copy;
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
  node.marks = [&machine = c.machine, to, from, extent](Work& work) { carry_marks(machine, work, extent, to, &from); };
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
  packed.staged = take_from_host(packed.span);
  packed.address = packed.staged.address;
  packed.known = true;
  Bytes target;
  target.add(packed.staged, 0, packed.span);
  const Bytes source = bytes_of(c.machine, from);
  c.lock.unlock();
  each_row(extent, packed, from, [&](std::size_t to_at, std::size_t from_at, std::size_t size) {
    copy_bytes(target, to_at, source, from_at, size);
  });
  c.lock.lock();
  from = packed;
}

// Where a copy or a fill goes: onto the stream that the function names, or onto the default stream of the current
// context, and is waited for.
struct Queue {
  Queue() = default;
  Queue(CUstream stream) : handle(stream), waits(false) {}
  CUstream handle = nullptr;
  bool waits = true;
};

void copy(Call& c, const CUDA_MEMCPY3D& what, Queue queue) {
  Stream* stream = &find_stream(c, queue.handle);
  Located found = locate_both(c, what);
  if (found.extent.is_empty()) {
    return;
  }
  // Pageable host memory is read before the call returns, and written before it returns, as on hardware.
  const bool pageable_source = !found.from.known && !stream->capture;
  const bool pageable_target = !found.to.known && !stream->capture;
  GraphNode node;
  if (pageable_source && !queue.waits) {
    stage(c, found.extent, found.from);
    stream = &find_stream(c, queue.handle);  // looked up again: the lock was open
  }
  describe(c, what, found, node);
  enqueue(c, *stream, std::move(node));
  if (queue.waits || pageable_target) {
    wait_for(c, stream->last);
  }
}

// One end of a copy of one row of bytes.
struct End {
  CUmemorytype type;
  std::uint64_t address;
};

CUDA_MEMCPY3D row_of(const End& to, const End& from, std::size_t size) {
  const auto pointer = [](const End& end) { return reinterpret_cast<void*>(end.address); };
  return {0, 0, 0,       0,           from.type,  pointer(from), from.address, nullptr, nullptr, 0,    0, 0, 0,
          0, 0, to.type, pointer(to), to.address, nullptr,       nullptr,      0,       0,       size, 1, 1};
}

void copy_row(Call& c, const End& to, const End& from, std::size_t size, Queue queue) {
  return copy(c, row_of(to, from, size), queue);
}

// As a function of the header names it: a number or a pointer.
struct Address {
  Address(CUdeviceptr address) : number(address) {}
  Address(const void* address) : number(reinterpret_cast<std::uint64_t>(address)) {}
  std::uint64_t number;
};

constexpr CUmemorytype on_host = CU_MEMORYTYPE_HOST;
constexpr CUmemorytype on_device = CU_MEMORYTYPE_DEVICE;
constexpr CUmemorytype anywhere = CU_MEMORYTYPE_UNIFIED;

// The copies and fills of the header, by what they are given.
template <CUmemorytype to_type, CUmemorytype from_type>
void copy_linear(Call& c, Address to, Address from, std::size_t size, Queue queue) {
  return copy_row(c, {to_type, to.number}, {from_type, from.number}, size, queue);
}
void copy_peer(Call& c, CUdeviceptr to, const Context&, CUdeviceptr from, const Context&, std::size_t size) {
  return copy_row(c, {on_device, to}, {on_device, from}, size, {});
}
void copy_peer_on(Call& c, CUdeviceptr to, const Context&, CUdeviceptr from, const Context&, std::size_t size,
                  const Stream&) {
  return copy_row(c, {on_device, to}, {on_device, from}, size, reinterpret_cast<CUstream>(c.arguments[5]));
}
void copy_flat(Call& c, const CUDA_MEMCPY2D* flat, Queue queue) {
  const CUDA_MEMCPY2D& f = *flat;
  return copy(
      c, {f.srcXInBytes,  f.srcY,   0, 0, f.srcMemoryType, f.srcHost, f.srcDevice, f.srcArray, nullptr, f.srcPitch, 0,
          f.dstXInBytes,  f.dstY,   0, 0, f.dstMemoryType, f.dstHost, f.dstDevice, f.dstArray, nullptr, f.dstPitch, 0,
          f.WidthInBytes, f.Height, 1},
      queue);
}
void copy_box(Call& c, const CUDA_MEMCPY3D* box, Queue queue) { return copy(c, *box, queue); }

// `failed` is not given by newer versions.
void copy_batch(Call& c, const CopyBatch& batch, std::size_t* failed, CUstream handle) {
  // Documented: the stream must not be the legacy default stream. Assumed: the code.
  refuse_if(handle == nullptr || handle == CU_STREAM_LEGACY, CUDA_ERROR_INVALID_VALUE);
  std::size_t number = SIZE_MAX;
  give(failed, number);
  GraphNode node;
  try {
    plan_batch(c, batch, node, number);
  } catch (const Refused&) {
    give(failed, number);
    throw;
  }
  Stream& stream = find_stream(c, handle);
  if (!stream.capture || c.version() >= 13050) {
    return enqueue(c, stream, std::move(node));
  }
  // Before 13.5, graphs have no node for a batch: each copy is a node. Assumed.
  for (std::size_t i = 0; i < batch.sizes.size(); ++i) {
    copy_row(c, {anywhere, batch.targets[i]}, {anywhere, batch.sources[i]}, batch.sizes[i], handle);
  }
}
void copy_batch_v1(Call& c, CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                   CUmemcpyAttributes* attributes, std::size_t* firsts, std::size_t attribute_count,
                   std::size_t* failed, const Stream&) {
  return copy_batch(c, read_batch({count, to, from, sizes, attributes, firsts, attribute_count, {}}), failed,
                    reinterpret_cast<CUstream>(c.arguments[8]));
}
void copy_batch_v2(Call& c, CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                   CUmemcpyAttributes* attributes, std::size_t* firsts, std::size_t attribute_count, const Stream&) {
  return copy_batch(c, read_batch({count, to, from, sizes, attributes, firsts, attribute_count, {}}), nullptr,
                    reinterpret_cast<CUstream>(c.arguments[7]));
}

void fill(Call& c, const CUDA_MEMSET_NODE_PARAMS_v2& what, Queue queue) {
  Stream& stream = find_stream(c, queue.handle);
  refuse_if(what.dst % what.elementSize != 0, CUDA_ERROR_INVALID_VALUE);
  if (what.width == 0 || what.height == 0) {
    return;
  }
  GraphNode node;
  plan_fill(c, what, node);
  enqueue(c, stream, std::move(node));
  if (queue.waits) {
    wait_for(c, stream.last);
  }
}
template <class Element>
void fill_row(Call& c, CUdeviceptr address, Element value, std::size_t count, Queue queue) {
  return fill(c, {address, 0, value, sizeof value, count, 1, nullptr}, queue);
}
template <class Element>
void fill_rows(Call& c, CUdeviceptr address, std::size_t pitch, Element value, std::size_t width, std::size_t height,
               Queue queue) {
  return fill(c, {address, pitch, value, sizeof value, width, height, nullptr}, queue);
}

}  // namespace

void plan_copy(Call& c, const CUDA_MEMCPY3D& copy, GraphNode& node) {
  return describe(c, copy, locate_both(c, copy), node);
}

CopyBatch read_batch(const CUDA_MEMCPY_BATCH_NODE_PARAMS& batch) {
  const bool is_complete = batch.dsts && batch.srcs && batch.sizes && batch.attrs && batch.attrsIdxs;
  refuse_if(!is_complete || batch.count == 0 || batch.numAttrs == 0 || batch.numAttrs > batch.count,
            CUDA_ERROR_INVALID_VALUE);
  const std::span attributes(batch.attrs, batch.numAttrs);
  const std::span firsts(batch.attrsIdxs, batch.numAttrs);
  const auto is_allowed = [](const CUmemcpyAttributes& one) {
    return one.srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
           one.srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           one.flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  };
  const bool is_ascending = std::ranges::adjacent_find(firsts, std::ranges::greater_equal{}) == firsts.end();
  refuse_if(firsts.front() != 0 || firsts.back() >= batch.count || !is_ascending ||
                !std::ranges::all_of(attributes, is_allowed),
            CUDA_ERROR_INVALID_VALUE);
  return {{batch.dsts, batch.dsts + batch.count},
          {batch.srcs, batch.srcs + batch.count},
          {batch.sizes, batch.sizes + batch.count},
          {attributes.begin(), attributes.end()},
          {firsts.begin(), firsts.end()}};
}

void plan_batch(Call& c, CopyBatch batch, GraphNode& node, std::size_t& failed) {
  std::vector<GraphNode> copies;
  std::size_t attribute = 0;
  for (std::size_t i = 0; i < batch.sizes.size(); ++i) {
    while (attribute + 1 < batch.firsts.size() && batch.firsts[attribute + 1] <= i) {
      ++attribute;
    }
    failed = i;
    const CUDA_MEMCPY3D row = row_of({anywhere, batch.targets[i]}, {anywhere, batch.sources[i]}, batch.sizes[i]);
    Located found = locate_both(c, row);
    if (found.extent.is_empty()) {
      continue;
    }
    // Memory that may go when the call returns is read now.
    if (batch.attributes[attribute].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) {
      stage(c, found.extent, found.from);
    }
    describe(c, row, found, copies.emplace_back());
  }
  failed = SIZE_MAX;
  for (const GraphNode& copy : copies) {
    node.duration += copy.duration;
    node.bytes += copy.bytes;
    node.shows = node.shows || copy.shows;
    // The engines differ where the copies do: the batch takes that of the first.
    node.engine = node.engine == Engine::none ? copy.engine : node.engine;
  }
  node.marks = [copies](Work& work) {
    for (const GraphNode& copy : copies) {
      copy.marks(work);
    }
  };
  node.effect = [copies]() -> Rest {
    std::vector<Rest> rests;
    for (const GraphNode& copy : copies) {
      if (Rest rest = copy.effect()) {
        rests.push_back(std::move(rest));
      }
    }
    if (rests.empty()) {
      return {};
    }
    return [rests = std::move(rests)] { std::ranges::for_each(rests, [](const Rest& rest) { rest(); }); };
  };
  node.type = CU_GRAPH_NODE_TYPE_MEMCPY_BATCH;
  node.batch = std::move(batch);
}

void plan_fill(Call& c, const CUDA_MEMSET_NODE_PARAMS_v2& what, GraphNode& node) {
  const std::size_t size = what.elementSize;
  refuse_if((size != 1 && size != 2 && size != 4) || what.width == 0 || what.height == 0, CUDA_ERROR_INVALID_VALUE);
  const bool aligned = what.dst % size == 0 && (what.height == 1 || what.pitch % size == 0);
  refuse_if(!aligned || what.width > (std::size_t{1} << 40), CUDA_ERROR_INVALID_VALUE);
  const Extent extent{what.width * size, what.height, 1};
  const Side side = locate(c, {on_device, what.dst, 0, 0, 0, what.height > 1 ? what.pitch : 0, 0}, extent, true);
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.parameters.memset = what;
  node.duration = start_ns;
  node.bytes = static_cast<double>(extent.width * extent.height);
  node.shows = side.shows;
  node.marks = [&machine = c.machine, side, extent](Work& work) { carry_marks(machine, work, extent, side, nullptr); };
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

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_ROW(cuMemcpy, copy_linear<anywhere, anywhere>)
SOFTWARE_DRIVER_ROW(cuMemcpyAsync, copy_linear<anywhere, anywhere>)
SOFTWARE_DRIVER_ROW(cuMemcpyBatchAsync, copy_batch_v1)
SOFTWARE_DRIVER_ROW(cuMemcpyBatchAsync_v2, copy_batch_v2)
SOFTWARE_DRIVER_ROW(cuMemcpyHtoD_v2, copy_linear<on_device, on_host>)
SOFTWARE_DRIVER_ROW(cuMemcpyHtoDAsync_v2, copy_linear<on_device, on_host>)
SOFTWARE_DRIVER_ROW(cuMemcpyDtoH_v2, copy_linear<on_host, on_device>)
SOFTWARE_DRIVER_ROW(cuMemcpyDtoHAsync_v2, copy_linear<on_host, on_device>)
SOFTWARE_DRIVER_ROW(cuMemcpyDtoD_v2, copy_linear<on_device, on_device>)
SOFTWARE_DRIVER_ROW(cuMemcpyDtoDAsync_v2, copy_linear<on_device, on_device>)
SOFTWARE_DRIVER_ROW(cuMemcpyPeer, copy_peer)
SOFTWARE_DRIVER_ROW(cuMemcpyPeerAsync, copy_peer_on)
SOFTWARE_DRIVER_ROW(cuMemcpy2D_v2, copy_flat)
SOFTWARE_DRIVER_ROW(cuMemcpy2DUnaligned_v2, copy_flat)
SOFTWARE_DRIVER_ROW(cuMemcpy2DAsync_v2, copy_flat)
SOFTWARE_DRIVER_ROW(cuMemcpy3D_v2, copy_box)
SOFTWARE_DRIVER_ROW(cuMemcpy3DAsync_v2, copy_box)
SOFTWARE_DRIVER_ROW(cuMemsetD8_v2, fill_row<unsigned char>)
SOFTWARE_DRIVER_ROW(cuMemsetD8Async, fill_row<unsigned char>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D8_v2, fill_rows<unsigned char>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D8Async, fill_rows<unsigned char>)
SOFTWARE_DRIVER_ROW(cuMemsetD16_v2, fill_row<unsigned short>)
SOFTWARE_DRIVER_ROW(cuMemsetD16Async, fill_row<unsigned short>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D16_v2, fill_rows<unsigned short>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D16Async, fill_rows<unsigned short>)
SOFTWARE_DRIVER_ROW(cuMemsetD32_v2, fill_row<unsigned>)
SOFTWARE_DRIVER_ROW(cuMemsetD32Async, fill_row<unsigned>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D32_v2, fill_rows<unsigned>)
SOFTWARE_DRIVER_ROW(cuMemsetD2D32Async, fill_rows<unsigned>)
