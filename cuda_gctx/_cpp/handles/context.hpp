// Contexts: primary ones, green ones, and those of others.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handles/green_context.hpp"
#include "handles/registry.hpp"
#include "handles/state.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class Driver;

enum class ContextKind : int { primary, green, foreign };

inline std::string context_label(const std::string& name) {
  return name.empty() ? "an unnamed context" : "context '" + name + "'";
}

class ContextBox : public Registered<CUcontext, ContextBox> {
 public:
  static constexpr const char* word = "context";  // in messages

  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  ContextBox(Runtime& runtime, int device, ContextKind kind, std::string name = {}, SmResourcePtr given = nullptr)
      : runtime_(runtime), device_(device), kind_(kind), name_(std::move(name)), given_(std::move(given)) {}
  ~ContextBox();
  ContextBox(const ContextBox&) = delete;
  ContextBox& operator=(const ContextBox&) = delete;

  // What it stands for: a primary context that was retained for it, or one that somebody else owns.
  void take(CUcontext handle, CUgreenCtx raw_green = nullptr) noexcept {
    handle_ = handle;
    green_handle_ = raw_green;
  }
  void take(CUcontext handle, CUgreenCtx raw_green, std::unique_ptr<GreenCtxBox> green,
            const std::optional<CUdevResource>& workqueue) noexcept {
    take(handle, raw_green);
    green_ = std::move(green);
    given_workqueue_ = workqueue;
  }
  // What another box has owned, which is left without it.
  void take_over(ContextBox& other) noexcept;
  void take_over_pinned(ContextBox& other) noexcept {
    take_over(other);
    pinned_.store(true);
  }
  void ask_id();
  void note_entry(std::uint64_t entry) noexcept { live_entry_ = entry; }  // in the list of live contexts

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return device_; }
  CUcontext handle() const noexcept { return handle_; }
  ContextKind kind() const noexcept { return kind_; }
  bool is_green() const noexcept { return green_handle_ != nullptr; }
  CUgreenCtx green_handle() const noexcept { return green_handle_; }
  std::uint64_t id() const noexcept { return id_; }
  std::string name() const;
  void rename(std::string name);
  std::string label() const { return context_label(name()); }  // for messages

  ContextState& state() noexcept { return state_; }
  // The system's number of the thread that made it current last, for messages.
  void note_thread(long thread) noexcept { last_thread_.store(thread, std::memory_order_relaxed); }
  bool is_closed() const noexcept { return !state_.is_open(); }
  // No more use of a green context of ours; it is destroyed with its last stream and event. Throws while it is current.
  void close();
  inline void demand_usable() const;  // of a driver that may be used
  static bool asks_driver() noexcept { return false; }
  void demand_live() const {  // and open
    demand_usable();
    if (is_closed()) [[unlikely]] {
      fail_closed();
    }
  }
  void demand_not_current() const;
  [[noreturn]] void fail_closed() const;

  // Whether the driver's object is still there. A primary context goes with a reset of its device, one of others when
  // they destroy it. A green one of ours stays: while there is one, the driver (13.0) refuses the reset.
  bool is_there() const noexcept;
  void demand_there() const {  // and that the driver may be used
    demand_usable();
    if (kind_ != ContextKind::green) {
      ask_to_be_there();
    }
  }

  bool is_current() const;  // on the calling thread

  // What it was given, asked of the driver once, in a form that can be split.
  SmResourcePtr sm_resource();
  SmResourcePtr known_sm_resource();  // null if it has to be queried, or waited for
  // That its SMs are those of a group of another split too, whose other groups are then known to be disjoint from it.
  void serve_as(const SmResource& group);
  CUdevResource workqueue_resource();

  // Streams of the context itself, by priority and number. Who has only the handle of one can use it as long as this
  // box exists, which of our own contexts is as long as the context does.
  CUstream context_stream(int priority, std::size_t number);
  CUstream any_own_stream() noexcept;  // null if there is none yet
  void destroy_own_streams() noexcept;

  // The streams that this package made on it, so that it can be asked which of them capture.
  void add(StreamBox& stream) noexcept;
  void remove(StreamBox& stream) noexcept;
  bool has_capture();
  // False as long as no stream of it can be part of a capture: see StreamBox::may_capture.
  bool may_capture() const noexcept { return may_capture_.load(std::memory_order_relaxed); }
  void expose_stream() noexcept { may_capture_.store(true, std::memory_order_relaxed); }
  void demand_no_capture(const char* what) {
    if (may_capture() && has_capture()) [[unlikely]] {
      fail_capturing(what);
    }
  }

  // A framework has its handle, or that of one of its streams: from now on neither is destroyed before the driver is
  // closed. True the first time for a green context of ours.
  bool pin();
  bool is_pinned() const noexcept { return pinned_.load(std::memory_order_relaxed); }
  bool is_made_of(const SmResource& sms, const std::optional<CUdevResource>& workqueue) const noexcept;
  // Its place among the live contexts of the device, for one that is used again.
  void enlist_as(std::uint64_t live_entry) noexcept { green_->enlist_as(live_entry); }

  // Streams that a framework has seen and whose owner has closed them. The ones that are idle are used again.
  void keep_spare(CUstream stream, bool nonblocking) noexcept;
  CUstream take_spare(bool nonblocking, int priority);  // null if there is none

  // Called by whoever ended the last use after close().
  void let_go() noexcept;

 private:
  struct SpareStream {
    CUstream handle;
    bool nonblocking;
  };
  struct OwnStreams {
    std::map<int, std::vector<CUstream>> lent;  // by priority
    std::vector<SpareStream> spare;
    bool empty() const noexcept { return lent.empty() && spare.empty(); }
  };

  OwnStreams take_own_streams() noexcept;
  bool keep_pinned() noexcept;
  void destroy(const OwnStreams& kept) const noexcept;
  void ask_to_be_there() const;
  CUresult ask_whether_there() const noexcept;
  [[noreturn]] void fail_capturing(const char* what) const;
  [[noreturn]] void fail_current(bool is_here) const;

  Runtime& runtime_;
  int device_;
  CUcontext handle_ = nullptr;
  ContextKind kind_;
  std::unique_ptr<GreenCtxBox> green_;  // set if we own it
  CUgreenCtx green_handle_ = nullptr;   // set if it is green
  std::uint64_t id_ = 0;
  std::uint64_t live_entry_ = 0;
  mutable std::mutex name_mutex_;
  std::string name_;
  SmResourcePtr given_;  // what our own green contexts were made of
  std::optional<CUdevResource> given_workqueue_;
  std::atomic<bool> pinned_{false};
  std::atomic<bool> may_capture_{false};
  std::mutex query_mutex_;
  SmResourcePtr queried_;
  std::mutex streams_mutex_;
  OwnStreams own_streams_;
  StreamBox* first_stream_ = nullptr;
  ContextState state_;
  std::atomic<long> last_thread_{0};
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
  ContextHandle context_;
};

// A use for the length of a call, so that close() on another thread destroys nothing under it.
class CallUse {
 public:
  enum class Of { open, alive };  // alive: or closed, and kept by what was made on it
  explicit CallUse(ContextBox& context, Of state = Of::open);
  ~CallUse();
  CallUse(const CallUse&) = delete;
  CallUse& operator=(const CallUse&) = delete;

 private:
  ContextBox& context_;
};

// The context of a raw handle: ours if we made it, else a view that never destroys it.
ContextHandle adopt_context(Runtime& runtime, CUcontext handle);
ContextHandle current_context(Runtime& runtime);  // null if nothing is current on this thread
int current_device(Runtime& runtime);             // of that context; 0 if nothing is

void synchronize_context(const ContextHandle& context);
bool any_has_capture(const std::vector<ContextHandle>& contexts);

}  // namespace gctx
