#include "handles/graph.hpp"

#include "handles/capture.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

const Driver& driver_of(const ContextHandle& context) {
  context->demand_there();
  return context->runtime().driver();
}

// Whether a dying box may call the driver.
bool may_destroy(const ContextBox& context) { return context.runtime().is_usable() && context.is_there(); }

void demand_own_stream(const GraphExecHandle& exec, const StreamHandle& stream) {
  if (stream->context() != exec->context()) {
    fail_value(
        "the graph was captured in " + exec->context()->label() + ", and the stream is one of " +
        stream->context()->label() +
        ": its kernels would run in the former. Launch it on a stream of that one, and let the other stream wait");
  }
}

}  // namespace

GraphBox::~GraphBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  const bool is_kept = context()->runtime().keep_for_later([this] {
    auto later = std::make_shared<GraphBox>(use_);
    later->take(handle_);
    return later;
  });
  if (!is_kept && may_destroy(*context())) {
    const Driver& driver = context()->runtime().driver();
    driver.note(driver.cuGraphDestroy(handle_), "cuGraphDestroy");
  }
}

GraphExecBox::~GraphExecBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  const bool is_kept = context()->runtime().keep_for_later([this] {
    auto later = std::make_shared<GraphExecBox>(use_);
    later->take(handle_);
    return later;
  });
  if (!is_kept && may_destroy(*context())) {
    const Driver& driver = context()->runtime().driver();
    driver.note(driver.cuGraphExecDestroy(handle_), "cuGraphExecDestroy");
  }
}

std::size_t GraphBox::node_count() const {
  std::size_t count = 0;
  GCTX_CALL(driver_of(context()), cuGraphGetNodes, handle_, nullptr, &count);
  return count;
}

void begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode) {
  const Driver& driver = driver_of(stream->context());
  if (stream->is_default()) {
    fail_value("a default stream cannot capture a graph: use another stream of " + stream->context()->label());
  }
  if (is_capturing(driver, stream->handle())) {
    fail(ErrorKind::capturing, "the stream is capturing a graph already: end that capture first");
  }
  stream->expose();
  GCTX_CALL(driver, cuStreamBeginCapture, stream->handle(), mode);
}

GraphHandle end_capture(const StreamHandle& stream) {
  const Driver& driver = driver_of(stream->context());
  auto box = std::make_shared<GraphBox>(stream->use());
  CUgraph handle = nullptr;
  GCTX_CALL(driver, cuStreamEndCapture, stream->handle(), &handle);
  box->take(handle);
  return box;
}

GraphExecHandle instantiate(const GraphHandle& graph) {
  const Driver& driver = driver_of(graph->context());
  auto box = std::make_shared<GraphExecBox>(graph->use());
  CUgraphExec handle = nullptr;
  CurrentScope scope(*graph->context());
  GCTX_CALL(driver, cuGraphInstantiateWithFlags, &handle, graph->handle(), 0);
  box->take(handle);
  scope.leave();
  return box;
}

void upload(const GraphExecHandle& exec, const StreamHandle& stream) {
  demand_own_stream(exec, stream);
  GCTX_CALL(driver_of(exec->context()), cuGraphUpload, exec->handle(), stream->handle());
}

void launch(const GraphExecHandle& exec, const StreamHandle& stream) {
  demand_own_stream(exec, stream);
  GCTX_CALL(driver_of(exec->context()), cuGraphLaunch, exec->handle(), stream->handle());
}

}  // namespace gctx
