// The library under the names of the driver's own libraries. Each holds the names of the functions, so that programs
// can be linked with it; the loader takes the functions themselves from libcuda_software_driver.so in the same folder
// (DT_FILTER).
#define SOFTWARE_DRIVER_NAME(symbol) \
  extern "C" __attribute__((visibility("default"))) int symbol() { return -1; }
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) SOFTWARE_DRIVER_NAME(symbol)
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) SOFTWARE_DRIVER_NAME(symbol)
#define SOFTWARE_DRIVER_PER_THREAD(symbol, variant) SOFTWARE_DRIVER_NAME(variant)
#define SOFTWARE_DRIVER_ABSENT_PER_THREAD(symbol, variant) SOFTWARE_DRIVER_NAME(variant)
#ifdef SOFTWARE_DRIVER_FACE_OF_NVML
SOFTWARE_DRIVER_NAME(nvmlInit_v2)
SOFTWARE_DRIVER_NAME(nvmlInitWithFlags)
SOFTWARE_DRIVER_NAME(nvmlShutdown)
SOFTWARE_DRIVER_NAME(nvmlErrorString)
SOFTWARE_DRIVER_NAME(nvmlSystemGetDriverVersion)
SOFTWARE_DRIVER_NAME(nvmlSystemGetCudaDriverVersion_v2)
SOFTWARE_DRIVER_NAME(nvmlDeviceGetCount_v2)
SOFTWARE_DRIVER_NAME(nvmlDeviceGetHandleByIndex_v2)
SOFTWARE_DRIVER_NAME(nvmlDeviceGetName)
SOFTWARE_DRIVER_NAME(nvmlDeviceGetUUID)
SOFTWARE_DRIVER_NAME(nvmlDeviceGetMemoryInfo)
#else
#include "abi/absent.def"
#include "abi/functions.def"
#include "abi/per_thread.def"
#endif
