// The end of leases, and of a driver.
#pragma once

#include <vector>

#include "handles/runtime.hpp"
#include "handles/types.hpp"

namespace gctx {

// Closes the lease that contexts share. Throws and changes nothing while one of them is current on a thread, and while
// a stream of one captures.
void close_together(const std::vector<ContextHandle>& contexts);

// Ends the use of a driver. What the core keeps of it goes first, each part before what it needs. Later uses of its
// objects throw, and their destructors do nothing.
void close_driver(Runtime& runtime);

}  // namespace gctx
