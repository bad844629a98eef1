// Boxes of contexts: what objects of users hold. A box stands for a context of the driver in one lease: layouts of one
// pool share contexts, and each layout has a lease and boxes of its own. A box of a primary context or of other code
// has a lease that is never closed.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "handles/driver_context.hpp"
#include "handles/lease.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"

namespace gctx {

class ContextBox {
 public:
  static constexpr const char* word = "context";  // in messages

  ContextBox(LeaseHandle lease, DriverContextHandle context, std::string name = {}, bool is_partition = false) noexcept
      : lease_(std::move(lease)), context_(std::move(context)), name_(std::move(name)), is_partition_(is_partition) {}
  ContextBox(const ContextBox&) = delete;
  ContextBox& operator=(const ContextBox&) = delete;

  Runtime& runtime() const noexcept { return context_->runtime(); }
  int device() const noexcept { return context_->device(); }
  CUcontext handle() const noexcept { return context_->handle(); }
  ContextKind kind() const noexcept { return context_->kind(); }
  bool is_green() const noexcept { return context_->green_handle() != nullptr; }
  CUgreenCtx green_handle() const noexcept { return context_->green_handle(); }
  std::uint64_t id() const noexcept { return context_->id(); }
  const std::string& name() const noexcept { return name_; }
  bool is_partition() const noexcept { return is_partition_; }
  std::string label() const;  // for messages

  Lease& lease() const noexcept { return *lease_; }
  const LeaseHandle& lease_handle() const noexcept { return lease_; }
  DriverContext& in_driver() const noexcept { return *context_; }
  const DriverContextHandle& driver_handle() const noexcept { return context_; }
  ContextStreams& streams() const noexcept { return context_->streams(); }
  KnownSms& sms() const noexcept { return context_->sms(); }
  bool is_same_context(const ContextBox& other) const noexcept { return context_ == other.context_; }

  bool is_closed() const noexcept { return !lease_->is_open(); }
  static bool asks_driver() noexcept { return false; }
  void demand_usable() const { runtime().demand_usable(); }  // the driver may be called
  void demand_live() const {                                 // the lease is open, too
    demand_usable();
    if (is_closed()) [[unlikely]] {
      fail_closed();
    }
  }
  [[noreturn]] void fail_closed() const;

  // The driver's object is still there: see DriverContext.
  bool is_there() const noexcept { return kind() == ContextKind::green || context_->is_there(); }
  void demand_there() const {
    demand_usable();
    if (kind() != ContextKind::green) {
      ask_to_be_there();
    }
  }

  bool is_current() const;  // on the calling thread
  // The system's number of the thread that made it current last, for messages.
  void note_thread(long thread) noexcept { last_thread_.store(thread, std::memory_order_relaxed); }
  bool was_current() const noexcept { return last_thread_.load(std::memory_order_relaxed) != 0; }
  [[noreturn]] void fail_current(bool is_here) const;

 private:
  void ask_to_be_there() const;

  const LeaseHandle lease_;
  const DriverContextHandle context_;
  const std::string name_;
  const bool is_partition_;
  std::atomic<long> last_thread_{0};
};

inline const DriverContextHandle& driver_context(const ContextBox& box) noexcept { return box.driver_handle(); }

// A use of a lease, which streams and executable graphs hold: a closed lease lingers while there is one.
class ContextUse {
 public:
  enum class Of { open, lingering };
  explicit ContextUse(ContextHandle context, Of of = Of::open);  // throws if the lease is closed, or has ended
  ContextUse(const ContextUse& other) noexcept;
  ContextUse(ContextUse&& other) noexcept = default;
  ContextUse& operator=(const ContextUse&) = delete;
  ContextUse& operator=(ContextUse&&) = delete;
  ~ContextUse() {
    if (context_) {
      context_->lease().leave();
    }
  }
  const ContextHandle& context() const noexcept { return context_; }

 private:
  ContextHandle context_;
};

// A use for the length of a call, so that the context is not released under it.
class CallUse {
 public:
  explicit CallUse(const ContextBox& context, ContextUse::Of of = ContextUse::Of::open);
  ~CallUse() { context_.lease().leave(); }
  CallUse(const CallUse&) = delete;
  CallUse& operator=(const CallUse&) = delete;

 private:
  const ContextBox& context_;
};

struct PriorityRange {
  int least = 0;
  int greatest = 0;
};

// Lets a raw handle find a box.
void note_box(const ContextHandle& box);
ContextHandle open_box(DriverContext& context);      // null if no lease of it is open
bool context_is_idle(const ContextHandle& context);  // its work has ended, and none of its streams captures

ContextHandle primary_context(Runtime& runtime, int ordinal);
PriorityRange priorities(Runtime& runtime, int ordinal);
void drop_primaries(Runtime& runtime);

// Returns the context of a raw handle: an open box, or a new one. A context of this package without an open lease gets
// one by it, so that its SMs are claimed while the box is there.
ContextHandle adopt_context(Runtime& runtime, CUcontext handle);
ContextHandle current_context(Runtime& runtime);  // null if no context is current on this thread
int current_device(Runtime& runtime);             // of that context; 0 if nothing is current

}  // namespace gctx
