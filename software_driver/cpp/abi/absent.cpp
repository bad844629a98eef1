// Exports for the functions that are not modelled. A caller may pass any arguments: they are not looked at, so the
// header that declares them stays out of this file.
#include "abi/functions.hpp"

namespace {

enum class Absent : std::size_t {
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) symbol,
#include "abi/absent.def"
#undef SOFTWARE_DRIVER_ABSENT
};

}  // namespace

#define SOFTWARE_DRIVER_ABSENT(symbol, base, since)                     \
  extern "C" __attribute__((visibility("default"))) int symbol() {      \
    return software_driver::answer_absent(std::size_t(Absent::symbol)); \
  }
#include "abi/absent.def"
#undef SOFTWARE_DRIVER_ABSENT

// Their variants with a default stream per thread count as the functions themselves.
#define SOFTWARE_DRIVER_PER_THREAD(symbol, variant)
#define SOFTWARE_DRIVER_ABSENT_PER_THREAD(symbol, variant) \
  extern "C" __attribute__((visibility("default"))) int variant() { return ::symbol(); }
#include "abi/per_thread.def"
#undef SOFTWARE_DRIVER_ABSENT_PER_THREAD
#undef SOFTWARE_DRIVER_PER_THREAD

namespace software_driver {

void* const absent_addresses[] = {
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) reinterpret_cast<void*>(&::symbol),
#include "abi/absent.def"
#undef SOFTWARE_DRIVER_ABSENT
};

}  // namespace software_driver
