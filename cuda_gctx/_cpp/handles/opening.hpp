// Opening contexts: first their SMs are claimed, so that two threads cannot both find them free; then the contexts are
// taken from the pool or made. Also the resources of contexts that are open.
#pragma once

#include <cuda.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handles/context_pool.hpp"
#include "handles/lease.hpp"
#include "handles/sm_claims.hpp"
#include "handles/types.hpp"
#include "resources/outcome.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

struct NewContext {
  std::string name;
  std::vector<SmResourcePtr> groups;  // of one split; empty: all SMs of the device
  std::optional<CUdevResource> workqueue{};
};

// A lease with a box for each of its contexts.
struct OpenedContexts {
  LeaseHandle lease;
  std::vector<ContextHandle> contexts;
};

class Opening {
 public:
  struct Terms {
    bool exclusive = false;
    bool only_free = false;
    bool are_partitions = false;  // for messages
    LeaseHandle inside{};         // of the context whose SMs are split
    LeaseGroupHandle group{};     // of a pool of layouts
    std::string advice{};
  };

  // Claims the SMs. Throws if the resources of a context do not belong together, and where the terms refuse SMs.
  Opening(Runtime& runtime, int device, std::vector<NewContext> contexts, Terms terms);

  // The claims that share SMs with these contexts, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept { return claim_->overlap_report(); }
  // Lets the only context use the queues of another one, which then lives as long.
  void share_queues(const ContextHandle& source);
  // Leases all contexts, or throws and leaves nothing behind. Called once.
  OpenedContexts lease();

 private:
  Runtime& runtime_;
  const int device_;
  std::vector<std::string> names_;
  std::vector<ContextRequest> requests_;
  const Terms terms_;
  std::shared_ptr<Claim> claim_;
};

// Puts the partition and what to do into the message of a driver call that failed.
void name_partition(Error& error, const std::string& name, unsigned sm_count);

// Splits SMs. Where only a context can split them, it is made first, and kept.
SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run);

// The SMs of a context, asked of the driver once, in a form that can be split.
SmResourcePtr sm_resource(const ContextHandle& context);
SmResourcePtr queried_sms(DriverContext& context);
// The context to which other code has limited this thread or this process: a context of other code that is current and
// has a part of the device, or a primary context that has a part. Null if there is none.
ContextHandle granted_context(Runtime& runtime, int device);
SmResourcePtr known_sm_resource(ContextBox& context);  // null if the driver has to be asked
// Records that a context has the SMs of a group of another split too, whose other groups are then known to be disjoint.
void serve_as(DriverContext& context, const SmResourcePtr& group);
// The SMs on which a kernel ran in the context, ascending; empty if none did.
std::vector<unsigned> seen_sm_ids(const ContextHandle& context);
void note_sm_ids(const ContextHandle& context, const std::vector<unsigned>& ids);
CUdevResource workqueue_config(const ContextHandle& context);  // the device's, with the values of this context
CUdevResource existing_workqueue(
    const ContextHandle& context);  // its queues themselves, which another context can share

}  // namespace gctx
