// The end of contexts.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// Takes a context's streams and events away from it, and notes those that should have gone first.
void detach_children(Call& call, Context& context);

}  // namespace gctx::sim
