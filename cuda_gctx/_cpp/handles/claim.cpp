#include "handles/claim.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "handles/context.hpp"
#include "handles/live.hpp"
#include "handles/pinned.hpp"
#include "resources/descriptor.hpp"

namespace gctx {

NewContext::NewContext(Runtime& runtime, int device, std::vector<SmResourcePtr> sms,
                       std::optional<CUdevResource> workqueue, std::string name, bool exclusive, bool overlap_matters)
    : runtime_(runtime), device_(device), sms_(std::move(sms)), workqueue_(workqueue), name_(std::move(name)) {
  runtime.driver().require(Feature::green_contexts);
  for (const auto& sm : sms_) {
    if (sm->driver != &runtime.driver()) {
      fail_value("an SMResource belongs to a driver that is closed");
    }
    if (sm->device != device) {
      fail_value("an SMResource of device " + std::to_string(sm->device) + " cannot be part of a context on device " +
                 std::to_string(device));
    }
    demand_sms(*sm);
  }
  for (auto a = sms_.begin(); a != sms_.end(); ++a) {
    for (auto b = std::next(a); b != sms_.end(); ++b) {
      if (overlaps(**a, **b).value_or(false)) {
        fail_value("two of the SMResources contain the same SMs: the driver would count them twice and use them once");
      }
      if (!(*a)->origin || (*a)->origin != (*b)->origin) {
        fail_value("the SMResources of a context must be groups of one split");
      }
    }
  }
  given_ = sms_.empty() ? runtime.device_sm(device) : merged(sms_);
  if (overlap_matters) {
    const std::string advice = "close the other one first, or take all groups from one split";
    live_entry_ =
        live_contexts(runtime).enlist(device, {given_}, {name_}, exclusive, false, 0, advice, overlap_report_).front();
  }
}

NewContext::~NewContext() {
  if (live_entry_ != 0) {
    live_contexts(runtime_).delist(device_, live_entry_);
  }
}

void NewContext::share_queues(const ContextHandle& source) { queues_of_ = std::make_shared<ContextUse>(source); }

ContextHandle NewContext::create() {
  const auto enter = [&](const std::shared_ptr<ContextBox>& box, GreenCtxBox& green) {
    box->note_entry(live_entry_);
    green.enlist_as(std::exchange(live_entry_, 0));
    registry_of<ContextBox>(runtime_).put(*box);
  };
  if (const OwnedContextPtr kept = pinned_contexts(runtime_).take(device_, *given_, workqueue_)) {
    kept->given = given_;
    auto again = std::make_shared<ContextBox>(ContextKind::green, kept, name_);
    again->take_pinned();
    enter(again, *kept->green);
    return again;
  }
  demand_no_capture_on(runtime_, device_);
  const Driver& driver = runtime_.driver();
  std::vector<CUdevResource> parts;
  for (const auto& sm : sms_) {
    parts.insert(parts.end(), sm->units.begin(), sm->units.end());
  }
  if (workqueue_) {
    parts.push_back(*workqueue_);
  }
  CUdevResourceDesc description{};
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &description, parts.data(), static_cast<unsigned>(parts.size()));
  const OwnedContextPtr owned = OwnedContext::make(runtime_, device_);
  owned->green = std::make_shared<GreenCtxBox>(runtime_, device_, primary_context(runtime_, device_));
  owned->given = given_;
  owned->workqueue = workqueue_;
  owned->queues_of = queues_of_;
  auto box = std::make_shared<ContextBox>(ContextKind::green, owned, name_);
  CUgreenCtx raw = nullptr;
  GCTX_CALL(driver, cuGreenCtxCreate, &raw, description, runtime_.device(device_), CU_GREEN_CTX_DEFAULT_STREAM);
  owned->green->take(raw);
  live_contexts(runtime_).count_made(device_);
  CUcontext handle = nullptr;
  GCTX_CALL(driver, cuCtxFromGreenCtx, &handle, raw);
  owned->green->take_context(handle);
  box->take(handle, raw);
  enter(box, *owned->green);
  return box;
}

std::unique_ptr<NewContext> claim_context(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms,
                                          const std::optional<CUdevResource>& workqueue, const std::string& name,
                                          bool exclusive, bool overlap_matters) {
  return std::make_unique<NewContext>(runtime, device, sms, workqueue, name, exclusive, overlap_matters);
}

Claim::Claim(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms, const std::vector<std::string>& names,
             bool exclusive, bool only_free, std::uint64_t group, const std::string& advice)
    : runtime_(runtime), device_(device) {
  entries_ = live_contexts(runtime).enlist(device, sms, names, exclusive, only_free, group, advice, overlap_report_);
}

Claim::~Claim() { release(); }

void Claim::release() noexcept {
  if (is_released_.exchange(true)) {
    return;
  }
  for (const std::uint64_t entry : entries_) {
    live_contexts(runtime_).delist(device_, entry);
  }
}

}  // namespace gctx
