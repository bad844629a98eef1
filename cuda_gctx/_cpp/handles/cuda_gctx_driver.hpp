// The handles of cuda_gctx.hpp as types of the CUDA driver, for programs that include cuda.h.
#ifndef CUDA_GCTX_DRIVER_HPP
#define CUDA_GCTX_DRIVER_HPP

#include <cuda.h>

#include "cuda_gctx.hpp"

namespace cuda_gctx {

inline CUstream native(const stream& from) noexcept { return static_cast<CUstream>(from.handle()); }
inline CUcontext native(const context& from) noexcept { return static_cast<CUcontext>(from.handle()); }
inline CUevent native(const event& from) noexcept { return static_cast<CUevent>(from.handle()); }

}  // namespace cuda_gctx
#endif
