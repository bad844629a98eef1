// The functions of the real driver, which the library calls and replaces.
#pragma once

#include <cuda.h>

#define INTERPOSE_API extern "C" __attribute__((visibility("default")))

namespace gctx::interpose {

struct RealDriver {
#define INTERPOSE_FUNCTION(symbol) decltype(&::symbol) symbol = nullptr;
#define INTERPOSE_USED(symbol) INTERPOSE_FUNCTION(symbol)
#include "functions.def"
#include "stream_functions.def"
#undef INTERPOSE_FUNCTION
#undef INTERPOSE_USED
};

// Filled when the library is loaded. A function that the driver lacks answers CUDA_ERROR_NOT_SUPPORTED.
extern RealDriver real;

// The path of the real driver: the link libcuda-real.so.1 beside this library.
const char* real_driver_path();

// The replacement of a function of the real driver, or the function itself.
void* replacement_of(void* function);

}  // namespace gctx::interpose
