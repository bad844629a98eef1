// How many allocations calls of the core make. The core is linked into this program: whether the `operator new` of a
// program reaches its shared libraries depends on the toolchain.
#include <dlfcn.h>

#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

#include "handles/claim.hpp"
#include "handles/runtime.hpp"
#include "handles/stream.hpp"
#include "tests/check.hpp"

using namespace gctx;

namespace {

// Of the calling thread, as long as it counts: all, and those that the software driver makes.
thread_local bool is_counting = false;
thread_local int all = 0;
thread_local int of_driver = 0;

void count_allocation(const void* caller) noexcept {
  if (!std::exchange(is_counting, false)) {
    return;
  }
  ++all;
  Dl_info found{};
  if (dladdr(caller, &found) != 0 && std::string_view(found.dli_fname).find("libcuda_gctx_sim") != std::string::npos) {
    ++of_driver;
  }
  is_counting = true;
}

template <typename Work>
int allocations_of(Work&& work) {
  all = of_driver = 0;
  is_counting = true;
  work();
  is_counting = false;
  return all - of_driver;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  count_allocation(__builtin_return_address(0));
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t& /*unused*/) noexcept {
  count_allocation(__builtin_return_address(0));
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*unused*/) noexcept { std::free(memory); }

int main() {
  Runtime& runtime = Runtime::open(CUDA_GCTX_SIM_LIBRARY);
  const auto whole = runtime.device_sm(0);
  std::vector<GroupRequest> requests(3);
  requests[0].count = 8;
  requests[1].count = 16;
  requests[2].count = 24;
  SplitResult split = split_resource(runtime, whole, requests, false);
  const int of_split = allocations_of([&] { split = split_resource(runtime, whole, requests, false); });
  {
    NewContext fresh(runtime, 0, {split.groups[0]}, std::nullopt, "", false, true);
    const ContextHandle context = fresh.create();
    auto stream = create_stream(context, std::nullopt, true);
    const int of_stream = allocations_of([&] { stream = create_stream(context, std::nullopt, true); });
    std::printf("allocations: %d of a split of three, %d of a stream\n", of_split, of_stream);
    CHECK(of_split > 0 && of_split <= 7);
    CHECK(of_stream == 1);  // its box; the entry in the registry is part of it
  }
  Runtime::close(runtime);
  return gctx::test::summary("allocation_test");
}
