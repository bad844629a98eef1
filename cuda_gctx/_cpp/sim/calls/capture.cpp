// Stream capture: from begin to end, and what disturbs it.
#include <algorithm>

#include "sim/calls/entry.hpp"

namespace gctx::sim {

bool disturbs_capture(Call& c, const Context* context) {
  bool any = false;
  if (c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  c.machine.streams.each([&](Stream& stream) {
    if (!stream.capture || !stream.capture->is_active()) return;
    if (context != nullptr && stream.context != context) return;
    Capture& capture = *stream.capture;
    const bool own = capture.thread() == c.thread.serial;
    const bool disturbed =
        (capture.mode() == CU_STREAM_CAPTURE_MODE_GLOBAL && c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) ||
        (capture.mode() != CU_STREAM_CAPTURE_MODE_RELAXED && own);
    if (!disturbed) return;
    capture.invalidate();
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
  // The arrays that the caller reads live until the next call of the thread, as the header allows.
  thread_local std::vector<CUgraphNode> dependencies;
  thread_local std::vector<CUgraphEdgeData> edges;
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Capture* capture = stream.capture.get();
  *out.status = capture == nullptr     ? CU_STREAM_CAPTURE_STATUS_NONE
                : capture->is_active() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (*out.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (out.id != nullptr) *out.id = capture->id();
  if (out.graph != nullptr) *out.graph = as_handle<CUgraph>(capture->graph());
  dependencies.clear();
  for (const GraphNode* node : stream.capture_tail) dependencies.push_back(as_handle<CUgraphNode>(*node));
  if (out.dependencies != nullptr) *out.dependencies = dependencies.data();
  // Recorded: one datum for each dependency, all zero.
  edges.assign(dependencies.size(), CUgraphEdgeData{});
  if (out.edges != nullptr) *out.edges = edges.data();
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
  std::vector<const GraphNode*> open(capture.origin().capture_tail.begin(), capture.origin().capture_tail.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::all_of(capture.graph().nodes.begin(), capture.graph().nodes.end(),
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
    Graph& kept = c.machine.graphs.add(std::move(graph));
    Capture::join(std::make_shared<Capture>(kept, *stream, mode, c.thread.serial), *stream);
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
    if (&capture->origin() != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode() != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread() != c.thread.serial) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    result = !capture->is_active()  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : !is_joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
             : out == nullptr       ? CUDA_ERROR_INVALID_VALUE
                                    : CUDA_SUCCESS;
    const Graph* graph = capture->end(c.machine, result == CUDA_SUCCESS);
    if (out != nullptr) *out = graph == nullptr ? nullptr : as_handle<CUgraph>(*graph);
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
