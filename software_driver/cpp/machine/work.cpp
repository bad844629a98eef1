// The end of a process whose bookkeeping is wrong.
#include "machine/work.hpp"

#include <cstdio>
#include <cstdlib>

namespace gctx::sim {

void broken_law(const char* what) {
  std::fprintf(stderr, "cuda_gctx software driver (simulated): a fault of the driver itself: %s\n", what);
  std::abort();
}

}  // namespace gctx::sim
