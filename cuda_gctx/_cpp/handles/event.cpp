#include "handles/event.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "handles/captures.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

CUevent make_raw_event(const ContextBox& context, unsigned flags) {
  context.demand_there();
  CUevent handle = nullptr;
  CurrentScope scope(context);
  const Driver& driver = context.runtime().driver();
  GCTX_CALL(driver, cuEventCreate, &handle, flags);
  try {
    scope.leave();
  } catch (...) {
    driver.note(driver.cuEventDestroy(handle), "cuEventDestroy");
    throw;
  }
  return handle;
}

// Keeps a context from being destroyed during a call with an event. One of the same context does that already.
std::optional<CallUse> use_with(const EventBox& event, ContextBox& context) {
  event.demand_live();
  if (event.context().get() != &context) {
    return std::optional<CallUse>(std::in_place, context);
  }
  context.demand_live();
  return std::nullopt;
}

}  // namespace

EventHandle create_event(ContextUse use, unsigned flags) {
  auto box = std::make_shared<EventBox>(std::move(use));
  box->take(make_raw_event(*box->context(), flags));
  return box;
}

bool event_is_done(const EventHandle& event) {
  event->demand_live();
  const Driver& driver = event->driver();
  return driver.check_done(driver.cuEventQuery(event->handle()), "cuEventQuery");
}

void synchronize_event(const EventHandle& event) { GCTX_CALL(event->driver(), cuEventSynchronize, event->handle()); }

float elapsed_ms(const EventHandle& start, const EventHandle& end) {
  float ms = 0.0F;
  end->demand_live();
  GCTX_CALL(start->driver(), cuEventElapsedTime, &ms, start->handle(), end->handle());
  return ms;
}

void record_all(const ContextBox& context, CUevent event) {
  const Driver& driver = context.runtime().driver();
  if (driver.cuCtxRecordEvent != nullptr) [[likely]] {
    GCTX_CALL(driver, cuCtxRecordEvent, context.handle(), event);
  } else if (context.is_green()) {
    GCTX_CALL(driver, cuGreenCtxRecordEvent, context.green_handle(), event);
  } else {
    driver.require(Feature::context_events);
  }
}

void let_all_wait(const ContextBox& context, CUevent event) {
  const Driver& driver = context.runtime().driver();
  if (driver.cuCtxWaitEvent != nullptr) [[likely]] {
    GCTX_CALL(driver, cuCtxWaitEvent, context.handle(), event);
  } else if (context.is_green()) {
    GCTX_CALL(driver, cuGreenCtxWaitEvent, context.green_handle(), event);
  } else {
    driver.require(Feature::context_events);
  }
}

void synchronize_context(const ContextHandle& context) {
  const CallUse use(*context);
  demand_no_capture(*context, "waiting for");
  Runtime& runtime = context->runtime();
  const auto wait = [&](const ContextBox& box) {
    CurrentScope scope(box);
    GCTX_CALL(runtime.driver(), cuCtxSynchronize);
    scope.leave();
  };
  wait(*context);
  if (context->kind() != ContextKind::primary) {
    return;
  }
  // That includes green contexts, but for graphs that other code has launched there (see show_to_device).
  for (const ContextHandle& other : ContextBox::registry.all(runtime)) {
    if (other->is_green() && other->device() == context->device() && other->is_there() && !has_capture(*other)) {
      wait(*other);
    }
  }
  retired_contexts(runtime).wait(context->device(), context->handle());
}

void record_context_event(const ContextHandle& context, const EventHandle& event) {
  const auto use = use_with(*event, *context);
  demand_no_capture(*context, "recording an event of");
  record_all(*context, event->handle());
}

void wait_context_event(const ContextHandle& context, const EventHandle& event) {
  const auto use = use_with(*event, *context);
  demand_no_capture(*context, "a wait of");
  let_all_wait(*context, event->handle());
}

void wait_context(const ContextHandle& context, const ContextHandle& other) {
  const CallUse use(*context);
  const CallUse use_of_other(*other);
  demand_no_capture(*context, "a wait of");
  demand_no_capture(*other, "recording an event of");
  const auto wait = [&](CUevent event) {
    record_all(*other, event);
    let_all_wait(*context, event);
  };
  const KeptEvent<CUevent>::Use kept(other->streams().waited_for);
  if (kept.is_taken()) [[likely]] {
    wait(kept.event([&] { return make_raw_event(*other, CU_EVENT_DISABLE_TIMING); }));
  } else {
    wait(create_event(other, CU_EVENT_DISABLE_TIMING)->handle());
  }
}

}  // namespace gctx
