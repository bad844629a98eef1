// Which streams are capturing a graph. Much that is harmless otherwise invalidates a capture: it is refused instead.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "driver/driver.hpp"

namespace gctx {

bool is_capturing(const Driver& driver, CUstream handle);

// The driver's number of the capture that a stream is part of; 0 if it is in none.
std::uint64_t capture_of(const Driver& driver, CUstream handle);

}  // namespace gctx
