// Exports for the functions of the runtime that are not modelled: every name that no other source defines. A caller may
// pass any arguments: they are not looked at, so the header that declares them stays out of this file.
#include "runtime/absent.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

// Names a function once, and answers cudaErrorNotSupported.
int answer(const char* name, std::atomic<bool>& is_named) {
  if (!is_named.exchange(true)) {
    std::fprintf(stderr, "software driver (simulated): %s is not modelled: cudaErrorNotSupported\n", name);
  }
  return cuda_runtime::refuse_absent();
}

}  // namespace

#define CUDART_NAME(symbol)                                              \
  extern "C" __attribute__((weak, visibility("default"))) int symbol() { \
    static std::atomic<bool> is_named;                                   \
    return answer(#symbol, is_named);                                    \
  }
#include "runtime/names.def"
#undef CUDART_NAME
