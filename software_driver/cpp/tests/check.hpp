// The few words that the C++ tests need: checks that count, print and go on.
#pragma once

#include <cstdio>

namespace software_driver::test {

inline int failures = 0;

inline void fail(const char* file, int line, const char* what) {
  ++failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

inline int summary(const char* name) {
  std::printf("%s: %s\n", name, failures == 0 ? "all checks passed" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace software_driver::test

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) ::software_driver::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)
