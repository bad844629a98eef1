#include "real_driver.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>

namespace gctx::interpose {

RealDriver real;

namespace {

struct Function {
  const char* symbol;
  void* replacement;  // null: the library only calls the function
  void** slot;
};

CUresult absent() { return CUDA_ERROR_NOT_SUPPORTED; }

// Functions by their addresses in the real driver. Never destroyed, because programs look functions up at exit.
using Replacements = std::unordered_map<void*, void*>;
const Replacements* replacements = nullptr;

}  // namespace

const char* real_driver_path() {
  static const std::string* const path = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&real_driver_path), &info);
    const std::string own = info.dli_fname != nullptr ? info.dli_fname : "";
    return new std::string(own.substr(0, own.rfind('/') + 1) + "libcuda-real.so.1");
  }();
  return path->c_str();
}

void* replacement_of(void* function) {
  const auto found = replacements->find(function);
  return found != replacements->end() ? found->second : function;
}

namespace {

__attribute__((constructor)) void find_functions() {
  const Function functions[] = {
#define INTERPOSE_FUNCTION(symbol) \
  {#symbol, reinterpret_cast<void*>(&::symbol), reinterpret_cast<void**>(&real.symbol)},
#define INTERPOSE_USED(symbol) {#symbol, nullptr, reinterpret_cast<void**>(&real.symbol)},
#include "functions.def"
#include "stream_functions.def"
#undef INTERPOSE_FUNCTION
#undef INTERPOSE_USED
  };
  void* const library = dlopen(real_driver_path(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "cuda-gctx: the real driver cannot be opened: %s\n", dlerror());
    std::_Exit(127);
  }
  auto* found = new Replacements;
  for (const Function& function : functions) {
    void* const address = dlsym(library, function.symbol);
    *function.slot = address != nullptr ? address : reinterpret_cast<void*>(&absent);
    if (address != nullptr && function.replacement != nullptr) {
      found->emplace(address, function.replacement);
    }
  }
  replacements = found;
}

}  // namespace
}  // namespace gctx::interpose

using gctx::interpose::real;
using gctx::interpose::replacement_of;

// The driver chooses a variant by name, version and flags; the library replaces what the driver has chosen.
INTERPOSE_API CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                           CUdriverProcAddressQueryResult* symbolStatus) {
  const CUresult result = real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS && pfn != nullptr && *pfn != nullptr) {
    *pfn = replacement_of(*pfn);
  }
  return result;
}

INTERPOSE_API CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  const CUresult result = real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
  if (result == CUDA_SUCCESS && pfn != nullptr && *pfn != nullptr) {
    *pfn = replacement_of(*pfn);
  }
  return result;
}
