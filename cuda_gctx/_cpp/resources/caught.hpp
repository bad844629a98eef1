// The exception in flight as a plain value, for a language binding that translates errors in one place.
#pragma once

#include <string>
#include <vector>

#include "resources/split.hpp"

namespace gctx {

enum class CaughtKind : int { core, out_of_memory, other };

struct CaughtError {
  CaughtKind caught = CaughtKind::other;
  ErrorKind kind = ErrorKind::bad_state;
  int code = 0;
  std::string message;
  std::string code_name;
  std::string call;
  std::string needs;
  std::string found;
  bool has_suggestion = false;
  std::vector<GroupRequest> suggestion;
};

// To be called inside a catch block.
CaughtError caught_error();

}  // namespace gctx
