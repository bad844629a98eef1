// Events: of a stream, and of a whole context.
#include <utility>

#include "handles/runtime.hpp"

namespace gctx {

EventBox::~EventBox() {
  Runtime& runtime = context()->runtime();
  if (handle_ == nullptr || !runtime.is_usable()) {
    return;
  }
  const CUresult result = runtime.driver().cuEventDestroy(handle_);
  if (result != CUDA_SUCCESS) {
    note_failure(runtime.driver().describe(result, "cuEventDestroy").c_str());
  }
}

namespace {

EventHandle make_event(ContextUse use, unsigned flags) {
  auto box = std::make_shared<EventBox>(std::move(use));
  const Runtime& runtime = box->context()->runtime();
  runtime.demand_usable();
  const CurrentScope scope(*box->context());
  CUevent handle = nullptr;
  GCTX_CALL(runtime.driver(), cuEventCreate, &handle, flags);
  box->take(handle);
  return box;
}

}  // namespace

EventHandle create_event(const ContextHandle& context, unsigned flags) {
  return make_event(ContextUse(context), flags);
}

EventHandle create_event_for(const StreamHandle& stream, unsigned flags) { return make_event(stream->use(), flags); }

bool event_is_done(const EventHandle& event) {
  Runtime& runtime = event->context()->runtime();
  runtime.demand_usable();
  const CUresult result = runtime.driver().cuEventQuery(event->handle());
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  runtime.driver().check(result, "cuEventQuery");
  return true;
}

void synchronize_event(const EventHandle& event) {
  Runtime& runtime = event->context()->runtime();
  runtime.demand_usable();
  GCTX_CALL(runtime.driver(), cuEventSynchronize, event->handle());
}

float elapsed_ms(const EventHandle& start, const EventHandle& end) {
  Runtime& runtime = start->context()->runtime();
  runtime.demand_usable();
  float ms = 0.0F;
  GCTX_CALL(runtime.driver(), cuEventElapsedTime, &ms, start->handle(), end->handle());
  return ms;
}

void record_context_event(const ContextHandle& context, const EventHandle& event) {
  context->demand_open();
  const Driver& driver = context->runtime().driver();
  if (driver.cuCtxRecordEvent == nullptr && context->is_green()) {
    GCTX_CALL(driver, cuGreenCtxRecordEvent, context->green_handle(), event->handle());
    return;
  }
  driver.require(Feature::context_events);
  GCTX_CALL(driver, cuCtxRecordEvent, context->handle(), event->handle());
}

void wait_context_event(const ContextHandle& context, const EventHandle& event) {
  context->demand_open();
  const Driver& driver = context->runtime().driver();
  if (driver.cuCtxWaitEvent == nullptr && context->is_green()) {
    GCTX_CALL(driver, cuGreenCtxWaitEvent, context->green_handle(), event->handle());
    return;
  }
  driver.require(Feature::context_events);
  GCTX_CALL(driver, cuCtxWaitEvent, context->handle(), event->handle());
}

}  // namespace gctx
