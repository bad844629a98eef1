#include "handles/opening.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "handles/captures.hpp"
#include "handles/context.hpp"
#include "resources/descriptor.hpp"
#include "resources/split.hpp"

namespace gctx {
namespace {

// The number of splits that a context remembers, in addition to the one that it was made for.
constexpr std::size_t most_splits = 16;

CUdevResource ask_for(DriverContext& context, CUdevResourceType type) {
  CUdevResource answer{};
  GCTX_CALL(context.runtime().driver(), cuCtxGetDevResource, context.handle(), &answer, type);
  return answer;
}

CUdevResource ask_for(const ContextHandle& context, CUdevResourceType type) {
  const CallUse use(*context, ContextUse::Of::lingering);
  return ask_for(context->in_driver(), type);
}

void demand_one_context(const Runtime& runtime, int device, const std::vector<SmResourcePtr>& groups) {
  for (const auto& group : groups) {
    if (group->driver != &runtime.driver()) {
      fail_value("an SMResource belongs to a driver that is closed");
    }
    if (group->device != device) {
      fail_value("an SMResource of device " + std::to_string(group->device) +
                 " cannot be part of a context on device " + std::to_string(device));
    }
    demand_sms(*group);
  }
  for (auto a = groups.begin(); a != groups.end(); ++a) {
    for (auto b = std::next(a); b != groups.end(); ++b) {
      if (overlaps(**a, **b).value_or(false)) {
        fail_value("two of the SMResources contain the same SMs: the driver would count them twice and use them once");
      }
      if ((*a)->origin == nullptr || (*a)->origin != (*b)->origin) {
        fail_value("the SMResources of a context must be groups of one split");
      }
    }
  }
}

// A context cannot be made while a stream captures.
DriverContextHandle found_or_made(ContextPool& pool, int device, const ContextRequest& request, const Lease& lease,
                                  const LeaseGroup* group) {
  if (DriverContextHandle found = pool.find(device, request, lease, group)) {
    return found;
  }
  const CaptureGate::Pass pass(lease.runtime(), device);
  demand_no_capture_on(lease.runtime(), device);
  return pool.make(device, request, lease, group);
}

SmResourcePtr splittable(Runtime& runtime, const SmResourcePtr& group) {
  ContextPool& pool = context_pool(runtime);
  const CaptureGate::Pass pass(runtime, group->device);
  const std::lock_guard splitting(pool.splitting());
  DriverContextHandle context = pool.find_splitting(*group);
  if (!context) {
    ContextRequest request;
    request.groups = {group};
    request.sms = group;
    request.primary = primary_context(runtime, group->device)->driver_handle();
    demand_no_capture_on(runtime, group->device);
    context = pool.make_splitting(request);
  }
  // The same SMs, but as a part of the split that this group came from.
  auto resource = std::make_shared<SmResource>(queried_sms(*context));
  resource->come_from(group);
  return resource;
}

}  // namespace

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run) {
  if (input->driver != &runtime.driver()) {
    fail_value("this SMResource belongs to a driver that is closed");
  }
  return split(runtime.driver(), input, requests, dry_run,
               [&](const SmResourcePtr& group) { return splittable(runtime, group); });
}

void name_partition(Error& error, const std::string& name, unsigned sm_count) {
  if (error.kind == ErrorKind::driver) {
    error.message = "partition " + name + " (" + std::to_string(sm_count) + " SMs): " + error.message +
                    (error.code == CUDA_ERROR_OUT_OF_MEMORY
                         ? ": free device memory, or open fewer contexts (system.memory() counts them)"
                         : ": run cuda-gctx doctor");
  }
}

Opening::Opening(Runtime& runtime, int device, std::vector<NewContext> contexts, Terms terms)
    : runtime_(runtime), device_(device), terms_(std::move(terms)) {
  runtime.driver().require(Feature::green_contexts);
  std::vector<SmResourcePtr> sms;
  for (NewContext& context : contexts) {
    demand_one_context(runtime, device, context.groups);
    ContextRequest request;
    request.sms = context.groups.empty() ? runtime.device_sm(device) : merged(context.groups);
    request.groups = std::move(context.groups);
    request.workqueue = context.workqueue;
    request.primary = primary_context(runtime, device)->driver_handle();
    sms.push_back(request.sms);
    names_.push_back(std::move(context.name));
    requests_.push_back(std::move(request));
  }
  claim_ = std::make_shared<Claim>(runtime, device, std::move(sms), names_,
                                   Claim::Terms{terms_.exclusive, terms_.only_free, terms_.group.get(),
                                                terms_.inside ? terms_.inside->claim() : nullptr, terms_.advice});
}

void Opening::share_queues(const ContextHandle& source) {
  source->demand_live();
  requests_.front().queues_of = source->driver_handle();
}

OpenedContexts Opening::lease() {
  ContextPool& pool = context_pool(runtime_);
  OpenedContexts opened{std::make_shared<Lease>(runtime_), {}};
  std::vector<DriverContextHandle> taken;
  taken.reserve(requests_.size());
  try {
    for (std::size_t at = 0; at < requests_.size(); ++at) {
      const ContextRequest& request = requests_[at];
      try {
        taken.push_back(found_or_made(pool, device_, request, *opened.lease, terms_.group.get()));
      } catch (Error& error) {
        if (terms_.are_partitions) {
          name_partition(error, names_[at], request.sms->sm_count);
        }
        throw;
      }
      serve_as(*taken.back(), request.sms);
      opened.contexts.push_back(
          std::make_shared<ContextBox>(opened.lease, taken.back(), names_[at], terms_.are_partitions));
      note_box(opened.contexts.back());
    }
    opened.lease->take(pool, claim_, taken, terms_.group);
  } catch (...) {
    for (const DriverContextHandle& context : taken) {
      pool.give_back(*context, *opened.lease);
    }
    throw;
  }
  return opened;
}

// ---- the resources of a context

SmResourcePtr queried_sms(DriverContext& context) {
  Runtime& runtime = context.runtime();
  runtime.driver().require(Feature::green_contexts);
  KnownSms& known = context.sms();
  const std::lock_guard lock(known.mutex);
  if (!known.queried) {
    const CUdevResource answer = ask_for(context, CU_DEV_RESOURCE_TYPE_SM);
    if (context.kind() == ContextKind::primary) {
      // The groups of the device and of its primary context come from one split, unless the primary context is a part.
      SmResourcePtr whole = runtime.device_sm(context.device());
      if (answer.sm.smCount == whole->sm_count) {
        return known.queried = std::move(whole);
      }
    }
    auto resource = std::make_shared<SmResource>(sm_resource_from_query(runtime, context.device(), answer));
    if (known.given) {
      resource->coscheduled = known.given->promised();
      resource->come_from(known.given);
      resource->also = known.given->also;
    }
    resource->whole_device = resource->sm_count == runtime.device_sm(context.device())->sm_count;
    known.queried = std::move(resource);
  }
  return known.queried;
}

SmResourcePtr sm_resource(const ContextHandle& context) {
  {
    const std::lock_guard lock(context->sms().mutex);
    if (context->sms().queried) {
      return context->sms().queried;
    }
  }
  const CallUse use(*context, ContextUse::Of::lingering);
  return queried_sms(context->in_driver());
}

ContextHandle granted_context(Runtime& runtime, int device) {
  CUcontext current = nullptr;
  GCTX_CALL(runtime.driver(), cuCtxGetCurrent, &current);
  if (current != nullptr) {
    const auto is_there = [](const DriverContext& context) { return context.is_there(); };
    const DriverContextHandle known = DriverContext::registry.find(runtime, current, is_there);
    if (!known || known->kind() == ContextKind::foreign) {
      ContextHandle foreign = adopt_context(runtime, current);
      if (foreign->kind() == ContextKind::foreign && foreign->device() == device &&
          !sm_resource(foreign)->whole_device) {
        return foreign;
      }
    }
  }
  ContextHandle primary = primary_context(runtime, device);
  return sm_resource(primary)->whole_device ? nullptr : primary;
}

SmResourcePtr known_sm_resource(ContextBox& context) {
  const std::unique_lock lock(context.sms().mutex, std::try_to_lock);
  return lock.owns_lock() ? context.sms().queried : nullptr;
}

void serve_as(DriverContext& context, const SmResourcePtr& group) {
  KnownSms& sms = context.sms();
  const std::lock_guard lock(sms.mutex);
  if (!sms.given || group->origin == nullptr || sms.given->origin == group->origin) {
    return;
  }
  std::vector<SmResourcePtr> also = sms.given->also;
  if (std::any_of(also.begin(), also.end(), [&](const auto& known) { return known->origin == group->origin; })) {
    return;
  }
  if (also.size() == most_splits) {
    also.erase(also.begin());
  }
  also.push_back(group);
  for (SmResourcePtr* known : {&sms.given, &sms.queried}) {
    if (*known) {
      auto resource = std::make_shared<SmResource>(*known);
      resource->also = also;
      *known = std::move(resource);
    }
  }
}

std::vector<unsigned> seen_sm_ids(const ContextHandle& context) {
  const std::lock_guard lock(context->sms().mutex);
  return context->sms().ids;
}

void note_sm_ids(const ContextHandle& context, const std::vector<unsigned>& ids) {
  const std::lock_guard lock(context->sms().mutex);
  context->sms().ids = ids;
}

// Users report that the driver takes no configuration that a context returned for a new context: it takes that of a
// device, changed in place, as cuda.h describes.
CUdevResource workqueue_config(const ContextHandle& context) {
  CUdevResource answer = context->runtime().device_workqueue(context->device());
  const CUdevResource own = ask_for(context, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  answer.wqConfig.sharingScope = own.wqConfig.sharingScope;
  answer.wqConfig.wqConcurrencyLimit = own.wqConfig.wqConcurrencyLimit;
  return answer;
}

CUdevResource existing_workqueue(const ContextHandle& context) {
  context->runtime().driver().require(Feature::workqueues);
  return ask_for(context, CU_DEV_RESOURCE_TYPE_WORKQUEUE);
}

}  // namespace gctx
