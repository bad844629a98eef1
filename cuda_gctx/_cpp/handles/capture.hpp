// Which streams are capturing a graph. Much that is harmless otherwise invalidates a capture: it is refused instead.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "handles/types.hpp"

namespace gctx {

class Driver;

bool is_capturing(const Driver& driver, CUstream handle);

// The driver's number of the capture that a stream is part of; 0 if it is in none.
std::uint64_t capture_of(const Driver& driver, CUstream handle);

// What is capturing on a device, in words; empty if nothing is as far as can be known: the streams made by this package
// and those that wait for the legacy default stream. The driver does not report the non-blocking streams of others.
std::string capturing_stream(Runtime& runtime, int device);

// Contexts cannot be made meanwhile.
void demand_no_capture_on(Runtime& runtime, int device);

}  // namespace gctx
