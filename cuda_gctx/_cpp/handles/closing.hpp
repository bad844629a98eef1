// What the units keep for a driver, all together: how much that is, and its end.
#pragma once

#include "handles/live.hpp"
#include "handles/runtime.hpp"

namespace gctx {

ContextCounts context_counts(Runtime& runtime, int device);

// Destroys the contexts that splits needed, and the closed ones that frameworks have seen: these must not use them.
void drop_kept(Runtime& runtime, bool also_pinned);

// Ends the use of a driver: what is kept for it goes first, each before what it needs. Its objects then throw when they
// are used, and do nothing when they are destroyed.
void close_driver(Runtime& runtime);

}  // namespace gctx
