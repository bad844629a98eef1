// The streams of a context: those that this package made on it, so that it can be asked which of them capture; and
// those that belong to the context itself, and live as long as it does.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "driver/driver.hpp"
#include "handles/reusable_event.hpp"

namespace gctx {

struct StreamKind {
  bool nonblocking = true;
  int priority = 0;
  bool operator==(const StreamKind&) const = default;
};

// The events that waits for a stream reuse.
struct StreamEvents {
  ReusableEvent<CUevent> waited_for;  // by wait_stream()
  ReusableEvent<CUevent> shown;       // by show_to_device()
  void destroy(const Driver& driver) noexcept;
};

// The place of a stream in the list of its context.
class StreamLink {
 public:
  CUstream handle() const noexcept { return handle_; }
  // Whether it can be part of a capture, so that the driver has to be asked.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }

 protected:
  ~StreamLink() = default;

  CUstream handle_ = nullptr;
  std::atomic<bool> may_capture_{false};

 private:
  friend class ContextStreams;
  StreamLink* next_ = nullptr;
  StreamLink* previous_ = nullptr;
};

class ContextStreams {
 public:
  void add(StreamLink& stream) noexcept;
  void remove(StreamLink& stream) noexcept;

  // False as long as no stream can be part of a capture.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }
  void expose() noexcept { may_capture_.store(true, std::memory_order_relaxed); }
  bool has_capture(const Driver& driver);  // asks for each that can be part of one

  // Who has only the handle of one can use it as long as the context is there.
  template <typename Make>
  CUstream lend(StreamKind kind, std::size_t number, Make&& make) {
    const std::lock_guard lock(mutex_);
    for (const OwnStream& one : own_) {
      if (one.lent_as == number && one.kind == kind) {
        return one.handle;
      }
    }
    std::list<OwnStream> made{
        {nullptr, kind, number, true, std::make_shared<StreamEvents>()}};  // its place first, so that nothing is lost
    made.front().handle = make();
    own_.splice(own_.begin(), made);
    return own_.front().handle;
  }
  CUstream any() noexcept;  // one that was lent; null if there is none yet
  // The events of a stream that was lent, which live as long as the context.
  std::shared_ptr<StreamEvents> events_of(CUstream stream) noexcept;

  // Spare streams: those whose raw value has left the package, and those that capture, are kept for the next request.
  // A stream that its owner has dropped without closing it may be in use by its raw value, so that it is lent again
  // only after free_spares().
  void keep_spare(CUstream stream, StreamKind kind, bool is_free) noexcept;
  CUstream take_spare(const Driver& driver, StreamKind kind);  // an idle one; null if there is none
  void free_spares() noexcept;

  ReusableEvent<CUevent> waited_for;  // of all streams

  bool has_own() noexcept;
  void destroy_own(const Driver& driver) noexcept;

 private:
  struct OwnStream {
    CUstream handle;
    StreamKind kind;
    std::optional<std::size_t> lent_as;  // else it is a spare one
    bool is_free = true;
    std::shared_ptr<StreamEvents> events{};  // of a lent one
  };
  static constexpr int most_asked = 4;  // of the spare ones, for one that is made

  std::mutex mutex_;
  std::list<OwnStream> own_;  // of the spare ones, the one to be asked next first
  StreamLink* first_ = nullptr;
  std::atomic<bool> may_capture_{false};
};

}  // namespace gctx
