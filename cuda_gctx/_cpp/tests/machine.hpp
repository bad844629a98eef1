// A machine for the tests of the core: the software driver, whose library the environment names.
#pragma once

#include <string>

#include "handles/runtime.hpp"

namespace gctx::test {

// Opens a fresh machine. `spec`: the text behind "sim:" in CUDA_GCTX_DRIVER.
inline Runtime& open_machine(const std::string& spec = "h200@13.0") { return Runtime::open("sim:" + spec); }

}  // namespace gctx::test
