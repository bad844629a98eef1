// Stream capture: from begin to end, and what disturbs it.
#include <algorithm>

#include "calls/graph_nodes.hpp"

namespace gctx::sim {
namespace {

struct CaptureInfoOut {
  CUstreamCaptureStatus* status;
  cuuint64_t* id;
  CUgraph* graph;
  const CUgraphNode** dependencies;
  const CUgraphEdgeData** edges;
  std::size_t* count;
};

void tell_capture(const Stream& stream, const CaptureInfoOut& out) {
  // The arrays that the caller reads live until the next call of the thread, as the header allows.
  thread_local std::vector<CUgraphNode> dependencies;
  thread_local std::vector<CUgraphEdgeData> edges;
  const Capture* capture = stream.capture.get();
  *out.status = capture == nullptr     ? CU_STREAM_CAPTURE_STATUS_NONE
                : capture->is_active() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (*out.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return;
  }
  if (out.id != nullptr) {
    *out.id = capture->id();
  }
  if (out.graph != nullptr) {
    *out.graph = as_handle<CUgraph>(capture->graph());
  }
  dependencies.clear();
  edges.clear();
  for (const Edge& edge : stream.capture_tail) {
    dependencies.push_back(as_handle<CUgraphNode>(*edge.from));
    edges.push_back(edge.data);
  }
  if (out.dependencies != nullptr) {
    *out.dependencies = dependencies.data();
  }
  // Recorded: one datum for each dependency.
  if (out.edges != nullptr) {
    *out.edges = edges.data();
  }
  if (out.count != nullptr) {
    *out.count = dependencies.size();
  }
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
  return std::all_of(capture.graph().nodes.begin(), capture.graph().nodes.end(),
                     [&](const GraphNode* node) { return node->capture != capture.id() || reached.contains(node); });
}

void begin(Call& c, Stream& stream, CUstreamCaptureMode mode, Graph* given, std::vector<Edge> tail) {
  refuse_if(&stream == stream.context->default_stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  refuse_if(stream.capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  const auto into = given != nullptr ? Capture::Into::given_graph : Capture::Into::own_graph;
  Graph& graph = given != nullptr ? *given : add_graph(c.machine);
  if (given == nullptr) {
    graph.hidden = true;  // until the capture ends and hands it out
  }
  Capture::join(std::make_shared<Capture>(graph, into, stream, mode, c.thread.serial), stream);
  stream.capture_tail = std::move(tail);
}

void update_dependencies(Call& c, Stream& stream, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                         std::size_t count, unsigned flags) {
  refuse_if(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);
  refuse_if(!stream.capture->is_active(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  std::vector<Edge> edges;
  read_edges(c, stream.capture->graph(), nodes, data, count, edges);
  std::vector<Edge>& tail = stream.capture_tail;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    // What is taken away need not be joined.
    for (const Edge& edge : tail) {
      edge.from->capture = 0;
    }
    tail.clear();
  }
  for (const Edge& edge : edges) {
    if (std::find(tail.begin(), tail.end(), edge) == tail.end()) {
      tail.push_back(edge);
    }
  }
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuStreamBeginCapture_v2, Call& c, Stream& stream, CUstreamCaptureMode mode) {
  return begin(c, stream, mode, nullptr, {});
}

GCTX_SIM_CALL(cuStreamBeginCaptureToGraph, Call& c, Stream& stream, Graph& graph, const CUgraphNode* nodes,
              const CUgraphEdgeData* data, std::size_t count, CUstreamCaptureMode mode) {
  refuse_if(graph.capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  std::vector<Edge> tail;
  read_edges(c, graph, nodes, data, count, tail);
  return begin(c, stream, mode, &graph, std::move(tail));
}

GCTX_SIM_CALL(cuStreamUpdateCaptureDependencies, Call& c, Stream& stream, CUgraphNode* nodes, std::size_t count,
              unsigned flags) {
  return update_dependencies(c, stream, nodes, nullptr, count, flags);
}

GCTX_SIM_CALL(cuStreamUpdateCaptureDependencies_v2, Call& c, Stream& stream, CUgraphNode* nodes,
              const CUgraphEdgeData* data, std::size_t count, unsigned flags) {
  return update_dependencies(c, stream, nodes, data, count, flags);
}

GCTX_SIM_QUERY(cuStreamEndCapture, Call& c, Stream& stream, CUgraph* out) {
  refuse_if(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);
  const std::shared_ptr<Capture> capture = stream.capture;
  refuse_if(&capture->origin() != &stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  refuse_if(capture->mode() != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread() != c.thread.serial,
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  const CUresult result = !capture->is_active()  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : !is_joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                          : out == nullptr       ? CUDA_ERROR_INVALID_VALUE
                                                 : CUDA_SUCCESS;
  const Graph* graph = end_capture(c.machine, *capture, result == CUDA_SUCCESS);
  give(out, graph == nullptr ? nullptr : as_handle<CUgraph>(*graph));
  return result;
}

GCTX_SIM_CALL(cuStreamIsCapturing, Call&, const Stream& stream, CUstreamCaptureStatus* status) {
  return tell_capture(stream, {status, nullptr, nullptr, nullptr, nullptr, nullptr});
}

GCTX_SIM_CALL(cuStreamGetCaptureInfo_v2, Call&, const Stream& stream, CUstreamCaptureStatus* status, cuuint64_t* id,
              CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  return tell_capture(stream, {status, id, graph, dependencies, nullptr, count});
}

GCTX_SIM_CALL(cuStreamGetCaptureInfo_v3, Call&, const Stream& stream, CUstreamCaptureStatus* status, cuuint64_t* id,
              CUgraph* graph, const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count) {
  return tell_capture(stream, {status, id, graph, dependencies, edges, count});
}

GCTX_SIM_CALL(cuThreadExchangeStreamCaptureMode, Call& c, CUstreamCaptureMode* mode) {
  refuse_if(*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  std::swap(*mode, c.thread.capture_mode);
}
