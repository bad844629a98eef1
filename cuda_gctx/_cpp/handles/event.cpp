#include "handles/event.hpp"

#include <memory>
#include <utility>

#include "handles/capture.hpp"
#include "handles/captures.hpp"
#include "handles/context_pool.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"

namespace gctx {

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

EventHandle create_event(const ContextHandle& context, unsigned flags) {
  const CallUse use(*context, ContextUse::Of::lingering);
  auto box = std::make_shared<EventBox>(context);
  box->take(make_raw_event(*context, flags));
  return box;
}

EventHandle create_event_beside(const EventHandle& other, unsigned flags) {
  auto box = std::make_shared<EventBox>(other->context());
  box->take(make_raw_event(*other->context(), flags));
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

void record_all(const DriverContext& context, CUevent event) {
  const Driver& driver = context.runtime().driver();
  if (driver.cuCtxRecordEvent != nullptr) [[likely]] {
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuCtxRecordEvent, context.handle(), event);
  } else if (context.green_handle() != nullptr) {
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuGreenCtxRecordEvent, context.green_handle(), event);
  } else {
    driver.require(Feature::context_events);
  }
}

void let_all_wait(const DriverContext& context, CUevent event) {
  const Driver& driver = context.runtime().driver();
  if (driver.cuCtxWaitEvent != nullptr) [[likely]] {
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuCtxWaitEvent, context.handle(), event);
  } else if (context.green_handle() != nullptr) {
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuGreenCtxWaitEvent, context.green_handle(), event);
  } else {
    driver.require(Feature::context_events);
  }
}

namespace {

// Waits for all work of a green context by an event, so that a capture can begin while the host waits.
void synchronize_green(const ContextHandle& context) {
  const EventHandle event = create_event(context, CU_EVENT_DISABLE_TIMING);
  {
    const CaptureGate::Pass pass(*context);
    demand_no_capture(*context, "waiting for");
    record_all(context->in_driver(), event->handle());
  }
  GCTX_CALL(context->runtime().driver(), cuEventSynchronize, event->handle());
}

}  // namespace

void synchronize_context(const ContextHandle& context) {
  const CallUse use(*context);
  if (context->kind() == ContextKind::green) {
    synchronize_green(context);
    return;
  }
  demand_no_capture(*context, "waiting for");
  Runtime& runtime = context->runtime();
  const auto wait = [&](CUcontext handle) {
    CurrentScope scope(runtime.driver(), handle);
    GCTX_CALL(runtime.driver(), cuCtxSynchronize);
    scope.leave();
  };
  wait(context->handle());
  if (context->kind() != ContextKind::primary) {
    return;
  }
  // That includes green contexts, but for graphs that other code has launched there (see show_to_device).
  for (const DriverContextHandle& other : context_pool(runtime).at_work(context->device())) {
    if (!other->streams().may_capture() || !other->streams().has_capture(runtime.driver())) {
      wait(other->handle());
    }
  }
}

void record_context_event(const ContextHandle& context, const EventHandle& event) {
  event->demand_live();
  const CallUse use(*context);
  const CaptureGate::Pass pass(*context);
  demand_no_capture(*context, "recording an event of");
  record_all(context->in_driver(), event->handle());
}

void wait_context_event(const ContextHandle& context, const EventHandle& event) {
  event->demand_live();
  const CallUse use(*context);
  const CaptureGate::Pass pass(*context);
  demand_no_capture(*context, "a wait of");
  let_all_wait(context->in_driver(), event->handle());
}

void wait_context(const ContextHandle& context, const ContextHandle& other) {
  const CallUse use(*context);
  const CallUse use_of_other(*other);
  const auto wait = [&](CUevent event) {
    const CaptureGate::Pass pass(*context);
    demand_no_capture(*context, "a wait of");
    demand_no_capture(*other, "recording an event of");
    record_all(other->in_driver(), event);
    let_all_wait(context->in_driver(), event);
  };
  const ReusableEvent<CUevent>::Use reused(other->streams().waited_for);
  if (reused.is_taken()) [[likely]] {
    wait(reused.event([&] { return make_raw_event(*other, CU_EVENT_DISABLE_TIMING); }));
  } else {
    wait(create_event(other, CU_EVENT_DISABLE_TIMING)->handle());
  }
}

}  // namespace gctx
