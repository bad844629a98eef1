// The one exception type of the core. A layer above translates it once, by kind.
#pragma once

#include <cuda.h>

#include <exception>
#include <string>
#include <utility>

namespace gctx {

enum class ErrorKind : int {
  driver,         // a driver call answered an error
  not_found,      // no driver library
  not_supported,  // the driver lacks what was asked for
  bad_value,      // an argument that no driver could honour
  bad_state,      // the object or the process is in the wrong state: closed, current, forked
  split,          // a split that the resource cannot give
  overlap,        // an exclusive context over SMs that are taken
};

class Error : public std::exception {
 public:
  Error(ErrorKind what_kind, std::string text);

  const char* what() const noexcept override { return message.c_str(); }

  ErrorKind kind;
  std::string message;
  CUresult code = CUDA_SUCCESS;
  std::string code_name;
  std::string call;
  std::string needs;
  std::string found;
};

std::string version_text(int version);  // 13010 -> "13.1"

[[noreturn]] void fail_value(std::string message);
[[noreturn]] void fail_state(std::string message);

}  // namespace gctx
