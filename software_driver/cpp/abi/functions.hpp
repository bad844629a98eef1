// The functions of the driver's ABI: their exported names, the base names that cuGetProcAddress takes, and the driver
// version that introduced each.
#pragma once

#include <cstddef>
#include <string_view>

namespace software_driver {

enum class Fn {
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) symbol,
#include "abi/functions.def"
#undef SOFTWARE_DRIVER_FUNCTION
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

// Functions that are exported and not modelled.
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) +1
inline constexpr std::size_t absent_count = 0
#include "abi/absent.def"
    ;
#undef SOFTWARE_DRIVER_ABSENT
extern void* const absent_addresses[];
const FunctionInfo& absent_info(std::size_t index);
// What each of them does: it counts itself, names itself once, and answers CUDA_ERROR_NOT_SUPPORTED.
int answer_absent(std::size_t index);

// Variants whose default stream is the calling thread's own; the list ends with a null address.
struct PerThreadFunction {
  Fn function;
  void* address;
};
extern const PerThreadFunction per_thread_functions[];
bool default_stream_is_the_threads() noexcept;

// The address that cuGetProcAddress answers for a name when a program asks for version `wanted` of it: the newest
// variant that both the request and the driver allow.
struct FoundFunction {
  void* address = nullptr;
  bool too_old_request = false;  // the driver has it, for programs that ask for a newer version
};
FoundFunction find_function(std::string_view name, int wanted, int driver_version, bool per_thread);

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};
// Null for a number that is no CUresult.
const ErrorText* find_error(int code);
// The number of a CUresult of this name, or -1.
int error_code(std::string_view name);

}  // namespace software_driver
