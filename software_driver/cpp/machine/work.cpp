// The end of a process whose bookkeeping is wrong.
#include "machine/work.hpp"

#include <cstdio>
#include <cstdlib>

namespace software_driver {

void broken_law(const char* what) {
  std::fprintf(stderr, "software driver (simulated): a fault of the driver itself: %s\n", what);
  std::abort();
}

}  // namespace software_driver
