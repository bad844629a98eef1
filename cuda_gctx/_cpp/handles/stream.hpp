// Streams: made on any context without anything being current, or adopted from others.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "handles/context.hpp"
#include "handles/registry.hpp"
#include "handles/types.hpp"

namespace gctx {

class StreamBox : public Registered<CUstream, StreamBox> {
 public:
  static constexpr const char* word = "stream";  // in messages

  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  StreamBox(ContextUse use, bool owned, std::optional<bool> nonblocking = std::nullopt) noexcept
      : use_(std::move(use)), owned_(owned), nonblocking_(nonblocking) {
    if (!owned) {
      expose();
    }
  }
  ~StreamBox();
  StreamBox(const StreamBox&) = delete;
  StreamBox& operator=(const StreamBox&) = delete;

  void take(CUstream handle) noexcept;
  const ContextUse& use() const noexcept { return use_; }
  std::optional<bool> nonblocking() const noexcept { return nonblocking_; }  // as it was made, if it was made here
  bool is_made_here() const noexcept { return nonblocking_.has_value(); }
  const ContextHandle& context() const noexcept { return use_.context(); }
  bool asks_driver() const noexcept { return context()->kind() != ContextKind::green; }
  void demand_live() const { context()->demand_there(); }
  CUstream handle() const noexcept { return handle_; }
  bool is_owned() const noexcept { return owned_; }
  // The default streams are words for a stream of whichever context is current.
  bool is_default() const noexcept { return is_default_handle(handle_); }
  static bool is_default_handle(CUstream handle) noexcept {
    return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  }
  // A framework has its handle: it is not destroyed before its context is. Whether that was known; who pins a stream
  // pins its context as well.
  bool pin() noexcept {
    expose();
    return pinned_.load(std::memory_order_relaxed) || pinned_.exchange(true);
  }
  // Whether it can be part of a capture, so that the driver has to be asked: other code knows its handle, it captured
  // here, or it has waited for an event that other code knows or that was recorded on such a stream.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }
  void expose() noexcept {
    if (!may_capture()) {
      context()->expose_stream();
      may_capture_.store(true, std::memory_order_relaxed);
    }
  }
  // The driver's number, asked once; 0 as long as it cannot be asked, because asking would invalidate a capture.
  std::uint64_t id();

  // Its place in the list of its context, under the lock of that list.
  void link(StreamBox*& first) noexcept;
  void unlink(StreamBox*& first) noexcept;
  const StreamBox* next_of_context() const noexcept { return next_; }

 private:
  ContextUse use_;
  CUstream handle_ = nullptr;
  bool owned_;
  std::optional<bool> nonblocking_;
  std::atomic<bool> pinned_{false};
  std::atomic<bool> may_capture_{false};
  std::atomic<std::uint64_t> id_{0};
  StreamBox* next_ = nullptr;
  StreamBox* previous_ = nullptr;
};

// A stream of the driver on a context, which somebody has to destroy.
CUstream make_raw_stream(const ContextBox& context, unsigned flags, int priority);

StreamHandle create_stream(const ContextHandle& context, std::optional<int> priority, bool nonblocking);
StreamHandle context_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number);
StreamHandle adopt_stream(Runtime& runtime, CUstream handle);
int stream_priority(const StreamHandle& stream);
bool stream_is_nonblocking(const StreamHandle& stream);
bool stream_is_capturing(const StreamHandle& stream);
std::uint64_t capture_of_stream(const StreamHandle& stream);
bool is_same_stream(const StreamHandle& a, const StreamHandle& b);
bool stream_is_done(const StreamHandle& stream);
void synchronize_stream(const StreamHandle& stream);
void record_event(const StreamHandle& stream, const EventHandle& event);
void wait_event(const StreamHandle& stream, const EventHandle& event);

}  // namespace gctx
