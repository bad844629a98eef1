#include "handles/graph.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "handles/capture.hpp"
#include "handles/captures.hpp"
#include "handles/event.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

void demand_same_device(const GraphExecHandle& exec, const StreamHandle& stream) {
  const ContextBox& context = *exec->context();
  if (&stream->runtime() != &context.runtime() || stream->context()->device() != context.device()) {
    fail_value("the kernels of the graph run on device " + std::to_string(context.device()) +
               ", and the stream is one of device " + std::to_string(stream->context()->device()) +
               ": launch it on a stream of its own device");
  }
}

// Calls `visit` with the context of each kernel of a graph and of its child graphs.
template <typename Visit>
void visit_contexts(const Driver& driver, CUgraph graph, Visit&& visit) {
  std::size_t count = 0;
  GCTX_CALL(driver, cuGraphGetNodes, graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  GCTX_CALL(driver, cuGraphGetNodes, graph, nodes.data(), &count);
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    GCTX_CALL(driver, cuGraphNodeGetType, node, &type);
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      GCTX_CALL(driver, cuGraphKernelNodeGetParams, node, &kernel);
      if (kernel.ctx != nullptr) {
        visit(kernel.ctx);
      }
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      GCTX_CALL(driver, cuGraphChildGraphNodeGetGraph, node, &child);
      visit_contexts(driver, child, visit);
    }
  }
}

// The driver's number of the capture that a stream takes part in; 0 if the driver does not tell.
std::uint64_t capture_of(const Driver& driver, CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  if (driver.cuStreamGetCaptureInfo_v3 != nullptr) {
    driver.note(driver.cuStreamGetCaptureInfo_v3(stream, &status, &id, nullptr, nullptr, nullptr, nullptr),
                "cuStreamGetCaptureInfo");
  }
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

}  // namespace

std::size_t GraphBox::node_count() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  GCTX_CALL(driver(), cuGraphGetNodes, handle(), nullptr, &count);
  return count;
}

std::uint64_t begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode) {
  const Driver& driver = stream->driver();
  if (stream->is_default()) {
    fail_value("a default stream cannot capture a graph: use another stream of " + stream->context()->label());
  }
  stream->expose();
  const CaptureGate::Begin begin(*stream->context());
  if (is_capturing(driver, stream->handle())) {
    fail(ErrorKind::capturing, "the stream is already capturing a graph: end that capture first");
  }
  GCTX_CALL(driver, cuStreamBeginCapture, stream->handle(), mode);
  return capture_of(driver, stream->handle());
}

GraphHandle end_capture(const StreamHandle& stream) {
  const Driver& driver = stream->driver();
  CUgraph handle = nullptr;
  GCTX_CALL(driver, cuStreamEndCapture, stream->handle(), &handle);
  // The capture is over, also where there is no memory for its graph.
  try {
    auto box = std::make_shared<GraphBox>(stream->context());
    box->take(handle);
    return box;
  } catch (...) {
    driver.cuGraphDestroy(handle);
    throw;
  }
}

bool abandon_capture(const StreamHandle& stream, std::uint64_t id) {
  if (!stream->runtime().is_usable() || !stream->context()->is_there()) {
    return false;
  }
  const Driver& driver = stream->driver();
  const RelaxedThread relaxed(driver);
  if (!is_capturing(driver, stream->handle())) {
    return false;
  }
  if (const std::uint64_t now = capture_of(driver, stream->handle()); now != 0 && now != id) {
    return false;
  }
  CUgraph graph = nullptr;
  // The capture is over also where the driver refuses its graph, as on another thread than that of its begin (seen on
  // an H200 with driver 13.0).
  if (driver.cuStreamEndCapture(stream->handle(), &graph) == CUDA_SUCCESS) {
    driver.note(driver.cuGraphDestroy(graph), "cuGraphDestroy");
  }
  return true;
}

GraphHandle adopt_graph(Runtime& runtime, CUgraph handle) {
  const Driver& driver = runtime.driver();
  ContextHandle context;
  try {
    visit_contexts(driver, handle,
                   [&](CUcontext of_kernel) { context = context ? context : adopt_context(runtime, of_kernel); });
  } catch (Error& error) {
    name_dead_handle(error, "CUgraph", handle);
    throw;
  }
  if (!context) {
    context = primary_context(runtime, current_device(runtime));
  }
  auto box = std::make_shared<GraphBox>(std::move(context), false);
  box->take(handle);
  return box;
}

std::vector<ContextHandle> GraphExecBox::contexts() const {
  std::vector<ContextHandle> contexts{context()};
  for (const ContextUse& use : others_) {
    contexts.push_back(use.context());
  }
  return contexts;
}

GraphExecHandle instantiate(const GraphHandle& graph, bool ordered) {
  const std::lock_guard lock(graph->mutex());
  Runtime& runtime = graph->context()->runtime();
  std::vector<CUcontext> handles;
  visit_contexts(graph->driver(), graph->handle(), [&](CUcontext handle) {
    if (std::find(handles.begin(), handles.end(), handle) == handles.end()) {
      handles.push_back(handle);
    }
  });
  // The context of the capture is one of them only if a kernel runs there.
  std::vector<ContextUse> uses;
  for (CUcontext handle : handles) {
    const bool is_own = handle == graph->context()->handle();
    uses.emplace_back(is_own ? graph->context() : adopt_context(runtime, handle), ContextUse::Of::lingering);
  }
  if (uses.empty()) {
    uses.emplace_back(graph->context(), ContextUse::Of::lingering);
  }
  auto box = std::make_shared<GraphExecBox>(uses.front(), graph, ordered ? graph->order() : nullptr);
  for (std::size_t other = 1; other < uses.size(); ++other) {
    box->add_use(uses[other]);
  }
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
  demand_same_device(exec, stream);
  stream->demand_live();
  GCTX_CALL(exec->driver(), cuGraphUpload, exec->handle(), stream->handle());
}

void launch(const GraphExecHandle& exec, const StreamHandle& stream) {
  demand_same_device(exec, stream);
  stream->demand_live();
  if (exec->order() != nullptr) {
    exec->order()->launch(*exec, stream);
  } else {
    exec->launch_on(stream);
    show_to_device(stream);
  }
}

void GraphExecBox::launch_on(const StreamHandle& stream) {
  const Driver& of = driver();
  std::vector<CUstream> meeting;
  for (const ContextHandle& context : contexts()) {
    if (!context->is_same_context(*stream->context()) && context->is_green()) {
      meeting.push_back(meeting_stream(context));
    }
  }
  // Inside a capture the order is that of the captured graph.
  if (meeting.empty() || stream_is_capturing(stream)) {
    GCTX_CALL(of, cuGraphLaunch, handle(), stream->handle());
    return;
  }
  const ReusableEvent<EventHandle>::Use reused(joined_);
  const auto make = [&] { return create_event(stream->context(), CU_EVENT_DISABLE_TIMING); };
  const EventHandle event = reused.is_taken() ? reused.event(make) : make();
  for (CUstream other : meeting) {
    GCTX_CALL(of, cuEventRecord, event->handle(), other);
    GCTX_CALL(of, cuStreamWaitEvent, stream->handle(), event->handle(), CU_EVENT_WAIT_DEFAULT);
  }
  GCTX_CALL(of, cuGraphLaunch, handle(), stream->handle());
  GCTX_CALL(of, cuEventRecord, event->handle(), stream->handle());
  for (CUstream other : meeting) {
    GCTX_CALL(of, cuStreamWaitEvent, other, event->handle(), CU_EVENT_WAIT_DEFAULT);
  }
}

void LaunchOrder::launch(GraphExecBox& exec, const StreamHandle& stream) {
  const Driver& driver = exec.driver();
  const std::lock_guard lock(mutex_);
  if (end_ == nullptr) {
    end_ = create_event(primary_context(exec.context()->runtime(), exec.context()->device()), SHOWN_EVENT);
  }
  if (is_recorded_ && last_.lock() != stream) {
    GCTX_CALL(driver, cuStreamWaitEvent, stream->handle(), end_->handle(), 0);
  }
  exec.launch_on(stream);
  GCTX_CALL(driver, cuEventRecord, end_->handle(), stream->handle());
  last_ = stream;
  is_recorded_ = true;
}

}  // namespace gctx
