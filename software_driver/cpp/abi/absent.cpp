// Exports for the functions that are not modelled. A caller may pass any arguments: they are not looked at, so the
// header that declares them stays out of this file.
#include "abi/functions.hpp"

namespace {

enum class Absent : std::size_t {
#define GCTX_SIM_ABSENT(symbol, base, since) symbol,
#include "abi/absent.def"
#undef GCTX_SIM_ABSENT
};

}  // namespace

#define GCTX_SIM_ABSENT(symbol, base, since)                       \
  extern "C" __attribute__((visibility("default"))) int symbol() { \
    return gctx::sim::answer_absent(std::size_t(Absent::symbol));  \
  }
#include "abi/absent.def"
#undef GCTX_SIM_ABSENT

namespace gctx::sim {

void* const absent_addresses[] = {
#define GCTX_SIM_ABSENT(symbol, base, since) reinterpret_cast<void*>(&::symbol),
#include "abi/absent.def"
#undef GCTX_SIM_ABSENT
};

}  // namespace gctx::sim
