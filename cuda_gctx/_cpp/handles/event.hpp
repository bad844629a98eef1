// Events: of a stream, and of a whole context.
#pragma once

#include <cuda.h>

#include <atomic>
#include <utility>

#include "handles/context.hpp"
#include "handles/types.hpp"

namespace gctx {

class EventBox {
 public:
  static constexpr const char* word = "event";  // in messages

  explicit EventBox(ContextUse use) noexcept : use_(std::move(use)) {}
  ~EventBox();
  EventBox(const EventBox&) = delete;
  EventBox& operator=(const EventBox&) = delete;

  void take(CUevent handle) noexcept { handle_ = handle; }
  const ContextHandle& context() const noexcept { return use_.context(); }
  static bool asks_driver() noexcept { return false; }
  void demand_live() const { context()->demand_usable(); }  // of a driver that may be used
  CUevent handle() const noexcept { return handle_; }
  // Whether a stream that waits for it may become part of a capture: see StreamBox::may_capture.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }
  void expose() noexcept { may_capture_.store(true, std::memory_order_relaxed); }

 private:
  ContextUse use_;
  CUevent handle_ = nullptr;
  std::atomic<bool> may_capture_{false};
};

EventHandle create_event(const ContextHandle& context, unsigned flags);
EventHandle create_event_in(ContextUse use, unsigned flags);  // also when its context is closed
bool event_is_done(const EventHandle& event);
void synchronize_event(const EventHandle& event);
float elapsed_ms(const EventHandle& start, const EventHandle& end);
void record_context_event(const ContextHandle& context, const EventHandle& event);
void wait_context_event(const ContextHandle& context, const EventHandle& event);

}  // namespace gctx
