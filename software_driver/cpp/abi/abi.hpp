// The driver's header, with every ABI variant of its functions declared under its exported name and visible to other
// libraries, and what it lacks.
#pragma once

#if !defined(__CUDA_API_VERSION_INTERNAL) || !defined(__CUDA_API_PUSH_VISIBILITY_DEFAULT)
#error "the build defines both, so that they hold wherever <cuda.h> is included first"
#endif

#include <cuda.h>

#include "abi/export.hpp"

// Of cudaProfiler.h, which is not among the headers that the package is built with.
extern "C" {
__attribute__((visibility("default"))) CUresult CUDAAPI cuProfilerStart(void);
__attribute__((visibility("default"))) CUresult CUDAAPI cuProfilerStop(void);
}
