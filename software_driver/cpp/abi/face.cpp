// The library under the names of the driver's own libraries. Each holds the names of the functions, so that programs
// can be linked with it; the loader takes the functions themselves from libcuda_gctx_sim.so in the same folder
// (DT_FILTER).
#define GCTX_SIM_NAME(symbol) \
  extern "C" __attribute__((visibility("default"))) int symbol() { return -1; }
#define GCTX_SIM_FUNCTION(symbol, base, since, ...) GCTX_SIM_NAME(symbol)
#define GCTX_SIM_ABSENT(symbol, base, since) GCTX_SIM_NAME(symbol)
#define GCTX_SIM_PER_THREAD(symbol, variant) GCTX_SIM_NAME(variant)
#define GCTX_SIM_NVML(symbol, parameters) GCTX_SIM_NAME(symbol)
#ifdef GCTX_SIM_FACE_OF_NVML
#include "abi/nvml.def"
GCTX_SIM_NAME(nvmlErrorString)
#else
#include "abi/absent.def"
#include "abi/functions.def"
#include "abi/per_thread.def"
#endif
