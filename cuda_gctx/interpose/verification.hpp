// Proves where the program's work runs: --verify, and CUDA_GCTX_VERIFY=1.
#pragma once

#include <cuda.h>

namespace gctx::interpose {

struct Part;

// Returns whether the environment asks for the proof.
bool verifies();

// At the first use of a stream by a thread: asks the driver for the context of the stream, and runs the probe kernel in
// the stream. Reports work outside of the part.
void verify_stream(CUstream stream);

// Verifies streams again at their next use, because a new stream may have the handle of a destroyed one.
void forget_verified_streams();

// Forgets the memory of the probe in a part that a reset ends.
void forget_probe(const Part& part);

}  // namespace gctx::interpose
