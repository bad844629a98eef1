#include "handles/event.hpp"

#include <memory>
#include <optional>

#include "handles/runtime.hpp"
#include "handles/scope.hpp"

namespace gctx {

EventBox::~EventBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  Runtime& runtime = context()->runtime();
  const bool is_kept = runtime.keep_for_later([this] {
    auto later = std::make_shared<EventBox>(use_);
    later->take(handle_);
    return later;
  });
  if (!is_kept && runtime.is_usable() && context()->is_there()) {
    runtime.driver().note(runtime.driver().cuEventDestroy(handle_), "cuEventDestroy");
  }
}

EventHandle create_event_in(ContextUse use, unsigned flags) {
  auto box = std::make_shared<EventBox>(std::move(use));
  box->context()->demand_there();
  CUevent handle = nullptr;
  CurrentScope scope(*box->context());
  GCTX_CALL(box->context()->runtime().driver(), cuEventCreate, &handle, flags);
  box->take(handle);
  scope.leave();
  return box;
}

namespace {

// Events that are gone with their context need no question before: the driver answers CUDA_ERROR_CONTEXT_IS_DESTROYED.
const Driver& driver_of(const EventHandle& event) {
  event->context()->runtime().demand_usable();
  return event->context()->runtime().driver();
}

}  // namespace

EventHandle create_event(const ContextHandle& context, unsigned flags) {
  return create_event_in(ContextUse(context), flags);
}

bool event_is_done(const EventHandle& event) {
  const Driver& driver = driver_of(event);
  const CUresult result = driver.cuEventQuery(event->handle());
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  driver.check(result, "cuEventQuery");
  return true;
}

void synchronize_event(const EventHandle& event) { GCTX_CALL(driver_of(event), cuEventSynchronize, event->handle()); }

float elapsed_ms(const EventHandle& start, const EventHandle& end) {
  float ms = 0.0F;
  driver_of(end);
  GCTX_CALL(driver_of(start), cuEventElapsedTime, &ms, start->handle(), end->handle());
  return ms;
}

namespace {

// Keeps a context from being destroyed during a call with an event. One of the same context does that already.
class CallUseWith {
 public:
  CallUseWith(const EventHandle& event, ContextBox& context) {
    if (event->context().get() != &context) {
      use_.emplace(context);
      return;
    }
    context.demand_there();
    if (context.is_closed()) [[unlikely]] {
      context.fail_closed();
    }
  }

 private:
  std::optional<CallUse> use_;
};

}  // namespace

void record_context_event(const ContextHandle& context, const EventHandle& event) {
  const CallUseWith use(event, *context);
  context->demand_no_capture("recording an event of");
  const Driver& driver = context->runtime().driver();
  if (driver.cuCtxRecordEvent != nullptr) [[likely]] {
    GCTX_CALL(driver, cuCtxRecordEvent, context->handle(), event->handle());
  } else if (context->is_green()) {
    GCTX_CALL(driver, cuGreenCtxRecordEvent, context->green_handle(), event->handle());
  } else {
    driver.require(Feature::context_events);
  }
}

void wait_context_event(const ContextHandle& context, const EventHandle& event) {
  const CallUseWith use(event, *context);
  context->demand_no_capture("a wait of");
  const Driver& driver = context->runtime().driver();
  if (driver.cuCtxWaitEvent != nullptr) [[likely]] {
    GCTX_CALL(driver, cuCtxWaitEvent, context->handle(), event->handle());
  } else if (context->is_green()) {
    GCTX_CALL(driver, cuGreenCtxWaitEvent, context->green_handle(), event->handle());
  } else {
    driver.require(Feature::context_events);
  }
}

}  // namespace gctx
