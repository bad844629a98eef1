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

// Makes an event that the caller destroys.
CUevent make_raw_event(const ContextBox& context, unsigned flags);
// Events outlive leases: they keep no SMs claimed. Throws if the lease has ended.
EventHandle create_event(const ContextHandle& context, unsigned flags);
// In the context of another event, which keeps it.
EventHandle create_event_beside(const EventHandle& other, unsigned flags);
bool event_is_done(const EventHandle& event);
void synchronize_event(const EventHandle& event);
float elapsed_ms(const EventHandle& start, const EventHandle& end);

// Act on all streams of a context. The caller has a use of it and a pass of the gate, and nothing captures on it.
void record_all(const DriverContext& context, CUevent event);
void let_all_wait(const DriverContext& context, CUevent event);

void synchronize_context(const ContextHandle& context);
void record_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context(const ContextHandle& context, const ContextHandle& other);  // for all work of the other one

}  // namespace gctx
