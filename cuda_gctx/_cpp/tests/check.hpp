// The few words that the C++ tests need: named checks that count, print and go on.
#pragma once

#include <cstdio>
#include <string>

namespace gctx::test {

inline int failures = 0;

inline void report(bool ok, const char* what, const char* file, int line) {
  if (!ok) {
    ++failures;
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  }
}

// Runs something that must throw, and returns what it said.
template <typename Exception, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  }
  return {};
}

inline int summary(const char* name) {
  std::printf("%s: %s\n", name, failures == 0 ? "all checks passed" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace gctx::test

#define CHECK(condition) ::gctx::test::report(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
