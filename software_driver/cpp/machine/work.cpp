// Failures of work, and the end of a process whose bookkeeping is wrong.
#include "machine/work.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace software_driver {

void broken_law(const char* what) {
  std::fprintf(stderr, "software driver (simulated): a fault of the driver itself: %s\n", what);
  std::abort();
}

void Work::inherit_failures(const Work& before) {
  for (const FailurePtr& failure : before.failures) {
    if (!failure->is_reported && std::ranges::find(failures, failure) == failures.end()) {
      failures.push_back(failure);
    }
  }
}

// One failure for each reason, so that a program that never waits collects no list of them.
void Work::fail(FailurePtr failure) {
  const auto is_same = [&](const FailurePtr& other) { return !other->is_reported && other->reason == failure->reason; };
  if (std::ranges::none_of(failures, is_same)) {
    failures.push_back(std::move(failure));
  }
}

}  // namespace software_driver
