// Stream capture: from begin to end, and what disturbs it.
#include <algorithm>

#include "calls/graph_nodes.hpp"

namespace software_driver {
namespace {

void tell_capture(Call&, const Stream& stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                  const CUgraphNode** nodes, const CUgraphEdgeData** data, std::size_t* count) {
  // The arrays that the caller reads live until the next call of the thread, as the header allows.
  thread_local std::vector<CUgraphNode> dependencies;
  thread_local std::vector<CUgraphEdgeData> edges;
  const Capture* capture = stream.capture.get();
  *status = capture == nullptr     ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->is_active() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                   : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return;
  }
  dependencies.clear();
  edges.clear();
  for (const Edge& edge : stream.capture_tail) {
    dependencies.push_back(as_handle<CUgraphNode>(*edge.from));
    edges.push_back(edge.data);
  }
  give(id, capture->id);
  give(graph, capture->graph());
  give(nodes, dependencies.data());
  give(data, edges.data());  // recorded: one datum for each dependency
  give(count, dependencies.size());
}

// Every node that was captured must be reachable from where the origin stream ends: other streams have to be joined.
bool is_joined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<Edge> open = capture.origin().capture_tail;
  while (!open.empty()) {
    const GraphNode* node = open.back().from;
    open.pop_back();
    if (!reached.insert(node).second) {
      continue;
    }
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::ranges::all_of(capture.graph().nodes, [&](const GraphNode* node) {
    return node->capture != capture.id || reached.contains(node);
  });
}

void begin_capture(Call& c, Stream& stream, CUstreamCaptureMode mode, Graph* given, std::vector<Edge> tail) {
  refuse_if(&stream == stream.context->default_stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  refuse_if(stream.capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  const auto into = given != nullptr ? Capture::Into::given_graph : Capture::Into::own_graph;
  Graph& graph = given != nullptr ? *given : add_graph(c.machine);
  graph.hidden = graph.hidden || given == nullptr;  // until the capture ends and hands it out
  Capture::join(std::make_shared<Capture>(graph, into, stream, mode, c.thread.serial), stream);
  stream.capture_tail = std::move(tail);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuStreamBeginCapture_v2, Call& c, Stream& stream, CUstreamCaptureMode mode) {
  return begin_capture(c, stream, mode, nullptr, {});
}

SOFTWARE_DRIVER_CALL(cuStreamBeginCaptureToGraph, Call& c, Stream& stream, Graph& graph, const CUgraphNode* nodes,
                     const CUgraphEdgeData* data, std::size_t count, CUstreamCaptureMode mode) {
  refuse_if(graph.capture != nullptr || stream.capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  return begin_capture(c, stream, mode, &graph, read_edges(c, graph, nodes, data, count));
}

SOFTWARE_DRIVER_CALL(cuStreamUpdateCaptureDependencies_v2, Call& c, Stream& stream, CUgraphNode* nodes,
                     const CUgraphEdgeData* data, std::size_t count, unsigned flags) {
  refuse_if(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);
  const std::vector<Edge> edges = read_edges(c, stream.capture->graph(), nodes, data, count);
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    // What is taken away need not be joined.
    for (const Edge& edge : std::exchange(stream.capture_tail, {})) {
      edge.from->capture = 0;
    }
  }
  extend(stream.capture_tail, edges);
}

SOFTWARE_DRIVER_SAME(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2, 2)

SOFTWARE_DRIVER_QUERY(cuStreamEndCapture, Call& c, Stream& stream, CUgraph* out) {
  refuse_if(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);
  const std::shared_ptr<Capture> capture = stream.capture;
  refuse_if(&capture->origin() != &stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  const bool is_elsewhere = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != c.thread.serial;
  // The capture is over also after an error (seen on an H200 with driver 13.0).
  const CUresult result = is_elsewhere            ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                          : !capture->is_active() ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : !is_joined(*capture)  ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                          : out == nullptr        ? CUDA_ERROR_INVALID_VALUE
                                                  : CUDA_SUCCESS;
  const Graph* graph = end_capture(c.machine, *capture, result == CUDA_SUCCESS);
  give(out, graph == nullptr ? nullptr : as_handle<CUgraph>(*graph));
  return result;
}

SOFTWARE_DRIVER_ROW(cuStreamIsCapturing, tell_capture)
SOFTWARE_DRIVER_ROW(cuStreamGetCaptureInfo_v2, tell_capture, 5)
SOFTWARE_DRIVER_ROW(cuStreamGetCaptureInfo_v3, tell_capture)

SOFTWARE_DRIVER_CALL(cuThreadExchangeStreamCaptureMode, Call& c, CUstreamCaptureMode* mode) {
  refuse_if(*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  std::swap(*mode, c.thread.capture_mode);
}
