// The core without Python: splits, provenance, lifetimes and the process states, on the software driver.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "driver/process.hpp"
#include "handles/capture.hpp"
#include "handles/closing.hpp"
#include "handles/current.hpp"
#include "handles/event.hpp"
#include "handles/given.hpp"
#include "handles/graph.hpp"
#include "handles/probe.hpp"
#include "handles/runtime.hpp"
#include "handles/slot.hpp"
#include "handles/split_contexts.hpp"
#include "handles/stream.hpp"
#include "handles/switching.hpp"
#include "tests/block.hpp"
#include "tests/check.hpp"
#include "tests/machine.hpp"

using namespace gctx;
using gctx::test::Block;
using gctx::test::message_of;

namespace {

std::vector<GroupRequest> groups_of(std::vector<unsigned> counts) {
  std::vector<GroupRequest> requests;
  for (const unsigned count : counts) {
    GroupRequest request;
    request.count = count;
    requests.push_back(request);
  }
  return requests;
}

ContextHandle green_context(Runtime& runtime, const SmResourcePtr& sms, bool exclusive = false) {
  return claim_context(runtime, 0, {sms}, std::nullopt, "test", exclusive, true)->create();
}

// Every machine that a test opens is closed again, whatever happens.
class Machine {
 public:
  explicit Machine(const char* spec) : runtime_(test::open_machine(spec)) {}
  ~Machine() { close_driver(runtime_); }
  Runtime& runtime() { return runtime_; }

 private:
  Runtime& runtime_;
};

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
  Machine machine("h200@13.0");
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

void a_stream_keeps_its_closed_context_alive() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16}), false);
  auto context = green_context(runtime, split.group(0));
  auto stream = create_stream(context, std::nullopt, true);
  context->close();
  synchronize_stream(stream);
  CHECK(message_of<Error>([&] { create_stream(context, std::nullopt, true); }).find("closed") != std::string::npos);
  stream.reset();
  // Its place is free as soon as the last stream is gone, although a handle still exists.
  CHECK(message_of<Error>([&] { green_context(runtime, split.group(0), true); }).empty());
}

void the_streams_of_a_context_are_the_same_for_all_and_go_with_it() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16}), false);
  auto context = green_context(runtime, split.group(0));
  auto first = context_stream(context, std::nullopt, 0);
  CHECK(context_stream(context, 0, 0) == first);
  CHECK(context_stream(context, std::nullopt, 1)->handle() != first->handle());
  CHECK(context_stream(context, -1, 0)->handle() != first->handle());
  CHECK(!first->is_owned());
  const CUstream handle = first->handle();
  first.reset();
  CHECK(adopt_stream(runtime, handle)->context() == context);
  auto again = context_stream(context, std::nullopt, 0);
  CHECK(again->handle() == handle);
  // In use, the context outlives its being closed; without users its streams keep nothing.
  context->close();
  synchronize_stream(again);
  CHECK(!message_of<Error>([&] { context_stream(context, std::nullopt, 0); }).empty());
  again.reset();
  CHECK(message_of<Error>([&] { green_context(runtime, split.group(0), true); }).empty());
  // Closing the driver takes those of the primary context along, whoever refers to it.
  auto primary = primary_context(runtime, 0);
  context_stream(primary, std::nullopt, 0);
}

void a_context_that_is_current_elsewhere_cannot_be_closed() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16}), false);
  auto context = green_context(runtime, split.group(0));
  Block block(context);
  std::string said;
  std::thread([&] { said = message_of<Error>([&] { context->close(); }); }).join();
  CHECK(said.find("another thread") != std::string::npos);
  block.leave();
  context->close();
}

std::vector<ContextHandle> two_contexts(Runtime& runtime) {
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16, 16}), false);
  return {green_context(runtime, split.group(0)), green_context(runtime, split.group(1))};
}

CUcontext current_of(Runtime& runtime) {
  CUcontext current = nullptr;
  runtime.driver().cuCtxGetCurrent(&current);
  return current;
}

void a_block_that_is_left_too_early_keeps_its_context_and_goes_with_the_inner_one() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  auto contexts = two_contexts(runtime);
  const CUcontext inner_handle = contexts[1]->handle();
  Block outer(contexts[0]);
  Block inner(contexts[1]);
  const std::string said = message_of<Error>([&] { outer.leave(); });
  CHECK(said.find("was left before the block of context 'test', which was entered inside it") != std::string::npos);
  CHECK(current_of(runtime) == inner_handle);
  CHECK(message_of<Error>([&] { outer.leave(); }).find("left already") != std::string::npos);
  const std::weak_ptr<ContextBox> kept = contexts[0];
  contexts.clear();
  CHECK(!kept.expired());  // the entry keeps it
  CHECK(live_contexts(runtime).counts(0).destroyed == 0);
  inner.leave();
  CHECK(current_of(runtime) == nullptr);
  CHECK(kept.expired());
  CHECK(live_contexts(runtime).counts(0).destroyed == 2);
}

void a_block_that_is_left_on_another_thread_goes_on_its_own() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  auto contexts = two_contexts(runtime);
  Block block(contexts[0]);
  std::string said;
  std::thread([&] { said = message_of<Error>([&] { block.leave(); }); }).join();
  CHECK(said.find("was entered on another thread") != std::string::npos);
  CHECK(current_of(runtime) == contexts[0]->handle());
  Block next(contexts[1]);  // the first thing that this thread does ends it
  next.leave();
  CHECK(current_of(runtime) == nullptr);
  contexts[0]->close();
}

void what_was_current_before_a_block_is_current_after_it() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const Driver& driver = runtime.driver();
  const auto contexts = two_contexts(runtime);
  const CUcontext a = contexts[0]->handle();
  const CUcontext b = contexts[1]->handle();
  CUcontext popped = nullptr;
  const CUcontext base = primary_context(runtime, 0)->handle();
  const std::vector<std::vector<CUcontext>> pushed = {{}, {a}, {b}, {a, a}, {b, b}, {a, b}, {b, a}, {b, b, a, a, b}};
  for (const CUcontext before : {CUcontext{nullptr}, base, a, b}) {
    for (const auto& inner : pushed) {
      driver.cuCtxSetCurrent(before);
      Block block(contexts[0]);
      for (const CUcontext context : inner) {
        driver.cuCtxPushCurrent(context);
      }
      block.leave();
      // Where the block's own context is on top, that is the only one that goes.
      const bool is_own = !inner.empty() && inner.back() == a;
      CHECK(current_of(runtime) == (!is_own ? before : inner.size() > 1 ? inner[inner.size() - 2] : a));
      std::size_t depth = 0;
      for (; current_of(runtime) != nullptr; ++depth) {
        driver.cuCtxPopCurrent(&popped);
      }
      CHECK(depth == (before != nullptr ? 1U : 0U) + (is_own ? inner.size() : 0U));
    }
  }
}

// What is set inside a block, even with the last handle, is destroyed once the driver shows it no more.
void what_was_set_in_a_block_outlives_it_in_the_driver() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  auto contexts = two_contexts(runtime);
  for (const bool is_foreign_on_top : {false, true}) {
    Block block(contexts[0]);
    ThreadEntries::here().set(contexts[1], nullptr);
    if (is_foreign_on_top) {
      runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());
      ThreadEntries::here().set(contexts[0], nullptr);
    }
    block.leave();
    CHECK(current_of(runtime) == nullptr);
  }
  ThreadEntries::here().set(contexts[0], nullptr);
  contexts.erase(contexts.begin());
  runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());  // of a library
  CHECK(live_contexts(runtime).counts(0).destroyed == 0);
  ThreadEntries::here().set(contexts[0], nullptr);  // replaces it below what the library has pushed as well
  CHECK(live_contexts(runtime).counts(0).destroyed == 1);
  CUcontext popped = nullptr;
  runtime.driver().cuCtxPopCurrent(&popped);
  CHECK(popped == contexts[0]->handle() && current_of(runtime) == contexts[0]->handle());
  CHECK(message_of<Error>([&] { contexts[0]->close(); }).find("on this thread") != std::string::npos);
  // What is below what the library pushes is replaced each time, and stays counted.
  const ContextHandle last =
      green_context(runtime, split_resource(runtime, runtime.device_sm(0), groups_of({16, 16, 16}), false).group(2));
  runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());
  ThreadEntries::here().set(contexts[0], nullptr);
  ThreadEntries::here().set(last, nullptr);
  ThreadEntries::here().set(last, nullptr);
  close_context(contexts[0]);
  for (int i = 0; i < 2; ++i) {
    CHECK(current_of(runtime) == last->handle());
    CHECK(!message_of<Error>([&] { close_context(last); }).empty());
    runtime.driver().cuCtxPopCurrent(&popped);
  }
  CHECK(current_of(runtime) == nullptr);
  ThreadEntries::here().set(last, nullptr);
  ThreadEntries::here().end();
  CHECK(current_of(runtime) == nullptr);
}

// Nobody enters it meanwhile: what is below it would change under the list of blocks that have gone.
void a_block_that_was_left_late_is_in_use_until_it_is_taken() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto contexts = two_contexts(runtime);
  ThreadEntries& here = ThreadEntries::here();
  Entry first(&first, contexts[0]);
  Entry second(&second, contexts[1]);
  CHECK(here.enter(first, nullptr) && here.enter(second, nullptr));
  for (Entry* entry : {&second, &first}) {
    runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());
    CHECK(!here.leave_at_once(*entry, nullptr));
    here.leave(*entry, nullptr);
  }
  CHECK(current_of(runtime) == nullptr);
  CHECK(!first.is_idle() && !here.enter(first, nullptr));
  CHECK(here.take_left() == &first && here.take_left() == &second && here.take_left() == nullptr);
  CHECK(here.enter(first, nullptr) && here.leave_at_once(first, nullptr));
}

void a_count_that_a_block_left_for_the_next_one_is_taken_before_a_context_is_closed() {
  Machine machine("h200@13.0");
  const auto contexts = two_contexts(machine.runtime());
  ThreadEntries& here = ThreadEntries::here();
  for (const bool leaves_one : {true, false}) {
    const ContextHandle& context = contexts[leaves_one ? 0 : 1];
    ContextState& state = context->state();
    if (!leaves_one) {
      state.leave_none();
    }
    Entry outer(&outer, context);
    Entry inner(&inner, context);
    for (int i = 0; i < 2; ++i) {
      CHECK(here.enter<true>(outer, nullptr) && here.enter<true>(inner, nullptr));
      CHECK(here.leave_at_once<true>(inner, nullptr) && here.leave_at_once<true>(outer, nullptr));
      CHECK(state.is_current_anywhere() == leaves_one);
    }
    CHECK(message_of<Error>([&] { context->close(); }).empty() != leaves_one);
    state.take_what_is_left();
    CHECK(!state.is_current_anywhere());
    context->close();
    CHECK(state.is_gone());
  }
}

// compute-sanitizer reports calls that answer an error as errors of the program.
void looking_at_the_stack_makes_no_call_that_fails() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  auto& driver = const_cast<Driver&>(runtime.driver());
  static decltype(driver.cuCtxPopCurrent) real;
  static int failed = 0;
  real = driver.cuCtxPopCurrent;
  driver.cuCtxPopCurrent = [](CUcontext* popped) {
    const CUresult answer = real(popped);
    failed += static_cast<int>(answer != CUDA_SUCCESS);
    return answer;
  };
  const auto contexts = two_contexts(runtime);
  runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());
  close_context(contexts[0]);
  ThreadEntries::here().set(contexts[1], nullptr);
  runtime.driver().cuCtxPushCurrent(primary_context(runtime, 0)->handle());
  ThreadEntries::here().set(primary_context(runtime, 0), nullptr);
  CUcontext popped = nullptr;
  runtime.driver().cuCtxPopCurrent(&popped);
  ThreadEntries::here().end();
  driver.cuCtxPopCurrent = real;
  CHECK(failed == 0);
  CHECK(current_of(runtime) == nullptr);
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
  Machine machine("h200@13.0");
  LockedSlot<ContextBox> slot;
  slot.put(two_contexts(machine.runtime())[0]);
  const std::weak_ptr<ContextBox> kept = slot.get();
  const ContextHandle* const first = slot.begin_call();
  const ContextHandle* const second = slot.begin_call();
  CHECK(slot.take() == nullptr && slot.take() == nullptr);  // nothing for who closes it to let go of
  CHECK(slot.get() == nullptr && !slot.borrow() && slot.begin_call() == nullptr);
  CHECK((*first)->handle() != nullptr && slot.end_call() == nullptr);
  CHECK((*second)->handle() != nullptr && !kept.expired());
  CHECK(slot.end_call() != nullptr);
  CHECK(kept.expired());
  CHECK(slot.take() == nullptr);
}

void two_tasks_of_a_thread_cannot_have_a_block_each() {
  Machine machine("h200@13.0");
  const auto contexts = two_contexts(machine.runtime());
  const int tasks[2] = {};
  ThreadEntries::here().set(contexts[0], &tasks[1]);  // of the thread
  Block first(contexts[0], &tasks[0]);
  for (const auto& use : {std::function<void()>([&] { Block second(contexts[1], &tasks[1]); }),
                          std::function<void()>([&] { ThreadEntries::here().set(contexts[1], &tasks[1]); })}) {
    CHECK(message_of<Error>(use).find("is still open on this thread, and belongs to another task") !=
          std::string::npos);
  }
  Block(contexts[1], &tasks[0]).leave(&tasks[0]);
  CHECK(message_of<Error>([&] { first.leave(&tasks[1]); }).find("was entered in another task") != std::string::npos);
  Block(contexts[1], &tasks[1]).leave(&tasks[1]);
  CHECK(current_of(machine.runtime()) == contexts[0]->handle());
  ThreadEntries::here().end();
}

void a_context_of_a_device_that_is_not_listed_is_refused() {
  Machine machine("h200@13.0");
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
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  auto contexts = two_contexts(runtime);
  auto stream = create_stream(contexts[0], std::nullopt, true);
  auto event = create_event(contexts[0], 0);
  context_stream(contexts[1], std::nullopt, 0);
  Runtime::set_aside_active();
  CHECK(message_of<Error>([&] { synchronize_stream(stream); }).find("inactive") != std::string::npos);
  stream.reset();
  event.reset();
  contexts.clear();
  CHECK(live_contexts(runtime).counts(0).destroyed == 0);
  Runtime::resume();
  CHECK(live_contexts(runtime).counts(0).destroyed == 2);
}

void contexts_are_not_made_and_not_waited_for_during_a_capture() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16, 16}), false);
  const auto context = green_context(runtime, split.group(0));
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
  CHECK(message_of<Error>([&] { green_context(runtime, split.group(1)); }).find("contexts cannot be created") !=
        std::string::npos);
  CUgraph graph = nullptr;
  CHECK(end(stream->handle(), &graph) == CUDA_SUCCESS);
  record_context_event(context, event);
}

void a_wait_is_not_taken_into_the_capture_of_another_one() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const Driver& driver = runtime.driver();
  const auto context = primary_context(runtime, 0);
  const auto other = create_stream(context, std::nullopt, true);
  const auto first = create_stream(context, std::nullopt, true);
  const auto second = create_stream(context, std::nullopt, true);
  {
    // A call of one thread that is between its record and its wait, while a capture begins on another thread.
    const KeptEvent<EventHandle>::Use kept(other->waited_for());
    const EventHandle event = kept.event([&] { return create_event(other, CU_EVENT_DISABLE_TIMING); });
    record_event(other, event);
    begin_capture(other, CU_STREAM_CAPTURE_MODE_RELAXED);
    wait_stream(second, other);
    CHECK(is_capturing(driver, second->handle()));
    wait_event(first, event);
    CHECK(!is_capturing(driver, first->handle()));
  }
  wait_stream(other, second);
  end_capture(other);
}

void keep_busy(const StreamHandle& stream) {
  synchronize_stream(stream);
  probes_of(stream->context()->runtime()).of(0)->launch(stream, 1, 256, 5'000'000);
}

// Whether what one stream is given after a switch waits for what another one had before.
bool waits(Switching& switching, Switching::Number left, Switching::Number next, const StreamHandle& before,
           const StreamHandle& after) {
  CHECK(switching.order({left}, next));
  const auto event = create_event(after, CU_EVENT_DISABLE_TIMING);
  record_event(after, event);
  synchronize_event(event);
  const bool answer = stream_is_done(before);
  synchronize_stream(before);
  return answer;
}

void a_switch_orders_shared_sms_and_the_work_of_a_part() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto narrow = split_resource(runtime, runtime.device_sm(0), groups_of({16, 16}), false);
  const auto a = green_context(runtime, narrow.group(0));
  const auto b = green_context(runtime, narrow.group(1));
  const auto on_a = context_stream(a, std::nullopt, 0);
  const auto on_b = context_stream(b, std::nullopt, 0);
  const auto on_all = create_stream(primary_context(runtime, 0), std::nullopt, true);
  const auto add = [](Switching& switching, std::vector<Switching::NewUse> uses) {
    return switching.add_arrangement(uses);
  };
  Switching switching;
  const auto only_a = add(switching, {{0, a, nullptr, narrow.group(0), {}}});
  const auto only_b = add(switching, {{1, b, nullptr, narrow.group(1), {}}});
  const auto moved = add(switching, {{0, b, nullptr, narrow.group(1), {}}});
  const auto both = add(switching, {{0, a, nullptr, narrow.group(0), {}}, {1, b, nullptr, narrow.group(1), {}}});
  const auto whole = add(switching, {{2, nullptr, on_all, nullptr, {}}});
  const auto over = add(switching, {{0, a, nullptr, narrow.group(0), {}}, {2, nullptr, on_all, nullptr, {}}});
  const auto earlier = add(switching, {{3, a, nullptr, narrow.group(0), {}}});
  CHECK(!switching.may_share(switching.places_of(only_a)[0], switching.places_of(only_b)[0]));
  const auto is_ordered = [&](Switching::Number left, Switching::Number next, const StreamHandle& after) {
    keep_busy(on_a);
    return waits(switching, left, next, on_a, after);
  };
  CHECK(!is_ordered(only_a, only_b, on_b));  // other SMs, another part
  CHECK(is_ordered(only_a, moved, on_b));    // its own last step
  CHECK(is_ordered(only_a, whole, on_all));  // its SMs
  CHECK(!is_ordered(only_a, both, on_b));    // goes on, next to what begins
  CHECK(!is_ordered(only_a, over, on_all));  // the same on its own SMs
  CHECK(is_ordered(both, whole, on_all));
  // What goes on does not hide an earlier part in its place.
  keep_busy(on_a);
  CHECK(switching.order({earlier}, only_a));
  CHECK(waits(switching, only_a, over, on_a, on_all));
  // Left before the last switch: what took its place in between has not waited for it.
  keep_busy(on_a);
  CHECK(switching.order({only_a}, only_b));
  CHECK(waits(switching, only_b, whole, on_a, on_all));
  // An arrangement that is removed leaves its work behind, and its number is given again.
  keep_busy(on_a);
  CHECK(switching.order({only_a}, only_b));
  switching.remove_arrangement(only_a);
  switching.remove_arrangement(both);
  CHECK(waits(switching, only_b, whole, on_a, on_all));
  CHECK(add(switching, {{0, a, nullptr, narrow.group(0), {}}}) == only_a);
  // SMs that a kernel saw are believed, whatever splits say.
  switching.note_sm_ids(a, {0, 1});
  switching.note_sm_ids(b, {1, 2});
  CHECK(switching.may_share(switching.places_of(only_a)[0], switching.places_of(only_b)[0]));
  CHECK(is_ordered(only_a, only_b, on_b));
  switching.clear();
}

void exclusive_contexts_do_not_share() {
  Machine machine("h200@13.0");
  Runtime& runtime = machine.runtime();
  const auto split = split_resource(runtime, runtime.device_sm(0), groups_of({16, 16}), false);
  const auto first = green_context(runtime, split.group(0));
  CHECK(!message_of<Error>([&] { green_context(runtime, split.group(0), true); }).empty());
  CHECK(message_of<Error>([&] { green_context(runtime, split.group(1), true); }).empty());
}

void objects_of_a_closed_driver_do_nothing() {
  ContextHandle context;
  {
    Machine machine("h200@13.0");
    Runtime& runtime = machine.runtime();
    context = green_context(runtime, split_resource(runtime, runtime.device_sm(0), groups_of({16}), false).group(0));
  }
  CHECK(!message_of<Error>([&] { create_stream(context, std::nullopt, true); }).empty());
  context.reset();
  char text[64];
  CHECK(!take_failure(text, sizeof(text)));
}

void a_forked_child_is_reported() {
  Machine machine("h200@13.0");
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
  a_stream_keeps_its_closed_context_alive();
  the_streams_of_a_context_are_the_same_for_all_and_go_with_it();
  a_context_that_is_current_elsewhere_cannot_be_closed();
  a_block_that_is_left_too_early_keeps_its_context_and_goes_with_the_inner_one();
  a_block_that_is_left_on_another_thread_goes_on_its_own();
  what_was_current_before_a_block_is_current_after_it();
  what_was_set_in_a_block_outlives_it_in_the_driver();
  a_block_that_was_left_late_is_in_use_until_it_is_taken();
  a_count_that_a_block_left_for_the_next_one_is_taken_before_a_context_is_closed();
  looking_at_the_stack_makes_no_call_that_fails();
  the_newest_form_of_a_function_is_called();
  what_is_taken_from_a_slot_during_calls_goes_with_the_last_of_them();
  two_tasks_of_a_thread_cannot_have_a_block_each();
  a_context_of_a_device_that_is_not_listed_is_refused();
  objects_of_a_driver_that_is_set_aside_wait();
  contexts_are_not_made_and_not_waited_for_during_a_capture();
  a_wait_is_not_taken_into_the_capture_of_another_one();
  a_switch_orders_shared_sms_and_the_work_of_a_part();
  exclusive_contexts_do_not_share();
  objects_of_a_closed_driver_do_nothing();
  a_forked_child_is_reported();
  return gctx::test::summary("core_test");
}
