// The core without Python: splits, leases, blocks and the process states, on the software driver.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "driver/process.hpp"
#include "handles/blocks.hpp"
#include "handles/capture.hpp"
#include "handles/closing.hpp"
#include "handles/event.hpp"
#include "handles/graph.hpp"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "handles/slot.hpp"
#include "handles/stream.hpp"
#include "tests/check.hpp"
#include "tests/machine.hpp"

using namespace gctx;
using gctx::test::close_context;
using gctx::test::current_of;
using gctx::test::groups_of;
using gctx::test::Machine;
using gctx::test::message_of;
using gctx::test::open_context;
using gctx::test::split;

namespace {

ThreadBlocks& here() { return ThreadBlocks::here(); }

std::vector<ContextHandle> two_contexts(Runtime& runtime) {
  const auto groups = split(runtime, {16, 16});
  return {open_context(runtime, groups.group(0)), open_context(runtime, groups.group(1))};
}

void groups_are_put_together_out_of_the_units_of_one_split() {
  for (const char* spec : {"h200@12.4", "h200@13.0", "h200@13.1", "h200@13.4"}) {
    Machine machine(spec);
    Runtime& runtime = machine.runtime();
    const auto result = split_resource(runtime, runtime.device_sm(0), groups_of({8, 16, 24}), false);
    CHECK(result.groups() == 3);
    CHECK(result.group(0)->sm_count == 8);
    CHECK(result.group(1)->sm_count == 16);
    CHECK(result.group(2)->sm_count == 24);
    CHECK(result.remainder()->sm_count == 84);
    CHECK(overlaps(*result.group(0), *result.group(1)) == false);
    CHECK(overlaps(*result.group(2), *result.remainder()) == false);
    const auto again = split_resource(runtime, runtime.device_sm(0), groups_of({8}), false);
    CHECK(overlaps(*again.group(0), *result.group(1)) != false);
  }
}

void a_vector_that_was_moved_from_is_empty() {
  InlineVector<int, 2> few;
  few.push_back(1);
  InlineVector<int, 2> many;
  many.append(std::vector{1, 2, 3});
  const InlineVector<int, 2> from_few = std::move(few);
  const InlineVector<int, 2> from_many = std::move(many);
  CHECK(from_few.size() == 1 && from_few.front() == 1);
  CHECK(from_many.size() == 3 && from_many[2] == 3);
  CHECK(few.empty() && few.begin() == few.end());
  CHECK(many.empty() && many.begin() == many.end());
  many.push_back(4);
  CHECK(many.size() == 1 && many.front() == 4);
}

void a_refused_split_names_one_that_fits() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  try {
    split_resource(runtime, runtime.device_sm(0), groups_of({100, 100}), false);
    CHECK(false);
  } catch (const SplitFailure& failure) {
    CHECK(failure.suggestion.has_value());
    const auto result = split_resource(runtime, runtime.device_sm(0), *failure.suggestion, false);
    CHECK(result.groups() == failure.suggestion->size());
  }
}

void a_stream_keeps_the_sms_of_a_closed_context() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto groups = split(runtime, {16});
  auto context = open_context(runtime, groups.group(0));
  auto stream = create_stream(context, std::nullopt, true);
  close_context(context);
  synchronize_stream(stream);
  CHECK(message_of<Error>([&] { create_stream(context, std::nullopt, true); }).find("closed") != std::string::npos);
  CHECK(!message_of<Error>([&] { open_context(runtime, groups.group(0), true); }).empty());
  stream.reset();
  // Its SMs are free as soon as the last stream is gone, although a handle of the context still exists.
  CHECK(message_of<Error>([&] { open_context(runtime, groups.group(0), true); }).empty());
}

void a_closed_context_is_used_again() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto groups = split(runtime, {16, 16});
  auto context = open_context(runtime, groups.group(0));
  const CUcontext handle = context->handle();
  close_context(context);
  const auto again = open_context(runtime, groups.group(0));
  CHECK(again->handle() == handle && context->is_closed() && !again->is_closed());
  CHECK(open_context(runtime, groups.group(1))->handle() != handle);
  CHECK(context_pool(runtime).counts(0).contexts == 2);
}

void the_streams_of_a_context_are_the_same_for_all() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto context = open_context(runtime, split(runtime, {16}).group(0));
  const auto first = context_stream(context, std::nullopt, 0);
  CHECK(context_stream(context, 0, 0)->handle() == first->handle());
  CHECK(context_stream(context, std::nullopt, 1)->handle() != first->handle());
  CHECK(context_stream(context, -1, 0)->handle() != first->handle());
  CHECK(!first->is_owned());
  CHECK(adopt_stream(runtime, first->handle())->context() == context);
  close_context(context);
  CHECK(!message_of<Error>([&] { synchronize_stream(first); }).empty());
  CHECK(!message_of<Error>([&] { context_stream(context, std::nullopt, 0); }).empty());
}

void a_context_that_is_current_elsewhere_cannot_be_closed() {
  Machine machine;
  const auto context = two_contexts(machine.runtime())[0];
  const BlockHandle block = here().enter(context, nullptr);
  std::string said;
  std::thread([&] { said = message_of<Error>([&] { close_context(context); }); }).join();
  CHECK(said.find("another thread") != std::string::npos);
  here().leave(block, nullptr);
  close_context(context);
}

void what_was_current_before_a_block_is_current_after_it() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const Driver& driver = runtime.driver();
  const auto contexts = two_contexts(runtime);
  const CUcontext a = contexts[0]->handle();
  const CUcontext b = contexts[1]->handle();
  const CUcontext base = primary_context(runtime, 0)->handle();
  const std::vector<std::vector<CUcontext>> pushed = {{}, {a}, {b}, {a, a}, {b, b}, {a, b}, {b, a}, {b, b, a, a, b}};
  for (const CUcontext before : {CUcontext{nullptr}, base, a, b}) {
    for (const auto& inner : pushed) {
      for (const std::size_t popped_inside : {0U, 1U, 3U}) {
        driver.cuCtxSetCurrent(before);
        const BlockHandle block = here().enter(contexts[0], nullptr);
        CUcontext popped = nullptr;
        for (const CUcontext context : inner) {
          driver.cuCtxPushCurrent(context);
        }
        for (std::size_t i = 0; i < popped_inside && current_of(runtime) != nullptr; ++i) {
          driver.cuCtxPopCurrent(&popped);
        }
        here().leave(block, nullptr);
        CHECK(current_of(runtime) == before);
        while (current_of(runtime) != nullptr) {
          driver.cuCtxPopCurrent(&popped);
        }
        close_context(open_context(runtime, sm_resource(contexts[0])));  // current nowhere
      }
    }
  }
}

void a_block_that_is_left_on_another_thread_ends_with_its_own() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto contexts = two_contexts(runtime);
  const BlockHandle outer = here().enter(contexts[0], nullptr);
  const BlockHandle inner = here().enter(contexts[1], nullptr);
  std::string said;
  std::thread([&] { said = message_of<Error>([&] { here().leave(outer, nullptr); }); }).join();
  CHECK(said.find("on another thread") != std::string::npos);
  CHECK(current_of(runtime) == contexts[1]->handle());
  CHECK(!message_of<Error>([&] { close_context(contexts[0]); }).empty());
  here().leave(inner, nullptr);
  CHECK(current_of(runtime) == nullptr);
  close_context(contexts[0]);
}

// A thread uses the memory of its last block again, but not while a caller still holds that block.
void a_block_that_is_over_stays_over() {
  Machine machine;
  const auto contexts = two_contexts(machine.runtime());
  const BlockHandle first = here().enter(contexts[0], nullptr);
  here().leave(first, nullptr);
  for (int round = 0; round < 3; ++round) {
    const BlockHandle next = here().enter(contexts[1], nullptr);
    CHECK(message_of<Error>([&] { here().leave(first, nullptr); }).find("not open") != std::string::npos);
    CHECK(current_of(machine.runtime()) == contexts[1]->handle());
    here().leave(next, nullptr);
  }
  close_context(contexts[0]);
  close_context(contexts[1]);
}

void two_tasks_of_a_thread_cannot_have_a_block_each() {
  Machine machine;
  const auto contexts = two_contexts(machine.runtime());
  const int tasks[2] = {};
  const BlockHandle block = here().enter(contexts[0], &tasks[0]);
  CHECK(message_of<Error>([&] { here().enter(contexts[1], &tasks[1]); }).find("belongs to another task") !=
        std::string::npos);
  CHECK(!message_of<Error>([&] { here().set(contexts[1]); }).empty());
  CHECK(message_of<Error>([&] { here().leave(block, &tasks[1]); }).find("was entered in another task") !=
        std::string::npos);
  CHECK(current_of(machine.runtime()) == nullptr);
}

void what_was_set_goes_with_its_thread() {
  Machine machine;
  const auto context = two_contexts(machine.runtime())[0];
  std::thread([&] { here().set(context); }).join();
  close_context(context);
}

// The first form takes more than twice as long (seen on an H200 with driver 13.0).
void the_newest_form_of_a_function_is_called() {
  for (const auto& [driver, symbol] :
       {std::pair{"h200@12.4", "cuEventElapsedTime"}, std::pair{"h200@13.0", "cuEventElapsedTime_v2"}}) {
    Machine machine(driver);
    const Driver& table = machine.runtime().driver();
    void* const library = dlopen(table.path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    CHECK(reinterpret_cast<void*>(table.cuEventElapsedTime) == dlsym(library, symbol));
  }
}

void what_is_taken_from_a_slot_during_calls_goes_with_the_last_of_them() {
  Machine machine;
  Slot<ContextBox> slot;
  std::vector<ContextHandle> contexts = two_contexts(machine.runtime());
  CHECK(slot.put(contexts[0]) && !slot.put(contexts[1]));
  CHECK(contexts[0] == nullptr && contexts[1] != nullptr);
  const std::weak_ptr<ContextBox> kept = slot.get();
  const ContextHandle* const first = slot.begin_call();
  const ContextHandle* const second = slot.begin_call();
  CHECK(slot.take() == nullptr && slot.take() == nullptr);  // nothing for who closes it to let go of
  CHECK(slot.get() == nullptr && slot.begin_call() == nullptr);
  CHECK((*first)->handle() != nullptr && slot.end_call() == nullptr);
  CHECK((*second)->handle() != nullptr && !kept.expired());
  CHECK(slot.end_call() != nullptr);
  CHECK(kept.expired());
  CHECK(slot.take() == nullptr && slot.was_filled());
  CHECK(slot.put(contexts[1]) && slot.take() != nullptr);  // it can be filled again
}

void a_context_of_a_device_that_is_not_listed_is_refused() {
  Machine machine;
  auto& driver = const_cast<Driver&>(machine.runtime().driver());
  CUcontext foreign = nullptr;
  CHECK(driver.cuDevicePrimaryCtxRetain(&foreign, 0) == CUDA_SUCCESS);
  const auto real = driver.cuCtxGetDevice;
  driver.cuCtxGetDevice = [](CUdevice* device) {
    *device = 7;
    return CUDA_SUCCESS;
  };
  const std::string said = message_of<Error>([&] { adopt_context(machine.runtime(), foreign); });
  driver.cuCtxGetDevice = real;
  CHECK(said == "the context belongs to a device that the driver does not list");
  CHECK(current_of(machine.runtime()) == nullptr);
  CHECK(driver.cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

void objects_of_a_driver_that_is_set_aside_wait() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  auto contexts = two_contexts(runtime);
  auto stream = create_stream(contexts[0], std::nullopt, true);
  auto event = create_event(contexts[0], 0);
  Runtime::set_aside_active();
  CHECK(message_of<Error>([&] { synchronize_stream(stream); }).find("inactive") != std::string::npos);
  stream.reset();
  event.reset();
  contexts.clear();
  Runtime::resume();
  CHECK(context_pool(runtime).counts(0).idle == 2);
  CHECK(release_contexts(runtime, true).destroyed == 2);
}

void contexts_are_not_made_and_not_waited_for_during_a_capture() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto groups = split(runtime, {16, 16});
  const auto context = open_context(runtime, groups.group(0));
  const auto stream = create_stream(context, std::nullopt, true);
  const auto event = create_event(context, 0);
  void* const library = dlopen(runtime.driver().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto begin =
      reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureMode)>(dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<CUresult (*)(CUstream, CUgraph*)>(dlsym(library, "cuStreamEndCapture"));
  stream->expose();
  CHECK(begin(stream->handle(), CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(!message_of<Error>([&] { record_context_event(context, event); }).empty());
  CHECK(!message_of<Error>([&] { wait_context_event(context, event); }).empty());
  CHECK(!message_of<Error>([&] { synchronize_context(context); }).empty());
  CHECK(!message_of<Error>([&] { synchronize_stream(stream); }).empty());
  CHECK(message_of<Error>([&] { open_context(runtime, groups.group(1)); }).find("contexts cannot be created") !=
        std::string::npos);
  CUgraph graph = nullptr;
  CHECK(end(stream->handle(), &graph) == CUDA_SUCCESS);
  record_context_event(context, event);
}

void exclusive_contexts_do_not_share() {
  Machine machine;
  Runtime& runtime = machine.runtime();
  const auto groups = split(runtime, {16, 16});
  const auto first = open_context(runtime, groups.group(0));
  CHECK(!message_of<Error>([&] { open_context(runtime, groups.group(0), true); }).empty());
  CHECK(message_of<Error>([&] { open_context(runtime, groups.group(1), true); }).empty());
}

void objects_of_a_closed_driver_do_nothing() {
  ContextHandle context;
  {
    Machine machine;
    context = two_contexts(machine.runtime())[0];
  }
  CHECK(!message_of<Error>([&] { create_stream(context, std::nullopt, true); }).empty());
  context.reset();
  char text[64];
  CHECK(!take_failure(text, sizeof(text)));
}

void a_forked_child_is_reported() {
  Machine machine;
  const pid_t child = fork();
  if (child == 0) {
    const std::string said = message_of<Error>([] { Runtime::active(); });
    begin_exit();
    _exit(said.find("forked") != std::string::npos && is_forked() ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  CHECK(!message_of<Error>([] { Driver("/nonexistent/libcuda.so"); }).empty());
  groups_are_put_together_out_of_the_units_of_one_split();
  a_vector_that_was_moved_from_is_empty();
  a_refused_split_names_one_that_fits();
  a_stream_keeps_the_sms_of_a_closed_context();
  a_closed_context_is_used_again();
  the_streams_of_a_context_are_the_same_for_all();
  a_context_that_is_current_elsewhere_cannot_be_closed();
  what_was_current_before_a_block_is_current_after_it();
  a_block_that_is_left_on_another_thread_ends_with_its_own();
  a_block_that_is_over_stays_over();
  two_tasks_of_a_thread_cannot_have_a_block_each();
  what_was_set_goes_with_its_thread();
  the_newest_form_of_a_function_is_called();
  what_is_taken_from_a_slot_during_calls_goes_with_the_last_of_them();
  a_context_of_a_device_that_is_not_listed_is_refused();
  objects_of_a_driver_that_is_set_aside_wait();
  contexts_are_not_made_and_not_waited_for_during_a_capture();
  exclusive_contexts_do_not_share();
  objects_of_a_closed_driver_do_nothing();
  a_forked_child_is_reported();
  return gctx::test::summary("core_test");
}
