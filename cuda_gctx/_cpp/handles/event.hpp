// Events: of a stream, and of a whole context.
#pragma once

#include <cuda.h>

#include <utility>

#include "handles/context.hpp"
#include "handles/types.hpp"

namespace gctx {

class EventBox {
 public:
  explicit EventBox(ContextUse use) noexcept : use_(std::move(use)) {}
  ~EventBox();
  EventBox(const EventBox&) = delete;
  EventBox& operator=(const EventBox&) = delete;

  void take(CUevent handle) noexcept { handle_ = handle; }
  const ContextHandle& context() const noexcept { return use_.context(); }
  void demand_live() const;  // of a driver that may be used
  CUevent handle() const noexcept { return handle_; }

 private:
  ContextUse use_;
  CUevent handle_ = nullptr;
};

EventHandle create_event(const ContextHandle& context, unsigned flags);
EventHandle create_event_for(const StreamHandle& stream, unsigned flags);  // also when its context is closed
bool event_is_done(const EventHandle& event);
void synchronize_event(const EventHandle& event);
float elapsed_ms(const EventHandle& start, const EventHandle& end);
void record_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context_event(const ContextHandle& context, const EventHandle& event);

}  // namespace gctx
