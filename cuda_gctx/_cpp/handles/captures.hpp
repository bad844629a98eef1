// Which contexts and devices have a stream that captures a graph: what would invalidate the capture is refused.
#pragma once

#include <string>
#include <vector>

#include "handles/context.hpp"

namespace gctx {

bool has_capture(ContextBox& context);  // of its own streams; false if it is gone
bool any_has_capture(const std::vector<ContextHandle>& contexts);
void demand_no_capture(ContextBox& context, const char* what);

// What is capturing on a device, in words; empty if nothing is as far as can be known: the streams made by this package
// and those that wait for the legacy default stream. The driver does not report the non-blocking streams of others.
std::string capturing_stream(Runtime& runtime, int device);

// Contexts cannot be made meanwhile.
void demand_no_capture_on(Runtime& runtime, int device);

}  // namespace gctx
