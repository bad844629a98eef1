// Contexts: primary ones, green ones, and those of others.
//
// A box is the identity of a context and its lifetime, which state.hpp explains: open, then closed, then gone. Who
// holds what: the driver's object is owned (OwnedContext) by the box until it is gone, which is when the last use of a
// closed context ends, or the last handle of the box. A stream, event or graph is a use (ContextUse), a call is one
// while it lasts (CallUse), and an entry of a thread counts it as current (current.hpp). When it goes, what is owned is
// destroyed, or, if a framework has seen it, kept, from where a new box may take it (RetiredContexts).
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handles/live.hpp"
#include "handles/owned_context.hpp"
#include "handles/registry.hpp"
#include "handles/runtime.hpp"
#include "handles/state.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

enum class ContextKind : int { primary, green, foreign };

// What is known of the SMs of a context (given.hpp).
struct KnownSms {
  std::mutex mutex;
  SmResourcePtr given;    // what a green one of ours was made of
  SmResourcePtr queried;  // once the driver was asked
};

class ContextBox : public Registered<ContextBox, CUcontext> {
 public:
  static constexpr const char* word = "context";  // in messages

  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  ContextBox(Runtime& runtime, int device, ContextKind kind, std::string name = {})
      : runtime_(runtime), device_(device), kind_(kind), name_(std::move(name)) {
    owned_.emplace_back(runtime, device);
  }
  ~ContextBox();
  ContextBox(const ContextBox&) = delete;
  ContextBox& operator=(const ContextBox&) = delete;

  // What it stands for, once that is there.
  void take(CUcontext handle, CUgreenCtx green_handle = nullptr);
  // The same of one that a framework has seen.
  void take_pinned(OwnedContexts pinned) noexcept;
  void note_claim(std::shared_ptr<Claim> claim) noexcept { claim_ = std::move(claim); }  // of its SMs

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return device_; }
  CUcontext handle() const noexcept { return handle_; }
  ContextKind kind() const noexcept { return kind_; }
  bool is_green() const noexcept { return green_handle_ != nullptr; }
  CUgreenCtx green_handle() const noexcept { return green_handle_; }
  std::uint64_t id() const noexcept { return id_; }
  std::string name() const;
  void rename(std::string name);
  std::string label() const { return label_of_context(name()); }  // for messages

  ContextState& state() noexcept { return state_; }
  // The system's number of the thread that made it current last, for messages.
  void note_thread(long thread) noexcept { last_thread_.store(thread, std::memory_order_relaxed); }
  bool is_closed() const noexcept { return !state_.is_open(); }
  bool is_current_anywhere() const noexcept { return state_.is_current_anywhere(); }  // by an entry
  // No more use of a green context of ours; it is destroyed with its last stream and event. Throws while it is current.
  void close();
  void demand_usable() const { runtime_.demand_usable(); }  // of a driver that may be used
  static bool asks_driver() noexcept { return false; }
  void demand_live() const {  // and open
    demand_usable();
    if (is_closed()) [[unlikely]] {
      fail_closed();
    }
  }
  void demand_not_current() const;
  [[noreturn]] void fail_closed() const;

  // Whether the driver's object is still there: see OwnedContext.
  bool is_there() const noexcept { return kind_ == ContextKind::green || owned_.front().is_there(); }
  void demand_there() const {  // and that the driver may be used
    demand_usable();
    if (kind_ != ContextKind::green) {
      ask_to_be_there();
    }
  }

  bool is_current() const;  // on the calling thread

  // What stands beside it, and what it owns: for who has a use of it.
  KnownSms& sms() noexcept { return sms_; }
  OwnedContext& owned() noexcept { return owned_.front(); }
  ContextStreams& streams() noexcept { return owned().streams; }

  // A framework has its handle, or that of one of its streams: from now on neither is destroyed before the driver is
  // closed or the program drops them. True the first time for a green context of ours; throws, and it is not pinned,
  // where that would be one too many.
  bool pin();
  // The same of one that is not gone: without a limit for a capture that goes on.
  bool keep(std::uint64_t limit = ~std::uint64_t{0});
  bool is_pinned() const noexcept { return pinned_.load(std::memory_order_relaxed); }

  // Called by whoever ended the last use after close().
  void let_go() noexcept;

 private:
  void ask_to_be_there() const;
  [[noreturn]] void fail_current(bool is_here) const;

  Runtime& runtime_;
  const int device_;
  const ContextKind kind_;
  CUcontext handle_ = nullptr;
  CUgreenCtx green_handle_ = nullptr;  // set if it is green
  std::uint64_t id_ = 0;
  std::shared_ptr<Claim> claim_;
  KnownSms sms_;
  OwnedContexts owned_;  // one, until it is gone
  mutable std::mutex name_mutex_;
  std::string name_;
  std::atomic<bool> pinned_{false};
  ContextState state_;
  std::atomic<long> last_thread_{0};
};

// What a stream or event holds: while there is one, a closed context lives on.
class ContextUse {
 public:
  ContextUse(ContextHandle context);  // throws if the context is closed
  template <typename Child>
  ContextUse(const std::shared_ptr<Child>& child) noexcept : ContextUse(child->use()) {}  // of what holds one
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
  CallUse(ContextBox& context, std::nothrow_t) noexcept;  // of one that may have gone
  ~CallUse();
  bool is_alive() const noexcept { return context_ != nullptr; }
  CallUse(const CallUse&) = delete;
  CallUse& operator=(const CallUse&) = delete;

 private:
  ContextBox* context_;
};

struct PriorityRange {
  int least = 0;
  int greatest = 0;
};

ContextHandle primary_context(Runtime& runtime, int ordinal);
PriorityRange priorities(Runtime& runtime, int ordinal);
void drop_primaries(Runtime& runtime);

// The context of a raw handle: ours if we made it, else a view that never destroys it.
ContextHandle adopt_context(Runtime& runtime, CUcontext handle);
ContextHandle current_context(Runtime& runtime);  // null if no context is current on this thread
int current_device(Runtime& runtime);             // of that context; 0 if nothing is

}  // namespace gctx
