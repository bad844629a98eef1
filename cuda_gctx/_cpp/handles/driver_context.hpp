// Contexts as the driver knows them: primary, green, and those of other code. Several boxes can stand for one
// (context.hpp). A green context belongs to the context pool, and lives until the program releases it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "handles/context_streams.hpp"
#include "handles/registry.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class LeaseGroup;

// The SMs of a context, as far as they are known (opening.hpp).
struct KnownSms {
  std::mutex mutex;
  SmResourcePtr given;        // of a green context of this package: its groups
  SmResourcePtr queried;      // the answer of the driver, once it was asked
  std::vector<unsigned> ids;  // those on which a kernel ran, ascending; empty until verify()
};

class DriverContext : public Registered<DriverContext, CUcontext> {
 public:
  // Splits use contexts of their own: see ContextPool::splittable().
  enum class Purpose : int { leases, splits };

  DriverContext(Runtime& runtime, int device, ContextKind kind) noexcept
      : runtime_(runtime), device_(device), kind_(kind) {}
  ~DriverContext() { destroy(); }
  DriverContext(const DriverContext&) = delete;
  DriverContext& operator=(const DriverContext&) = delete;

  // Take what the driver made. A box is made before what it owns, so that nothing is lost if memory runs out.
  void take(CUcontext handle, CUgreenCtx green_handle = nullptr);
  void own_green(CUgreenCtx green_handle) noexcept { owned_green_ = green_handle; }
  // Destroys a green context of this package and releases a primary one, with the streams that belong to it. Boxes of
  // ended leases may still refer to it.
  void destroy() noexcept;

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return device_; }
  ContextKind kind() const noexcept { return kind_; }
  CUcontext handle() const noexcept { return handle_; }
  CUgreenCtx green_handle() const noexcept { return green_handle_; }  // null for an ordinary context
  std::uint64_t id() const noexcept { return id_; }

  // Returns whether the driver's object is still there. A primary context goes with a reset of its device, a context of
  // other code when that code destroys it. A green one of this package stays: the driver (13.0) refuses the reset.
  bool is_there() const noexcept { return ask_whether_there() != CUDA_ERROR_CONTEXT_IS_DESTROYED; }
  CUresult ask_whether_there() const noexcept;

  // Returns whether the work of a green context has ended and none of its streams captures. False if the driver cannot
  // be asked.
  bool is_idle() noexcept;
  void wait() noexcept;  // for the work of a green context, unless one of its streams captures

  ContextStreams& streams() noexcept { return streams_; }
  KnownSms& sms() noexcept { return sms_; }

  // The raw value has left the package, by the handle of the context or of one of its streams.
  bool is_exposed() const noexcept { return is_exposed_.load(std::memory_order_relaxed); }
  void expose() noexcept {
    is_exposed_.store(true, std::memory_order_relaxed);
    streams_.expose();
  }

  // Counts events and graphs, which the driver ties to the context, and which can outlive all leases.
  void add_child() noexcept { children_.fetch_add(1, std::memory_order_relaxed); }
  void remove_child() noexcept { children_.fetch_sub(1, std::memory_order_release); }
  bool has_children() const noexcept { return children_.load(std::memory_order_acquire) != 0; }

  // The boxes that stand for it, so that a raw handle finds an open one (context.hpp).
  struct Boxes {
    std::mutex mutex;
    std::vector<std::weak_ptr<ContextBox>> all;
  };
  Boxes& boxes() noexcept { return boxes_; }

  // The resources of a green context of this package, set before the pool lists it.
  Purpose purpose = Purpose::leases;
  std::optional<CUdevResource> workqueue;
  DriverContextHandle queues_of;  // the context whose queues it shares; counted there as a child
  DriverContextHandle primary;    // below it

 private:
  friend class ContextPool;

  Runtime& runtime_;
  const int device_;
  const ContextKind kind_;
  CUcontext handle_ = nullptr;
  CUgreenCtx green_handle_ = nullptr;
  CUgreenCtx owned_green_ = nullptr;
  std::uint64_t id_ = 0;
  ContextStreams streams_;
  KnownSms sms_;
  Boxes boxes_;
  bool is_destroyed_ = false;
  std::atomic<bool> is_exposed_{false};
  std::atomic<std::uint32_t> children_{0};

  // Under the lock of the pool:
  std::vector<const Lease*> leases_;   // open and lingering ones
  const LeaseGroup* group_ = nullptr;  // of these leases; null: of none
  bool is_ending_ = false;             // a release decides about it
};

}  // namespace gctx
