#include "handles/captures.hpp"

#include <algorithm>

#include "handles/capture.hpp"
#include "handles/context_pool.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

bool has_capture(DriverContext& context) {
  return context.streams().may_capture() && context.is_there() &&
         context.streams().has_capture(context.runtime().driver());
}

}  // namespace

bool has_capture(const ContextBox& context) { return has_capture(context.in_driver()); }

bool any_has_capture(const std::vector<ContextHandle>& contexts) {
  return std::any_of(contexts.begin(), contexts.end(), [](const ContextHandle& context) {
    context->demand_live();
    return has_capture(*context);
  });
}

void demand_no_capture(const ContextBox& context, const char* what) {
  if (context.streams().may_capture() && has_capture(context)) [[unlikely]] {
    fail(ErrorKind::capturing, "a stream of " + context.label() + " is capturing a graph, and " + what +
                                   " the whole context would invalidate the capture: end it first, or name a stream");
  }
}

std::string capturing_stream(Runtime& runtime, int device) {
  for (const DriverContextHandle& context : DriverContext::registry.all(runtime)) {
    // A capture that was left open in an idle context is nobody's.
    const bool is_used = context->kind() != ContextKind::green || context_pool(runtime).is_leased(*context);
    if (context->device() == device && is_used && has_capture(*context)) {
      const ContextHandle box = open_box(*context);
      return "a stream of " + (box ? box->label() : "a closed context");
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
