// The functions of the driver's ABI: their exported names, the base names that cuGetProcAddress takes, and the driver
// version that introduced each.
#pragma once

#include <cstddef>
#include <string_view>

namespace gctx::sim {

enum class Fn {
#define GCTX_SIM_FUNCTION(symbol, base, since) symbol,
#include "sim/functions.def"
#undef GCTX_SIM_FUNCTION
  count
};

inline constexpr std::size_t function_count = static_cast<std::size_t>(Fn::count);

struct FunctionInfo {
  const char* symbol;
  const char* base;
  int since;
};

const FunctionInfo& info(Fn function);
bool is_function_name(std::string_view name);
// The number of a CUresult of this name, or -1.
int error_code(std::string_view name);

}  // namespace gctx::sim
