// Events: of a stream, and of a whole context.
#pragma once

#include <cuda.h>

#include <atomic>

#include "handles/child.hpp"
#include "handles/context.hpp"
#include "handles/types.hpp"

namespace gctx {

class EventBox : public ContextChild<CUevent> {
 public:
  static constexpr const char* word = "event";  // in messages

  using ContextChild::ContextChild;
  ~EventBox() { destroy(handle(), &DriverTable::cuEventDestroy, "cuEventDestroy"); }

  // Whether a stream that waits for it may become part of a capture: see StreamBox::may_capture.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }
  void expose() noexcept { may_capture_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> may_capture_{false};
};

EventHandle create_event(ContextUse use, unsigned flags);  // for a stream also when its context is closed
bool event_is_done(const EventHandle& event);
void synchronize_event(const EventHandle& event);
float elapsed_ms(const EventHandle& start, const EventHandle& end);

// Of all streams of a context. Who calls has a use of it, and nothing captures on it.
void record_all(const ContextBox& context, CUevent event);
void let_all_wait(const ContextBox& context, CUevent event);

void synchronize_context(const ContextHandle& context);
void record_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context(const ContextHandle& context, const ContextHandle& other);  // for all work of the other one

}  // namespace gctx
