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

  // owned: made for this box, which is a use of the lease. lent: the stream belongs to the context, and the box is of
  // use while the lease is open. adopted: the stream belongs to other code.
  enum class Kind : int { owned, lent, adopted };

  StreamBox(ContextUse use, Kind kind, std::optional<StreamKind> made_as = std::nullopt)
      : InContext(std::move(use)), ownership_(kind), made_as_(made_as), events_(std::make_shared<StreamEvents>()) {
    if (kind == Kind::adopted) {
      expose();
    }
  }
  StreamBox(ContextHandle context, StreamKind made_as, std::shared_ptr<StreamEvents> events) noexcept
      : InContext(std::move(context), false), ownership_(Kind::lent), made_as_(made_as), events_(std::move(events)) {
    expose();
  }
  ~StreamBox();

  void take(CUstream handle) noexcept;
  Runtime& runtime() const noexcept { return context()->runtime(); }
  const StreamKind* made_as() const noexcept { return made_as_ ? &*made_as_ : nullptr; }  // null if it was adopted
  bool is_made_here() const noexcept { return made_as_.has_value(); }
  bool is_owned() const noexcept { return ownership_ == Kind::owned; }
  bool is_lent() const noexcept { return ownership_ == Kind::lent; }
  // A lent stream is of use as long as its lease is open.
  bool is_over() const noexcept { return is_lent() && context()->is_closed(); }
  void demand_live() const {
    if (is_lent()) {
      context()->demand_live();
    }
    InContext::demand_live();
  }
  // The default streams are words for a stream of whichever context is current.
  bool is_default() const noexcept { return is_default_handle(handle_); }
  static bool is_default_handle(CUstream handle) noexcept {
    return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  }
  // The raw value leaves the package: a spare stream remains of an owned one, and the context counts as exposed.
  void show() noexcept {
    expose();
    if (!is_default() && !is_shown_.exchange(true, std::memory_order_relaxed)) {
      context()->in_driver().expose();
    }
  }
  // The owner closes the stream, so that a spare stream that remains of it can be lent again at once.
  void note_closed() noexcept { is_closed_.store(true, std::memory_order_relaxed); }
  // From now on it can be part of a capture: other code knows its handle, it captured here, or it has waited for an
  // event that other code knows or that was recorded on such a stream.
  void expose() noexcept {
    if (!may_capture()) {
      context()->streams().expose();
      may_capture_.store(true, std::memory_order_relaxed);
    }
  }
  StreamEvents& events() noexcept { return *events_; }
  // The driver's number, asked once; 0 as long as it cannot be asked, because asking would invalidate a capture.
  std::uint64_t id();
  // Returns whether an owned stream is part of a capture, so that it must not be destroyed.
  bool is_needed_by_capture() const noexcept;

 private:
  const Kind ownership_;
  std::optional<StreamKind> made_as_;
  std::shared_ptr<StreamEvents> events_;  // of a lent stream: those of the context
  std::atomic<bool> is_shown_{false};
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> id_{0};
};

StreamHandle create_stream(const ContextHandle& context, std::optional<int> priority, bool nonblocking);
EventHandle create_stream_event(const StreamHandle& stream, unsigned flags);  // also when its context is closed
StreamHandle context_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number);
// A stream of the package's own in a context, on which launches on streams of other contexts meet its work.
CUstream meeting_stream(const ContextHandle& context);
StreamHandle adopt_stream(Runtime& runtime, CUstream handle);
int stream_priority(const StreamHandle& stream);
bool stream_is_nonblocking(const StreamHandle& stream);
bool stream_is_capturing(const StreamHandle& stream);
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
