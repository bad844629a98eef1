// The library under the names of the driver's own libraries. Each holds the names of the functions, so that programs
// can be linked with it; the loader takes the functions themselves from libcuda_software_driver.so in the same folder
// (DT_FILTER).
#define SOFTWARE_DRIVER_NAME(symbol) \
  extern "C" __attribute__((visibility("default"))) int symbol() { return -1; }
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) SOFTWARE_DRIVER_NAME(symbol)
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) SOFTWARE_DRIVER_NAME(symbol)
#define SOFTWARE_DRIVER_PER_THREAD(symbol, variant) SOFTWARE_DRIVER_NAME(variant)
#define SOFTWARE_DRIVER_ABSENT_PER_THREAD(symbol, variant) SOFTWARE_DRIVER_NAME(variant)
#define SOFTWARE_DRIVER_NVML(symbol, parameters) SOFTWARE_DRIVER_NAME(symbol)
#ifdef SOFTWARE_DRIVER_FACE_OF_NVML
#include "abi/nvml.def"
SOFTWARE_DRIVER_NAME(nvmlErrorString)
#else
#include "abi/absent.def"
#include "abi/functions.def"
#include "abi/per_thread.def"
#endif
