// The answer of functions that are not modelled.
#pragma once

namespace cuda_runtime {

// Starts the driver, keeps the error for cudaGetLastError, and returns its number.
int refuse_absent();

}  // namespace cuda_runtime
