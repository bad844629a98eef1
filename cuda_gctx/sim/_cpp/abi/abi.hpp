// The driver's header, with every ABI variant of its functions declared under its exported name and visible to other
// libraries. Included before anything else that includes <cuda.h>.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#ifndef __CUDA_API_PUSH_VISIBILITY_DEFAULT
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT
#endif

#include <cuda.h>

// Of cudaProfiler.h, which is not among the headers that the package is built with.
extern "C" {
__attribute__((visibility("default"))) CUresult CUDAAPI cuProfilerStart(void);
__attribute__((visibility("default"))) CUresult CUDAAPI cuProfilerStop(void);
}
