// Copies and fills: they really happen, at the virtual time at which their stream gets to them.
#include <cstring>

#include "sim/calls/entry.hpp"

namespace gctx::sim {
namespace {

// Assumed: the rate of the link to the host, in bytes per nanosecond, and the time that a copy takes to begin.
constexpr std::uint64_t host_rate = 25;
constexpr std::uint64_t start_ns = 1'000;

enum class Side { device, host, either };

struct Place {
  std::uint64_t address = 0;
  Side side = Side::either;
};

struct Span {
  std::uint64_t address = 0;
  bool known = false;   // memory of the driver: its bounds are checked
  bool device = false;  // in device memory
};

// Where the bytes are, or false if they are not where the call says.
bool locate(Call& c, const Place& place, std::size_t size, Span& span) {
  span.address = place.address;
  if (place.address == 0) return false;
  const Allocation* found = find_allocation(c.machine, place.address, size);
  if (found != nullptr) {
    if (found->freeing) {
      c.note(Misuse::use_after_destroy, place.address, "the memory was freed before in another order");
    }
    span.known = true;
    span.device = found->type == CU_MEMORYTYPE_DEVICE;
    return true;
  }
  // A range that begins in known memory and runs out of it is an error on either side.
  if (find_allocation(c.machine, place.address, 1) != nullptr) return false;
  if (c.machine.freed.contains(place.address) && place.side != Side::host) {
    c.note(Misuse::use_after_destroy, place.address, "the memory is freed");
    return false;
  }
  return place.side != Side::device;
}

bool is_there(Machine& machine, const Span& span, std::size_t size) {
  return !span.known || find_allocation(machine, span.address, size) != nullptr;
}

GraphNode copy_node(Call& c, const Span& to, const Span& from, std::size_t size, bool snapshot) {
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  node.duration = start_ns;
  if (to.device && from.device) {
    // Read and written.
    node.engine = Engine::in_device;
    node.bytes = 2.0 * static_cast<double>(size);
  } else {
    node.engine = to.device ? Engine::to_device : from.device ? Engine::to_host : Engine::none;
    node.duration += size / host_rate;
  }
  std::shared_ptr<std::vector<unsigned char>> staged;
  if (snapshot) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(from.address);
    staged = std::make_shared<std::vector<unsigned char>>(bytes, bytes + size);
  }
  node.effect = [&machine = c.machine, to, from, size, staged] {
    // The memory may have been freed on another stream meanwhile: then nothing is copied rather than the process
    // harmed.
    if (!is_there(machine, to, size) || !is_there(machine, from, size)) return;
    const void* source = staged ? static_cast<const void*>(staged->data()) : reinterpret_cast<void*>(from.address);
    std::memmove(reinterpret_cast<void*>(to.address), source, size);
  };
  return node;
}

// Looked up again: queueing may have opened the lock, and another thread may have destroyed the stream.
CUresult wait_for_last(Call& c, CUstream handle) {
  CUresult result = CUDA_SUCCESS;
  const Stream* stream = find_stream(c, handle, result);
  return stream == nullptr ? result : wait_for(c, stream->last);
}

CUresult copy(Call& c, const Place& to, const Place& from, std::size_t size, CUstream handle, bool wait) {
  CUresult result = CUDA_SUCCESS;
  Stream* stream = find_stream(c, handle, result);
  if (stream == nullptr) return result;
  if (wait && disturbs_capture(c)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (size == 0) return CUDA_SUCCESS;
  Span target;
  Span source;
  if (!locate(c, to, size, target) || !locate(c, from, size, source)) return CUDA_ERROR_INVALID_VALUE;
  // Pageable host memory is read before the call returns, and written before it returns, as on hardware.
  const bool pageable_source = !source.known && !stream->capture;
  const bool pageable_target = !target.known && !stream->capture;
  result = enqueue(c, *stream, copy_node(c, target, source, size, pageable_source && !wait));
  return result == CUDA_SUCCESS && (wait || pageable_target) ? wait_for_last(c, handle) : result;
}

template <class Value>
CUresult fill(Call& c, CUdeviceptr address, Value value, std::size_t count, CUstream handle, bool wait) {
  CUresult result = CUDA_SUCCESS;
  Stream* stream = find_stream(c, handle, result);
  if (stream == nullptr) return result;
  if (wait && disturbs_capture(c)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (address % sizeof(Value) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  Span span;
  if (!locate(c, {address, Side::device}, count * sizeof(Value), span)) return CUDA_ERROR_INVALID_VALUE;
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.duration = start_ns;
  node.bytes = static_cast<double>(count * sizeof(Value));
  node.effect = [&machine = c.machine, span, value, count] {
    if (!is_there(machine, span, count * sizeof(Value))) return;
    auto* values = reinterpret_cast<Value*>(span.address);
    std::fill(values, values + count, value);
  };
  result = enqueue(c, *stream, std::move(node));
  return result == CUDA_SUCCESS && wait ? wait_for_last(c, handle) : result;
}

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return call<Fn::cuMemcpy>(
      [&](Call& c) { return copy(c, {to, Side::either}, {from, Side::either}, size, nullptr, true); });
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyAsync>(
      [&](Call& c) { return copy(c, {to, Side::either}, {from, Side::either}, size, stream, false); });
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t size) {
  return call<Fn::cuMemcpyHtoD_v2>(
      [&](Call& c) { return copy(c, {to, Side::device}, {number(from), Side::host}, size, nullptr, true); });
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t size) {
  return call<Fn::cuMemcpyDtoH_v2>(
      [&](Call& c) { return copy(c, {number(to), Side::host}, {from, Side::device}, size, nullptr, true); });
}
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return call<Fn::cuMemcpyDtoD_v2>(
      [&](Call& c) { return copy(c, {to, Side::device}, {from, Side::device}, size, nullptr, true); });
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyHtoDAsync_v2>(
      [&](Call& c) { return copy(c, {to, Side::device}, {number(from), Side::host}, size, stream, false); });
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyDtoHAsync_v2>(
      [&](Call& c) { return copy(c, {number(to), Side::host}, {from, Side::device}, size, stream, false); });
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyDtoDAsync_v2>(
      [&](Call& c) { return copy(c, {to, Side::device}, {from, Side::device}, size, stream, false); });
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              std::size_t size) {
  return call<Fn::cuMemcpyPeer>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (find_context(c, to_context, result) == nullptr || find_context(c, from_context, result) == nullptr) {
      return result;
    }
    return copy(c, {to, Side::device}, {from, Side::device}, size, nullptr, true);
  });
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   std::size_t size, CUstream stream) {
  return call<Fn::cuMemcpyPeerAsync>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (find_context(c, to_context, result) == nullptr || find_context(c, from_context, result) == nullptr) {
      return result;
    }
    return copy(c, {to, Side::device}, {from, Side::device}, size, stream, false);
  });
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr address, unsigned char value, std::size_t count) {
  return call<Fn::cuMemsetD8_v2>([&](Call& c) { return fill(c, address, value, count, nullptr, true); });
}
CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr address, unsigned short value, std::size_t count) {
  return call<Fn::cuMemsetD16_v2>([&](Call& c) { return fill(c, address, value, count, nullptr, true); });
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr address, unsigned value, std::size_t count) {
  return call<Fn::cuMemsetD32_v2>([&](Call& c) { return fill(c, address, value, count, nullptr, true); });
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream) {
  return call<Fn::cuMemsetD8Async>([&](Call& c) { return fill(c, address, value, count, stream, false); });
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr address, unsigned short value, std::size_t count, CUstream stream) {
  return call<Fn::cuMemsetD16Async>([&](Call& c) { return fill(c, address, value, count, stream, false); });
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  return call<Fn::cuMemsetD32Async>([&](Call& c) { return fill(c, address, value, count, stream, false); });
}

}  // extern "C"
