#include "handles/closing.hpp"

#include <algorithm>
#include <string>

#include "handles/blocks.hpp"
#include "handles/captures.hpp"
#include "handles/context.hpp"
#include "handles/context_pool.hpp"
#include "handles/probe.hpp"

namespace gctx {
namespace {

// A device that has failed answers nothing, and its contexts can be closed.
bool is_current_here(const ContextBox& context) noexcept {
  CUcontext current = nullptr;
  return context.runtime().driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context.handle();
}

bool captures(const ContextBox& context) noexcept {
  try {
    return has_capture(context);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void close_together(const std::vector<ContextHandle>& contexts) {
  if (contexts.empty() || contexts.front()->is_closed()) {
    return;
  }
  const ContextBox& first = *contexts.front();
  first.demand_usable();
  ThreadBlocks::here().forget_replaced(first.runtime());
  const CaptureGate::Pass pass(first);
  for (const ContextHandle& context : contexts) {
    if (is_current_here(*context)) {
      context->fail_current(true);
    }
    if (captures(*context)) {
      fail(ErrorKind::capturing,
           "a stream of " + context->label() + " is capturing a graph: end the capture before you close the context");
    }
  }
  if (!first.lease().close()) {
    const auto current =
        std::find_if(contexts.begin(), contexts.end(), [](const auto& context) { return context->was_current(); });
    (current != contexts.end() ? *current : contexts.front())->fail_current(false);
  }
}

void close_driver(Runtime& runtime) {
  if (is_forked()) {
    return;
  }
  ThreadBlocks::here().forget(runtime);
  context_pool(runtime).close();
  probes_of(runtime).drop();
  drop_primaries(runtime);
  Runtime::close(runtime);
}

}  // namespace gctx
