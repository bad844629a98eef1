// The end of a driver in use: what the units keep for it goes first, each before what it needs.
#pragma once

#include "handles/runtime.hpp"

namespace gctx {

// Its objects then throw when they are used, and do nothing when they are destroyed.
void close_driver(Runtime& runtime);

}  // namespace gctx
