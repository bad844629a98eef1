// The green contexts of this package. A context lives until the program releases it, because destroying it returns no
// memory (seen with driver 13.0), crashes frameworks that kept a handle, and can hide work from waits. So a request
// first looks for an idle context with the same SMs.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "handles/driver_context.hpp"
#include "handles/lease.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// The resources of one context.
struct ContextRequest {
  std::vector<SmResourcePtr> groups;  // of one split; empty for the whole device
  SmResourcePtr sms;                  // the same, merged
  std::optional<CUdevResource> workqueue;
  DriverContextHandle queues_of;  // the context whose queues it shares
  DriverContextHandle primary;    // the primary context below it
};

// Numbers of green contexts of a device. open, lingering: contexts of such leases. idle: all others.
struct ContextCounts {
  std::uint64_t contexts = 0;
  std::uint64_t open = 0;
  std::uint64_t lingering = 0;
  std::uint64_t idle = 0;
  std::uint64_t exposed = 0;  // their raw value has left the package
};

// Counts the contexts that a release destroyed, and the idle ones that it left, by reason.
struct ReleasedContexts {
  std::uint64_t destroyed = 0;
  std::uint64_t exposed = 0;
  std::uint64_t at_work = 0;  // or a capture is open in them
  std::uint64_t in_use = 0;   // by an event or a graph
};

class ContextPool final : public LeasedContexts {
 public:
  static constexpr Runtime::Place place = Runtime::Place::context_pool;
  // Beyond so many idle contexts of a device (2.8 GB with driver 13.0), there is one warning.
  static constexpr std::size_t most_idle = 512;

  explicit ContextPool(Runtime& runtime)
      : runtime_(runtime), has_warned_(static_cast<std::size_t>(runtime.device_count())) {}

  // Finds a context that is idle, or that another lease of the same group has. Null if there is none.
  DriverContextHandle find(int device, const ContextRequest& request, const Lease& lease, const LeaseGroup* group);
  // Makes one. Both note the lease, which gives the context back when it ends.
  DriverContextHandle make(int device, const ContextRequest& request, const Lease& lease, const LeaseGroup* group);
  void give_back(DriverContext& context, const Lease& lease) noexcept;
  void give_back(const Lease& lease) noexcept override;

  // Returns a context that makes a group splittable: the driver splits only the answer of a device or a context. There
  // is at most one more context for each group that is split. Null if it has to be made.
  DriverContextHandle find_splitting(const SmResource& group);
  DriverContextHandle make_splitting(const ContextRequest& request);
  std::mutex& splitting() noexcept { return splitting_; }  // for both

  void note_lease(DriverContext& context, const Lease& lease);  // of a context that is known by its raw handle
  bool is_leased(const DriverContext& context) noexcept;
  DriverContextHandle find(CUgreenCtx green);  // null for one of other code

  // The SMs of idle contexts, newest first: a request for free SMs prefers them.
  std::vector<SmResourcePtr> idle_sms(int device);
  // The contexts whose work Device.sync() waits for: those with a lease, and idle ones that are exposed.
  std::vector<DriverContextHandle> at_work(int device);
  ContextCounts counts(int device);
  // Destroys idle contexts without work. Never waits. `exposed`: also contexts whose raw value has left the package.
  ReleasedContexts release(std::optional<int> device, bool exposed);
  void close() noexcept;  // with the driver

 private:
  DriverContextHandle reserve(int device, const ContextRequest& request, const Lease& lease, const LeaseGroup* group,
                              std::vector<const DriverContext*>& unfit);
  DriverContextHandle make(int device, const ContextRequest& request, DriverContext::Purpose purpose);
  void fill(DriverContext& context, const ContextRequest& request);
  void warn_of_idle(int device) noexcept;

  Runtime& runtime_;
  std::mutex mutex_;
  std::mutex splitting_;                       // taken before mutex_
  std::vector<DriverContextHandle> contexts_;  // the newest last
  std::vector<char> has_warned_;
};

inline ContextPool& context_pool(Runtime& runtime) { return runtime.part<ContextPool>(); }

ReleasedContexts release_contexts(Runtime& runtime, bool exposed);  // of all devices

}  // namespace gctx
