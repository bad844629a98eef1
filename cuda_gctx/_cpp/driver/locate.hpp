// The driver library that the value of CUDA_GCTX_DRIVER names.
#pragma once

#include <string>
#include <string_view>

namespace gctx {

struct DriverChoice {
  std::string library;           // the argument of dlopen
  bool is_configurable = false;  // the library accepts a description of a machine before its first use
  std::string machine;           // the description of the machine
};

DriverChoice locate_driver(std::string_view choice);

}  // namespace gctx
