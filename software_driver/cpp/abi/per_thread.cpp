// The variants of functions whose default stream is the calling thread's own: each calls the function itself, and says
// so meanwhile.
#include "abi/abi.hpp"
#include "abi/functions.hpp"

namespace software_driver {
namespace {

thread_local bool own_default_stream = false;

template <auto function>
struct PerThread;

template <class... Arguments, CUresult(CUDAAPI* function)(Arguments...)>
struct PerThread<function> {
  static CUresult CUDAAPI call(Arguments... arguments) {
    const bool before = own_default_stream;
    own_default_stream = true;
    const CUresult result = function(arguments...);
    own_default_stream = before;
    return result;
  }
};

}  // namespace

bool default_stream_is_the_threads() noexcept { return own_default_stream; }

const PerThreadFunction per_thread_functions[] = {
#define SOFTWARE_DRIVER_PER_THREAD(symbol, variant) {Fn::symbol, reinterpret_cast<void*>(&PerThread<&::symbol>::call)},
#define SOFTWARE_DRIVER_ABSENT_PER_THREAD(symbol, variant)
#include "abi/per_thread.def"
#undef SOFTWARE_DRIVER_ABSENT_PER_THREAD
#undef SOFTWARE_DRIVER_PER_THREAD
    {Fn::count, nullptr},
};

}  // namespace software_driver

// The exported names, for programs that were linked with them.
#define SOFTWARE_DRIVER_PER_THREAD(symbol, variant) \
  SOFTWARE_DRIVER_EXPORT(variant, ::symbol, &software_driver::PerThread<&::symbol>::call)
#define SOFTWARE_DRIVER_ABSENT_PER_THREAD(symbol, variant)
#include "abi/per_thread.def"
#undef SOFTWARE_DRIVER_ABSENT_PER_THREAD
#undef SOFTWARE_DRIVER_PER_THREAD
