// The variants of functions whose default stream is the calling thread's own: each calls the function itself, and says
// so meanwhile.
#include "abi/abi.hpp"
#include "abi/functions.hpp"

namespace gctx::sim {
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
#define GCTX_SIM_PER_THREAD(symbol, variant) {Fn::symbol, reinterpret_cast<void*>(&PerThread<&::symbol>::call)},
#include "abi/per_thread.def"
#undef GCTX_SIM_PER_THREAD
    {Fn::count, nullptr},
};

}  // namespace gctx::sim

// The exported names, for programs that were linked with them. The loader asks which address a name stands for before
// anything is initialised, a sanitizer's own state included.
#define GCTX_SIM_PER_THREAD(symbol, variant)                                                      \
  extern "C" {                                                                                    \
  __attribute__((no_sanitize("address", "thread", "undefined"), used)) static decltype(&::symbol) \
  resolve_##variant() {                                                                           \
    return &gctx::sim::PerThread<&::symbol>::call;                                                \
  }                                                                                               \
  __attribute__((visibility("default"), ifunc("resolve_" #variant))) decltype(::symbol) variant;  \
  }
#include "abi/per_thread.def"
#undef GCTX_SIM_PER_THREAD
