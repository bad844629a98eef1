// Streams: made on any context without anything being current, or adopted from others.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "handles/context.hpp"
#include "handles/event.hpp"
#include "handles/registry.hpp"
#include "handles/types.hpp"

namespace gctx {

class StreamBox : public Registered<StreamBox, CUstream>, public InContext, public StreamLink {
 public:
  static constexpr const char* word = "stream";  // in messages

  StreamBox(ContextUse use, bool owned, std::optional<StreamKind> made_as = std::nullopt) noexcept
      : InContext(std::move(use)), owned_(owned), made_as_(made_as) {
    if (!owned) {
      expose();
    }
  }
  ~StreamBox();

  void take(CUstream handle) noexcept;
  Runtime& runtime() const noexcept { return context()->runtime(); }
  const StreamKind* made_as() const noexcept { return made_as_ ? &*made_as_ : nullptr; }  // null if it was adopted
  bool is_made_here() const noexcept { return made_as_.has_value(); }
  bool is_owned() const noexcept { return owned_; }
  // The default streams are words for a stream of whichever context is current.
  bool is_default() const noexcept { return is_default_handle(handle_); }
  static bool is_default_handle(CUstream handle) noexcept {
    return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  }
  // A framework has its handle: it is not destroyed before its context is.
  bool is_pinned() const noexcept { return pinned_.load(std::memory_order_relaxed); }
  void pin() noexcept {
    expose();
    pinned_.store(true, std::memory_order_relaxed);
  }
  // It can be part of a capture from now on: other code knows its handle, it captured here, or it has waited for an
  // event that other code knows or that was recorded on such a stream.
  void expose() noexcept {
    if (!may_capture()) {
      context()->streams().expose();
      may_capture_.store(true, std::memory_order_relaxed);
    }
  }
  KeptEvent<EventHandle>& waited_for() noexcept { return waited_for_; }
  KeptEvent<EventHandle>& shown() noexcept { return shown_; }
  // The driver's number, asked once; 0 as long as it cannot be asked, because asking would invalidate a capture.
  std::uint64_t id();
  // Whether its end would destroy it while it is part of a capture.
  bool is_needed_by_capture() const noexcept;

 private:
  bool owned_;
  std::optional<StreamKind> made_as_;
  KeptEvent<EventHandle> waited_for_;
  KeptEvent<EventHandle> shown_;
  std::atomic<bool> pinned_{false};
  std::atomic<std::uint64_t> id_{0};
};

StreamHandle create_stream(const ContextHandle& context, std::optional<int> priority, bool nonblocking);
StreamHandle context_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number);
// Pins a stream and its context: true as ContextBox::pin().
bool pin_stream(const StreamHandle& stream);
StreamHandle adopt_stream(Runtime& runtime, CUstream handle);
int stream_priority(const StreamHandle& stream);
bool stream_is_nonblocking(const StreamHandle& stream);
bool stream_is_capturing(const StreamHandle& stream);
std::uint64_t capture_of_stream(const StreamHandle& stream);  // the driver's number; 0 if it is in none
bool is_same_stream(const StreamHandle& a, const StreamHandle& b);
bool stream_is_done(const StreamHandle& stream);
void synchronize_stream(const StreamHandle& stream);
void record_event(const StreamHandle& stream, const EventHandle& event);
void wait_event(const StreamHandle& stream, const EventHandle& event);
void wait_stream(const StreamHandle& stream, const StreamHandle& other);  // for its work so far
// A graph that is the last work on a stream of a green context is invisible to waits of the primary context (seen with
// driver 13.0), which are those of other libraries for all work of the device. From this call on they wait for it.
void show_to_device(const StreamHandle& stream);
void demand_closable(const StreamHandle& stream);  // that its end invalidates no capture

}  // namespace gctx
