// The allocations that calls of the core make: how many, and what is left where one of them fails. The core is linked
// into this program: whether the `operator new` of a program reaches its shared libraries depends on the toolchain.
#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "handles/blocks.hpp"
#include "handles/closing.hpp"
#include "handles/event.hpp"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "handles/stream.hpp"
#include "tests/check.hpp"
#include "tests/machine.hpp"

using namespace gctx;
using gctx::test::groups_of;
using gctx::test::open_context;

namespace {

// Of the calling thread, as long as it counts: those of this program, which contains the core.
thread_local bool is_counting = false;
thread_local int allocations = 0;
thread_local int failing = -1;  // the number of the one that fails

// False for the one that fails.
bool count_allocation(const void* caller) noexcept {
  if (!std::exchange(is_counting, false)) {
    return true;
  }
  Dl_info from{};
  Dl_info here{};
  const bool is_own = dladdr(caller, &from) != 0 && dladdr(reinterpret_cast<void*>(&count_allocation), &here) != 0 &&
                      from.dli_fbase == here.dli_fbase;
  is_counting = true;
  return !is_own || allocations++ != failing;
}

template <typename Work>
int allocations_of(Work&& work, int which_fails = -1) {
  allocations = 0;
  failing = which_fails;
  is_counting = true;
  try {
    work();
  } catch (...) {
    is_counting = false;
    throw;
  }
  is_counting = false;
  return allocations;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = count_allocation(__builtin_return_address(0)) ? std::malloc(size) : nullptr;
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t& /*unused*/) noexcept {
  return count_allocation(__builtin_return_address(0)) ? std::malloc(size) : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*unused*/) noexcept { std::free(memory); }

namespace {

void a_split_and_a_stream_allocate_little() {
  Runtime& runtime = test::open_machine();
  const auto whole = runtime.device_sm(0);
  const auto requests = groups_of({8, 16, 24});
  SplitResult split = split_resource(runtime, whole, requests, false);
  const int of_split = allocations_of([&] { split = split_resource(runtime, whole, requests, false); });
  {
    const ContextHandle context = open_context(runtime, split.group(0));
    auto stream = create_stream(context, std::nullopt, true);
    const int of_stream = allocations_of([&] { stream = create_stream(context, std::nullopt, true); });
    std::printf("allocations: %d of a split of three, %d of a stream\n", of_split, of_stream);
    CHECK(of_split > 0 && of_split <= 7);
    CHECK(of_stream == 2);  // its box, which contains the entry in the registry, and its events
  }
  close_driver(runtime);
}

// What there is for the calls below.
struct World {
  Runtime& runtime;
  SplitResult split;
  ContextHandle context;
  StreamHandle stream;
};

// Every allocation of a call fails in turn: what is current stays, and nothing is destroyed twice or left alive.
void no_allocation_is_needed_to_undo(const char* name, const std::function<void(World&)>& call) {
  int number = 0;
  for (bool is_over = false; !is_over; ++number) {
    Runtime& runtime = test::open_machine();
    void* const library = dlopen(runtime.driver().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto ledger = reinterpret_cast<const char* (*)()>(dlsym(library, "softwareDriverLedger"));
    {
      World world{runtime, {}, nullptr, nullptr};
      if (std::string_view(name) != "primary") {
        world.split = split_resource(runtime, runtime.device_sm(0), groups_of({16, 16}), false);
        world.context = open_context(runtime, world.split.group(0));
        world.stream = create_stream(world.context, std::nullopt, true);
      }
      CUcontext before = nullptr;
      CUcontext after = nullptr;
      runtime.driver().cuCtxGetCurrent(&before);
      try {
        is_over = allocations_of([&] { call(world); }, number) <= number;
      } catch (const std::bad_alloc&) {
      }
      runtime.driver().cuCtxGetCurrent(&after);
      CHECK(after == before);
      if (world.context) {  // no SMs stay claimed
        open_context(runtime, world.split.group(1), true);
      }
    }
    close_driver(runtime);
    const std::string left = ledger();
    CHECK(left.find("\"misuse\":[]") != std::string::npos);
    CHECK(left.find("\"live\":[]") != std::string::npos);
    CHECK(number < 200);
    if (gctx::test::failures != 0) {
      std::fprintf(stderr, "%s, allocation %d: %s\n", name, number, left.c_str());
      return;
    }
  }
  CHECK(number > 1);  // some did fail
}

// What is destroyed without memory, and fails, ends nothing but itself.
void a_destruction_that_fails_needs_no_memory() {
  Runtime& runtime = test::open_machine();
  void* const library = dlopen(runtime.driver().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto fail =
      reinterpret_cast<int (*)(const char*, unsigned long long, int)>(dlsym(library, "softwareDriverFailNth"));
  {
    const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16}), false);
    ContextHandle context = open_context(runtime, split.group(0));
    StreamHandle stream = create_stream(context, std::nullopt, true);
    EventHandle event = create_event(context, 0);
    for (const char* call : {"cuStreamDestroy", "cuEventDestroy"}) {
      CHECK(fail(call, 1, CUDA_ERROR_UNKNOWN) == 0);
    }
    const int made = allocations_of([&] {
      event.reset();
      stream.reset();
      context.reset();
    });
    CHECK(made == 0);
    char text[256];
    CHECK(take_failure(text, sizeof(text)));
  }
  close_driver(runtime);
}

}  // namespace

int main() {
  a_split_and_a_stream_allocate_little();
  no_allocation_is_needed_to_undo("primary", [](World& world) { primary_context(world.runtime, 0); });
  no_allocation_is_needed_to_undo("context", [](World& world) { open_context(world.runtime, world.split.group(1)); });
  no_allocation_is_needed_to_undo("stream", [](World& world) { create_stream(world.context, std::nullopt, true); });
  no_allocation_is_needed_to_undo("event", [](World& world) { create_event(world.context, 0); });
  no_allocation_is_needed_to_undo("stream of a context",
                                  [](World& world) { context_stream(world.context, std::nullopt, 3); });
  no_allocation_is_needed_to_undo("block", [](World& world) {
    const BlockHandle block = ThreadBlocks::here().enter(world.context, nullptr);
    world.runtime.driver().cuCtxPushCurrent(world.context->handle());  // of a library
    ThreadBlocks::here().leave(block, nullptr);
  });
  no_allocation_is_needed_to_undo("what is set", [](World& world) {
    ThreadBlocks::here().set(world.context);
    ThreadBlocks::here().end();
  });
  no_allocation_is_needed_to_undo("split", [](World& world) {
    split_resource(world.runtime, world.runtime.device_sm(0), groups_of({8, 16, 24}), false);
  });
  a_destruction_that_fails_needs_no_memory();
  return gctx::test::summary("allocation_test");
}
