// The end of contexts.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

// What goes with a context: code, memory, arrays, textures and surfaces.
void destroy_owned(Machine& machine, std::uint64_t owner);
// Takes a context's streams and events away from it, and notes those that should have gone first.
void detach_children(Call& call, Context& context);

}  // namespace gctx::sim
