// The library under the driver's own name. It holds the names of the functions, so that programs can be linked with it;
// the loader takes the functions themselves from libcuda_gctx_sim.so in the same folder (DT_FILTER).
#define GCTX_SIM_NAME(symbol) \
  extern "C" __attribute__((visibility("default"))) int symbol() { return -1; }
#define GCTX_SIM_FUNCTION(symbol, base, since, ...) GCTX_SIM_NAME(symbol)
#define GCTX_SIM_ABSENT(symbol, base, since) GCTX_SIM_NAME(symbol)
#define GCTX_SIM_PER_THREAD(symbol, variant) GCTX_SIM_NAME(variant)
#include "abi/absent.def"
#include "abi/functions.def"
#include "abi/per_thread.def"
