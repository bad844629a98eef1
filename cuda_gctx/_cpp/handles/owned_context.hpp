// What a context is in the driver, apart from its box: what is left of one that is closed, and what a new box can be
// made of.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "handles/context_streams.hpp"
#include "handles/live.hpp"
#include "handles/registry.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// A green context of ours, its claim of SMs, and the primary context under it.
class GreenCtxBox : public Registered<GreenCtxBox, CUgreenCtx> {
 public:
  // The box is made before what it will own, so that nothing is lost if memory runs out in between. It keeps the
  // primary context.
  GreenCtxBox(Runtime& runtime, int device, std::shared_ptr<void> primary) noexcept
      : runtime_(runtime), device_(device), primary_(std::move(primary)) {}
  ~GreenCtxBox();
  GreenCtxBox(const GreenCtxBox&) = delete;
  GreenCtxBox& operator=(const GreenCtxBox&) = delete;

  void take(CUgreenCtx handle) noexcept { handle_ = handle; }
  Runtime& runtime() const noexcept { return runtime_; }
  CUgreenCtx handle() const noexcept { return handle_; }
  // The same as an ordinary context; from then on it is found by its handle.
  CUcontext context() const noexcept { return context_; }
  void take_context(CUcontext context) noexcept;

  // From now on its SMs are claimed by this (null: by nobody), and no longer by what claimed them before.
  void claim(std::shared_ptr<Claim> claim) noexcept;

 private:
  Runtime& runtime_;
  int device_;
  std::shared_ptr<void> primary_;
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
  std::shared_ptr<Claim> claim_;
};

struct OwnedContext {
  OwnedContext(Runtime& of, int ordinal) noexcept : runtime(of), device(ordinal) {}
  ~OwnedContext();  // destroys what is ours
  OwnedContext(const OwnedContext&) = delete;
  OwnedContext& operator=(const OwnedContext&) = delete;

  // Whether the driver's object is still there. A primary context goes with a reset of its device, one of others when
  // they destroy it. A green one of ours stays: while there is one, the driver (13.0) refuses the reset.
  bool is_there() const noexcept { return ask_whether_there() != CUDA_ERROR_CONTEXT_IS_DESTROYED; }
  CUresult ask_whether_there() const noexcept;

  bool is_made_of(const SmResource& sms, const std::optional<CUdevResource>& wanted) const noexcept;
  bool has_anything() noexcept { return green || streams.has_own(); }
  // Whether it can be destroyed: not while a green one of ours has work to do, if the driver cannot be asked for that,
  // or while the driver is set aside.
  bool is_done() const noexcept;
  void wait() const noexcept;  // for the work of a green one of ours
  void destroy_streams() noexcept;

  Runtime& runtime;
  const int device;
  CUcontext handle = nullptr;
  std::uint64_t id = 0;
  GreenCtxHandle green;  // if it is ours
  SmResourcePtr given;   // what a green one of ours was made of
  std::optional<CUdevResource> workqueue;
  std::shared_ptr<const void> queues_of;  // the use of another context, if it shares that one's queues
  ContextStreams streams;
};

// The place of one, which goes from list to list and needs no memory for it.
using OwnedContexts = std::list<OwnedContext>;

// Contexts that nobody here uses any more.
//
// Pinned: a framework has seen them. Frameworks keep bare handles in caches that nobody can empty, so that these live
// until the driver is closed or the program drops them, and serve the next request for the same SMs.
//
// Ending: green ones of ours that have work to do. Waits of the primary context, which are those of other libraries for
// all work of the device, have missed a copy of a green context that was destroyed (seen on an H200 with driver 13.0;
// an H100 waited for kernels). So none is destroyed before its work has ended.
class RetiredContexts {
 public:
  static constexpr Runtime::Place place = Runtime::Place::retired;
  explicit RetiredContexts(Runtime& runtime)
      : runtime_(runtime), seen_(static_cast<std::size_t>(runtime.device_count())) {}

  // Takes what is left of a closed context: keeps it if it is pinned, and destroys it otherwise, now or when its work
  // has ended. Waits for nothing, and needs no memory.
  void retire(OwnedContexts context, bool is_pinned) noexcept;
  // Destroys those whose work has ended: some of them, the oldest first.
  void collect() noexcept;
  // Until the work of those of a device has ended.
  void wait(int device, CUcontext primary);
  // Destroys all when their work has ended, and from then on none is kept.
  void close() noexcept;

  // So many contexts of a device a framework may see; of all drivers.
  static constexpr std::uint64_t default_limit = 512;
  static std::uint64_t limit() noexcept { return limit_.load(); }
  static void set_limit(std::uint64_t limit) noexcept { limit_.store(limit); }
  // One more green context is seen. Throws, and it is not, where that would be more than `limit`.
  void demand_and_count(int device, std::uint64_t limit);
  // A pinned one that is made of these resources, and on which nothing captures; empty if there is none.
  OwnedContexts take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue);
  void add_to(ContextCounts& counts, int device) const;
  void drop_pinned() noexcept;  // frameworks must not use them any more

 private:
  static constexpr int most_asked = 4;  // of those that go on, for one that is made or ends
  static std::atomic<std::uint64_t> limit_;

  Runtime& runtime_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> seen_;  // by device
  OwnedContexts pinned_;             // what came last goes first
  OwnedContexts ending_;             // the oldest first
  bool is_closed_ = false;
};

inline RetiredContexts& retired_contexts(Runtime& runtime) { return runtime.part<RetiredContexts>(); }

}  // namespace gctx
