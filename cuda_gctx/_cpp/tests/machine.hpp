// The driver that the tests of the core run on: the software driver, a library file whose path the build gives.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>

#include "handles/runtime.hpp"

namespace gctx::test {

// A runtime on a fresh machine; `spec` is what stands behind "sim:" in CUDA_GCTX_DRIVER.
inline Runtime& open_machine(const char* spec = "h200@13.0") {
  void* const library = dlopen(CUDA_GCTX_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(dlerror());
  }
  const auto configure = reinterpret_cast<int (*)(const char*, char*, std::size_t)>(dlsym(library, "gctxSimConfigure"));
  char error[256] = "";
  if (configure(spec, error, sizeof error) != 0) {
    throw std::runtime_error(error);
  }
  return Runtime::open(CUDA_GCTX_SIM_LIBRARY);
}

}  // namespace gctx::test
