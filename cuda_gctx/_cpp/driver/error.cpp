#include "driver/error.hpp"

#include "driver/process.hpp"

namespace gctx {

Error::Error(ErrorKind what_kind, std::string text) : kind(what_kind), message(std::move(text)) {
  wait_for_the_end_if_over();
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void fail_value(std::string message) { throw Error(ErrorKind::bad_value, std::move(message)); }

void fail_state(std::string message) { throw Error(ErrorKind::bad_state, std::move(message)); }

}  // namespace gctx
