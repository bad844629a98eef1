#include "handles/captures.hpp"

#include <algorithm>

#include "handles/capture.hpp"
#include "handles/scope.hpp"

namespace gctx {

bool has_capture(ContextBox& context) {
  const CallUse use(context, std::nothrow);
  if (!use.is_alive() || !context.streams().may_capture()) [[likely]] {
    return false;
  }
  context.demand_there();
  return context.streams().has_capture(context.runtime().driver());
}

bool any_has_capture(const std::vector<ContextHandle>& contexts) {
  return std::any_of(contexts.begin(), contexts.end(), [](const ContextHandle& context) {
    context->demand_live();
    return has_capture(*context);
  });
}

void demand_no_capture(ContextBox& context, const char* what) {
  if (context.streams().may_capture() && has_capture(context)) [[unlikely]] {
    fail(ErrorKind::capturing, "a stream of " + context.label() + " is capturing a graph, and " + what +
                                   " the whole context would invalidate the capture: end it first, or name a stream");
  }
}

std::string capturing_stream(Runtime& runtime, int device) {
  for (const ContextHandle& context : ContextBox::registry.all(runtime)) {
    if (context->device() == device && context->is_there() && has_capture(*context)) {
      return "a stream of " + context->label();
    }
  }
  CurrentScope scope(*primary_context(runtime, device));
  const bool is_legacy_capturing = is_capturing(runtime.driver(), CU_STREAM_LEGACY);
  scope.leave();
  return is_legacy_capturing ? "a blocking stream of the primary context" : "";
}

void demand_no_capture_on(Runtime& runtime, int device) {
  if (const std::string capturing = capturing_stream(runtime, device); !capturing.empty()) {
    fail(ErrorKind::capturing,
         capturing + " is capturing a graph: contexts cannot be created during a capture; create them first");
  }
}

}  // namespace gctx
