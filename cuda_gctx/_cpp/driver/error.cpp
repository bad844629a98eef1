#include "driver/error.hpp"

namespace gctx {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void fail_value(std::string message) { throw Error(ErrorKind::bad_value, std::move(message)); }

void fail_state(std::string message) { throw Error(ErrorKind::bad_state, std::move(message)); }

}  // namespace gctx
