// The making of streams.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

void add_default_streams(Machine& machine, Context& context);
void add_stream(Call& call, Context& context, unsigned flags, int priority, CUstream* out);

}  // namespace gctx::sim
