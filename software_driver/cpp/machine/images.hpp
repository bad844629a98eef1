// Program images: which kernels and variables they hold.
#pragma once

#include "machine/objects.hpp"

namespace software_driver {

// What compiles PTX: that of a driver version, for a compute capability.
struct Compiler {
  int driver_version;
  int capability;  // 10 * major + minor
};

// PTX text, machine code, or a container of both. What is none of them is CUDA_ERROR_INVALID_IMAGE; PTX of a version
// that the driver does not know, CUDA_ERROR_UNSUPPORTED_PTX_VERSION; for a newer target, or with what is no
// instruction, CUDA_ERROR_INVALID_PTX.
[[nodiscard]] CUresult read_image(const void* data, const Compiler& compiler, Image& image);

}  // namespace software_driver
