// Program images: which kernels and variables they hold.
#pragma once

#include "machine/objects.hpp"

namespace gctx::sim {

// PTX text, machine code, or a container of both. What is none of them is CUDA_ERROR_INVALID_IMAGE.
CUresult read_image(const void* data, Image& image);

}  // namespace gctx::sim
