// Which driver library is meant by the words of CUDA_GCTX_DRIVER.
#pragma once

#include <string>
#include <string_view>

namespace gctx {

struct DriverChoice {
  std::string library;           // what dlopen gets
  bool is_configurable = false;  // the library takes a machine description before its first use
  std::string machine;           // that description
};

DriverChoice locate_driver(std::string_view choice);

}  // namespace gctx
