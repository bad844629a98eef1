// What a context is given, its SMs and hardware queues: of one that is about to be made, and asked of one that is
// there.
#pragma once

#include <cuda.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handles/live.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// A green context that is about to be made: its SMs are claimed first, so that two threads cannot both find them free.
struct NewContext {
  // The live contexts that share SMs with it, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept {
    static const std::string none;
    return claim ? claim->overlap_report() : none;
  }
  // That its workqueue is that of another context, which lives as long as this one. Throws if that is closed.
  void share_queues(const ContextHandle& source);
  ContextHandle create();
  void make(ContextBox& box);  // not one that a framework has seen

  Runtime& runtime;
  const int device;
  const std::vector<SmResourcePtr> sms;
  const std::optional<CUdevResource> workqueue;
  const std::string name;
  SmResourcePtr given{};
  std::shared_ptr<Claim> claim{};
  std::shared_ptr<const void> queues_of{};
};

// Checks that the resources can be one context. `overlap_matters`: compare with the live contexts of the device.
std::unique_ptr<NewContext> claim_context(Runtime& runtime, int device, std::vector<SmResourcePtr> sms,
                                          std::optional<CUdevResource> workqueue, std::string name, bool exclusive,
                                          bool overlap_matters);

// The SMs of a context, asked of the driver once, in a form that can be split.
SmResourcePtr sm_resource(const ContextHandle& context);
SmResourcePtr known_sm_resource(ContextBox& context);  // null if it has to be queried, or waited for
// That its SMs are those of a group of another split too, whose other groups are then known to be disjoint from it.
void serve_as(const ContextHandle& context, const SmResourcePtr& group);
CUdevResource workqueue_config(const ContextHandle& context);  // the device's, with what this context has
CUdevResource existing_workqueue(
    const ContextHandle& context);  // its queues themselves, which another context can share

}  // namespace gctx
