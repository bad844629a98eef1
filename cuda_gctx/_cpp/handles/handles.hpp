// The driver objects that this package owns or knows. A box owns one of them and holds what must outlive it, so that
// the order of destruction is right whoever lets go first: event and stream -> context -> green context -> primary
// context.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "resources/sm_resource.hpp"

namespace gctx {

class Runtime;

class GreenCtxBox;
class ContextBox;
class StreamBox;
class EventBox;
using GreenCtxHandle = std::shared_ptr<GreenCtxBox>;
using ContextHandle = std::shared_ptr<ContextBox>;
using StreamHandle = std::shared_ptr<StreamBox>;
using EventHandle = std::shared_ptr<EventBox>;

// ---- contexts

enum class ContextKind : int { primary, green, foreign };

inline std::string context_label(const std::string& name) {
  return name.empty() ? "an unnamed context" : "context '" + name + "'";
}

// A green context, its place among the live ones of its device, and the primary context under it.
class GreenCtxBox {
 public:
  explicit GreenCtxBox(ContextHandle primary) noexcept : primary_(std::move(primary)) {}
  ~GreenCtxBox();
  GreenCtxBox(const GreenCtxBox&) = delete;
  GreenCtxBox& operator=(const GreenCtxBox&) = delete;

  // Takes over what was made, and its place in the list of live contexts (0: not listed).
  void take(CUgreenCtx handle, std::uint64_t live_entry) noexcept {
    handle_ = handle;
    live_entry_ = live_entry;
  }

 private:
  ContextHandle primary_;
  CUgreenCtx handle_ = nullptr;
  std::uint64_t live_entry_ = 0;
};

class ContextBox {
 public:
  ContextBox(Runtime& runtime, int device, CUcontext handle, ContextKind kind, GreenCtxHandle green,
             CUgreenCtx raw_green, std::uint64_t id) noexcept;
  ~ContextBox();
  ContextBox(const ContextBox&) = delete;
  ContextBox& operator=(const ContextBox&) = delete;

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return device_; }
  CUcontext handle() const noexcept { return handle_; }
  ContextKind kind() const noexcept { return kind_; }
  bool is_green() const noexcept { return green_handle_ != nullptr; }
  CUgreenCtx green_handle() const noexcept { return green_handle_; }
  std::uint64_t id() const noexcept { return id_; }
  const std::string& name() const noexcept { return name_; }
  std::string label() const { return context_label(name_); }  // for messages

  bool is_closed() const noexcept { return closed_.load(); }
  // No more use of a green context of ours; it is destroyed with its last stream and event. Throws while it is current.
  void close();
  void demand_open() const;
  void demand_alive() const;  // open, or kept by what was made on it
  void demand_not_current() const;

  bool is_current() const;  // on the calling thread
  void count_current(int change) noexcept { current_uses_.fetch_add(change); }

  // What it was given, asked of the driver once, in a form that can be split.
  SmResourcePtr sm_resource();
  CUdevResource workqueue_resource() const;

  // Streams of the context itself, by priority and number. Who has only the handle of one can use it as long as this
  // box exists, which of our own contexts is as long as the context does.
  CUstream kept_stream(int priority, std::size_t number);
  bool keeps_capture();
  void destroy_kept_streams() noexcept;

 private:
  friend class Reservation;
  friend class ContextUse;
  void release_if_unused() noexcept;
  [[noreturn]] void fail_current(bool here) const;

  Runtime& runtime_;
  int device_;
  CUcontext handle_;
  ContextKind kind_;
  GreenCtxHandle green_;     // set if we own it
  CUgreenCtx green_handle_;  // set if it is green
  std::uint64_t id_;
  std::string name_;
  SmResourcePtr given_;  // what our own green contexts were made of
  std::mutex query_mutex_;
  SmResourcePtr queried_;
  std::mutex green_mutex_;
  std::mutex kept_mutex_;
  std::map<int, std::vector<CUstream>> kept_;
  std::atomic<bool> closed_{false};
  std::atomic<int> current_uses_{0};
  std::atomic<int> uses_{0};
};

// What a stream or event holds: while there is one, a closed context lives on.
class ContextUse {
 public:
  explicit ContextUse(ContextHandle context);    // throws if the context is closed
  ContextUse(const ContextUse& other) noexcept;  // never does: what is in use stays usable
  ContextUse(ContextUse&& other) noexcept = default;
  ContextUse& operator=(const ContextUse&) = delete;
  ContextUse& operator=(ContextUse&&) = delete;
  ~ContextUse();
  const ContextHandle& context() const noexcept { return context_; }

 private:
  void release() noexcept;
  ContextHandle context_;
};

// Resources set aside for a context that is about to be made, so that two threads cannot both be told that SMs are
// free.
class Reservation {
 public:
  // Checks that the resources can be one context. `overlap_matters`: compare with the live contexts of the device.
  Reservation(Runtime& runtime, int device, std::vector<SmResourcePtr> sms, std::optional<CUdevResource> workqueue,
              std::string name, bool exclusive, bool overlap_matters);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Live contexts that share SMs with these, or may: a sentence, empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

  ContextHandle create_context();

 private:
  Runtime& runtime_;
  int device_;
  std::vector<SmResourcePtr> sms_;
  std::optional<CUdevResource> workqueue_;
  std::string name_;
  SmResourcePtr given_;
  std::string overlap_report_;
  std::uint64_t live_entry_ = 0;
};

// The context of a raw handle: ours if we made it, else a view that never destroys it.
ContextHandle adopt_context(Runtime& runtime, CUcontext handle);
ContextHandle current_context(Runtime& runtime);  // null if nothing is current on this thread

void synchronize_context(const ContextHandle& context);

// Puts a context on top of the calling thread's stack for as long as it lives.
class CurrentScope {
 public:
  CurrentScope(const Driver& driver, CUcontext context);
  explicit CurrentScope(const ContextBox& context);
  ~CurrentScope();
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

 private:
  const Driver& driver_;
  CUcontext before_;
  bool pushed_ = false;
};

// What the calling thread makes current by request, remembered so that close() on another thread can refuse.
ContextHandle set_current(Runtime& runtime, const ContextHandle& context);  // returns what was current, or null
void push_current(ContextBox& context);                                     // the caller keeps it until it is popped
void pop_current();
void forget_current_of(const Runtime& runtime);  // leaves nothing of that driver current on this thread
void forget_replaced_current();                  // drops what this thread set and others have replaced since

// ---- streams

class StreamBox {
 public:
  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  StreamBox(ContextUse use, bool owned, std::optional<bool> nonblocking = std::nullopt) noexcept
      : use_(std::move(use)), owned_(owned), nonblocking_(nonblocking) {}
  ~StreamBox();
  StreamBox(const StreamBox&) = delete;
  StreamBox& operator=(const StreamBox&) = delete;

  void take(CUstream handle) noexcept { handle_ = handle; }
  const ContextUse& use() const noexcept { return use_; }
  std::optional<bool> nonblocking() const noexcept { return nonblocking_; }  // as it was made, if it was made here
  bool is_made_here() const noexcept { return nonblocking_.has_value(); }
  const ContextHandle& context() const noexcept { return use_.context(); }
  CUstream handle() const noexcept { return handle_; }
  bool is_owned() const noexcept { return owned_; }
  // The default streams are words for a stream of whichever context is current.
  bool is_default() const noexcept { return is_default_handle(handle_); }
  static bool is_default_handle(CUstream handle) noexcept {
    return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  }
  // The driver's number, asked once; 0 as long as it cannot be asked, because asking would invalidate a capture.
  std::uint64_t id();

 private:
  ContextUse use_;
  CUstream handle_ = nullptr;
  bool owned_;
  std::optional<bool> nonblocking_;
  std::atomic<std::uint64_t> id_{0};
};

StreamHandle create_stream(const ContextHandle& context, std::optional<int> priority, bool nonblocking);
StreamHandle kept_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number);
StreamHandle adopt_stream(Runtime& runtime, CUstream handle);
int stream_priority(const StreamHandle& stream);
bool stream_is_nonblocking(const StreamHandle& stream);
bool stream_is_capturing(const StreamBox& stream);
bool is_same_stream(const StreamHandle& a, const StreamHandle& b);
bool stream_is_done(const StreamHandle& stream);
void synchronize_stream(const StreamHandle& stream);
void record_event(const StreamHandle& stream, const EventHandle& event);
void wait_event(const StreamHandle& stream, const EventHandle& event);

// ---- events

class EventBox {
 public:
  explicit EventBox(ContextUse use) noexcept : use_(std::move(use)) {}
  ~EventBox();
  EventBox(const EventBox&) = delete;
  EventBox& operator=(const EventBox&) = delete;

  void take(CUevent handle) noexcept { handle_ = handle; }
  const ContextHandle& context() const noexcept { return use_.context(); }
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
