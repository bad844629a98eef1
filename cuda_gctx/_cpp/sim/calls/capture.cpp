// Stream capture: from begin to end, and what disturbs it.
#include <algorithm>

#include "sim/calls/entry.hpp"

namespace gctx::sim {

void invalidate_capture(Capture& capture) { capture.invalid = true; }

void leave_capture(Stream& stream) {
  if (stream.capture) stream.capture->streams.erase(&stream);
  stream.capture.reset();
  stream.capture_tail.clear();
}

bool disturbs_capture(Call& c, const Context* context) {
  bool any = false;
  if (c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  c.machine.streams.each([&](Stream& stream) {
    if (!stream.capture || stream.capture->invalid) return;
    if (context != nullptr && stream.context != context) return;
    const Capture& capture = *stream.capture;
    const bool own = capture.thread == c.thread.serial;
    const bool disturbed =
        (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) ||
        (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && own);
    if (!disturbed) return;
    invalidate_capture(*stream.capture);
    any = true;
  });
  return any;
}

namespace {

struct CaptureInfoOut {
  CUstreamCaptureStatus* status;
  cuuint64_t* id;
  CUgraph* graph;
  const CUgraphNode** dependencies;
  const CUgraphEdgeData** edges;
  std::size_t* count;
};

CUresult tell_capture(const Stream& stream, const CaptureInfoOut& out) {
  // The array that the caller reads lives until the next call of the thread, as the header allows.
  thread_local std::vector<CUgraphNode> dependencies;
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Capture* capture = stream.capture.get();
  *out.status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*out.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph != nullptr) *out.graph = as_handle<CUgraph>(*capture->graph);
  dependencies.clear();
  for (const GraphNode* node : stream.capture_tail) dependencies.push_back(as_handle<CUgraphNode>(*node));
  if (out.dependencies != nullptr) *out.dependencies = dependencies.data();
  if (out.edges != nullptr) *out.edges = nullptr;
  if (out.count != nullptr) *out.count = dependencies.size();
  return CUDA_SUCCESS;
}

template <Fn function>
CUresult capture_info(CUstream handle, const CaptureInfoOut& out) {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Stream* stream = find_stream(c, handle, result);
    return stream == nullptr ? result : tell_capture(*stream, out);
  });
}

// Every node must be reachable from where the origin stream ends: other streams have to be joined.
bool is_joined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<const GraphNode*> open(capture.origin->capture_tail.begin(), capture.origin->capture_tail.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::all_of(capture.graph->nodes.begin(), capture.graph->nodes.end(),
                     [&](const GraphNode* node) { return reached.contains(node); });
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return call<Fn::cuStreamBeginCapture_v2>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, handle, result);
    if (stream == nullptr) return result;
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->default_stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto graph = std::make_unique<Graph>();
    c.machine.made(*graph);
    graph->hidden = true;  // until the capture ends and hands it out
    auto capture = std::make_shared<Capture>();
    capture->id = next_id();
    capture->graph = &c.machine.graphs.add(std::move(graph));
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = c.thread.serial;
    capture->streams.insert(stream);
    stream->capture = std::move(capture);
    stream->capture_tail.clear();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* out) {
  return call<Fn::cuStreamEndCapture>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, handle, result);
    if (stream == nullptr) return result;
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != c.thread.serial) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    result = capture->invalid       ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : !is_joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
             : out == nullptr       ? CUDA_ERROR_INVALID_VALUE
                                    : CUDA_SUCCESS;
    const std::set<Stream*> streams = capture->streams;
    for (Stream* one : streams) leave_capture(*one);
    if (result == CUDA_SUCCESS) {
      capture->graph->hidden = false;
      return give(out, as_handle<CUgraph>(*capture->graph));
    }
    for (GraphNode* node : capture->graph->nodes) c.machine.graph_nodes.remove(*node);
    c.machine.graphs.remove(*capture->graph);
    capture->graph = nullptr;
    if (out != nullptr) *out = nullptr;
    return result;
  });
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info<Fn::cuStreamIsCapturing>(handle, {status, nullptr, nullptr, nullptr, nullptr, nullptr});
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  return capture_info<Fn::cuStreamGetCaptureInfo_v2>(handle, {status, id, graph, dependencies, nullptr, count});
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies,
                                           const CUgraphEdgeData** edges, std::size_t* count) {
  return capture_info<Fn::cuStreamGetCaptureInfo_v3>(handle, {status, id, graph, dependencies, edges, count});
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call<Fn::cuThreadExchangeStreamCaptureMode>([&](Call& c) {
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, c.thread.capture_mode);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
