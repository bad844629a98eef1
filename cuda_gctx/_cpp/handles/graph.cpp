#include "handles/graph.hpp"

#include <vector>

#include "handles/capture.hpp"
#include "handles/event.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

void demand_own_stream(const GraphExecHandle& exec, const StreamHandle& stream) {
  if (stream->context() != exec->context()) {
    fail_value("the kernels of the graph run in " + exec->context()->label() + ", and the stream is one of " +
               stream->context()->label() +
               ": launch it on a stream of the former, or move the graph: graph.in_partition()");
  }
}

}  // namespace

std::size_t GraphBox::node_count() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  GCTX_CALL(driver(), cuGraphGetNodes, handle(), nullptr, &count);
  return count;
}

void begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode) {
  const Driver& driver = stream->driver();
  if (stream->is_default()) {
    fail_value("a default stream cannot capture a graph: use another stream of " + stream->context()->label());
  }
  if (is_capturing(driver, stream->handle())) {
    fail(ErrorKind::capturing, "the stream is already capturing a graph: end that capture first");
  }
  stream->expose();
  GCTX_CALL(driver, cuStreamBeginCapture, stream->handle(), mode);
}

GraphHandle end_capture(const StreamHandle& stream) {
  const Driver& driver = stream->driver();
  CUgraph handle = nullptr;
  GCTX_CALL(driver, cuStreamEndCapture, stream->handle(), &handle);
  // The capture is over, also where there is no memory for its graph.
  try {
    auto box = std::make_shared<GraphBox>(stream->use());
    box->take(handle);
    return box;
  } catch (...) {
    driver.cuGraphDestroy(handle);
    throw;
  }
}

GraphHandle adopt_graph(Runtime& runtime, CUgraph handle) {
  const Driver& driver = runtime.driver();
  ContextHandle context;
  try {
    std::size_t count = 0;
    GCTX_CALL(driver, cuGraphGetNodes, handle, nullptr, &count);
    std::vector<CUgraphNode> nodes(count);
    GCTX_CALL(driver, cuGraphGetNodes, handle, nodes.data(), &count);
    for (CUgraphNode node : nodes) {
      CUgraphNodeType type{};
      CUDA_KERNEL_NODE_PARAMS kernel{};
      GCTX_CALL(driver, cuGraphNodeGetType, node, &type);
      if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
        GCTX_CALL(driver, cuGraphKernelNodeGetParams, node, &kernel);
      }
      if (kernel.ctx != nullptr) {
        context = adopt_context(runtime, kernel.ctx);
        break;
      }
    }
  } catch (Error& error) {
    name_dead_handle(error, "CUgraph", handle);
    throw;
  }
  if (!context) {
    context = primary_context(runtime, current_device(runtime));
  }
  auto box = std::make_shared<GraphBox>(ContextUse(std::move(context)), false);
  box->take(handle);
  return box;
}

GraphExecHandle instantiate(const GraphHandle& graph, bool ordered) {
  const std::lock_guard lock(graph->mutex());
  auto box = std::make_shared<GraphExecBox>(graph->use(), ordered ? graph->order() : nullptr);
  instantiate_into(*box, *graph);
  return box;
}

void instantiate_into(GraphExecBox& exec, const GraphBox& graph) {
  const Driver& driver = graph.driver();
  CUgraphExec handle = nullptr;
  CurrentScope scope(*graph.context());
  GCTX_CALL(driver, cuGraphInstantiateWithFlags, &handle, graph.handle(), 0);
  exec.take(handle);
  scope.leave();
}

void upload(const GraphExecHandle& exec, const StreamHandle& stream) {
  demand_own_stream(exec, stream);
  GCTX_CALL(exec->driver(), cuGraphUpload, exec->handle(), stream->handle());
}

void launch(const GraphExecHandle& exec, const StreamHandle& stream) {
  demand_own_stream(exec, stream);
  if (exec->order() != nullptr) {
    exec->order()->launch(*exec, stream);
  } else {
    GCTX_CALL(exec->driver(), cuGraphLaunch, exec->handle(), stream->handle());
    show_to_device(stream);
  }
}

void LaunchOrder::launch(const GraphExecBox& exec, const StreamHandle& stream) {
  const Driver& driver = exec.driver();
  const std::lock_guard lock(mutex_);
  if (end_ == nullptr) {
    end_ = create_event(primary_context(exec.context()->runtime(), exec.context()->device()), SHOWN_EVENT);
  }
  if (is_recorded_ && last_.lock() != stream) {
    GCTX_CALL(driver, cuStreamWaitEvent, stream->handle(), end_->handle(), 0);
  }
  GCTX_CALL(driver, cuGraphLaunch, exec.handle(), stream->handle());
  GCTX_CALL(driver, cuEventRecord, end_->handle(), stream->handle());
  last_ = stream;
  is_recorded_ = true;
}

}  // namespace gctx
