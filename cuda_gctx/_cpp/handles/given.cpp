#include "handles/given.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "handles/captures.hpp"
#include "handles/context.hpp"
#include "resources/descriptor.hpp"

namespace gctx {
namespace {

// The number of splits that a context remembers, in addition to the one that it was made for.
constexpr std::size_t most_splits = 16;

CUdevResource ask_for(ContextBox& context, CUdevResourceType type) {
  const CallUse use(context, CallUse::Of::alive);
  CUdevResource answer{};
  GCTX_CALL(context.runtime().driver(), cuCtxGetDevResource, context.handle(), &answer, type);
  return answer;
}

}  // namespace

std::unique_ptr<NewContext> claim_context(Runtime& runtime, int device, std::vector<SmResourcePtr> sms,
                                          std::optional<CUdevResource> workqueue, std::string name, bool exclusive,
                                          bool overlap_matters) {
  runtime.driver().require(Feature::green_contexts);
  for (const auto& sm : sms) {
    if (sm->driver != &runtime.driver()) {
      fail_value("an SMResource belongs to a driver that is closed");
    }
    if (sm->device != device) {
      fail_value("an SMResource of device " + std::to_string(sm->device) + " cannot be part of a context on device " +
                 std::to_string(device));
    }
    demand_sms(*sm);
  }
  for (auto a = sms.begin(); a != sms.end(); ++a) {
    for (auto b = std::next(a); b != sms.end(); ++b) {
      if (overlaps(**a, **b).value_or(false)) {
        fail_value("two of the SMResources contain the same SMs: the driver would count them twice and use them once");
      }
      if ((*a)->origin == nullptr || (*a)->origin != (*b)->origin) {
        fail_value("the SMResources of a context must be groups of one split");
      }
    }
  }
  std::unique_ptr<NewContext> fresh(new NewContext{runtime, device, std::move(sms), workqueue, std::move(name)});
  fresh->given = fresh->sms.empty() ? runtime.device_sm(device) : merged(fresh->sms);
  if (overlap_matters) {
    fresh->claim =
        std::make_shared<Claim>(runtime, device, std::vector{fresh->given}, std::vector{fresh->name}, exclusive, false,
                                0, "close the other one first, or take all groups from one split");
  }
  return fresh;
}

void NewContext::share_queues(const ContextHandle& source) { queues_of = std::make_shared<ContextUse>(source); }

ContextHandle NewContext::create() {
  auto box = std::make_shared<ContextBox>(runtime, device, ContextKind::green, name);
  RetiredContexts& retired = retired_contexts(runtime);
  if (OwnedContexts pinned = retired.take(device, *given, workqueue); !pinned.empty()) {
    box->take_pinned(std::move(pinned));
  } else {
    retired.collect();
    make(*box);
  }
  box->sms().given = box->owned().given = given;
  box->note_claim(claim);
  box->owned().green->claim(std::move(claim));
  ContextBox::registry.put(*box);
  return box;
}

void NewContext::make(ContextBox& box) {
  demand_no_capture_on(runtime, device);
  const Driver& driver = runtime.driver();
  std::vector<CUdevResource> parts;
  for (const auto& sm : sms) {
    parts.insert(parts.end(), sm->units.begin(), sm->units.end());
  }
  if (workqueue) {
    parts.push_back(*workqueue);
  }
  CUdevResourceDesc description{};
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &description, parts.data(), static_cast<unsigned>(parts.size()));
  OwnedContext& owned = box.owned();
  owned.green = std::make_shared<GreenCtxBox>(runtime, device, primary_context(runtime, device));
  owned.workqueue = workqueue;
  owned.queues_of = queues_of;
  CUgreenCtx raw = nullptr;
  GCTX_CALL(driver, cuGreenCtxCreate, &raw, description, runtime.device(device), CU_GREEN_CTX_DEFAULT_STREAM);
  owned.green->take(raw);
  live_contexts(runtime).count_made(device);
  CUcontext handle = nullptr;
  GCTX_CALL(driver, cuCtxFromGreenCtx, &handle, raw);
  owned.green->take_context(handle);
  box.take(handle, raw);
}

// ---- what a context answers

SmResourcePtr sm_resource(const ContextHandle& context) {
  Runtime& runtime = context->runtime();
  runtime.driver().require(Feature::green_contexts);
  if (context->kind() == ContextKind::primary) {
    return runtime.device_sm(context->device());
  }
  KnownSms& known = context->sms();
  const std::lock_guard lock(known.mutex);
  if (!known.queried) {
    const CUdevResource answer = ask_for(*context, CU_DEV_RESOURCE_TYPE_SM);
    auto resource = std::make_shared<SmResource>(sm_resource_from_query(runtime, context->device(), answer));
    if (known.given) {
      resource->coscheduled = known.given->promised();
      resource->come_from(known.given);
      resource->also = known.given->also;
    }
    resource->whole_device = resource->sm_count == runtime.device_sm(context->device())->sm_count;
    known.queried = std::move(resource);
  }
  return known.queried;
}

SmResourcePtr known_sm_resource(ContextBox& context) {
  if (context.kind() == ContextKind::primary) {
    return context.runtime().known_device_sm(context.device());
  }
  const std::unique_lock lock(context.sms().mutex, std::try_to_lock);
  return lock.owns_lock() ? context.sms().queried : nullptr;
}

void serve_as(const ContextHandle& context, const SmResourcePtr& group) {
  KnownSms& sms = context->sms();
  const std::lock_guard lock(sms.mutex);
  if (!sms.given || group->origin == nullptr || sms.given->origin == group->origin || !same_sms(*sms.given, *group)) {
    return;
  }
  std::vector<SmResourcePtr> also = sms.given->also;
  if (std::any_of(also.begin(), also.end(), [&](const auto& one) { return one->origin == group->origin; })) {
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

// Users report that the driver takes no configuration that a context returned for a new context: it takes that of a
// device, changed in place, as cuda.h describes.
CUdevResource workqueue_config(const ContextHandle& context) {
  CUdevResource answer = context->runtime().device_workqueue(context->device());
  const CUdevResource own = ask_for(*context, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  answer.wqConfig.sharingScope = own.wqConfig.sharingScope;
  answer.wqConfig.wqConcurrencyLimit = own.wqConfig.wqConcurrencyLimit;
  return answer;
}

CUdevResource existing_workqueue(const ContextHandle& context) {
  context->runtime().driver().require(Feature::workqueues);
  return ask_for(*context, CU_DEV_RESOURCE_TYPE_WORKQUEUE);
}

}  // namespace gctx
