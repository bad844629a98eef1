// The driver library that the value of CUDA_GCTX_DRIVER names.
#pragma once

#include <string>
#include <string_view>

namespace gctx {

struct DriverChoice {
  std::string library;              // the argument of dlopen; empty: the software driver is not installed
  bool is_software_driver = false;  // the library takes a machine description before its first use
  std::string machine;              // that description
};

DriverChoice locate_driver(std::string_view choice);

// Registers the path of the software driver's library. C++ finds the library by itself where CUDA_SOFTWARE_DRIVER names
// it or where it is installed next to this package; Python finds it in editable installs too.
void register_software_driver(std::string path);

}  // namespace gctx
