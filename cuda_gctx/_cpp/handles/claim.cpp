#include "handles/claim.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "handles/capture.hpp"
#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "resources/descriptor.hpp"

namespace gctx {

NewContext::NewContext(Runtime& runtime, int device, std::vector<SmResourcePtr> sms,
                       std::optional<CUdevResource> workqueue, std::string name, bool exclusive, bool overlap_matters)
    : runtime_(runtime), device_(device), sms_(std::move(sms)), workqueue_(workqueue), name_(std::move(name)) {
  runtime.driver().require(Feature::green_contexts);
  for (const auto& sm : sms_) {
    if (sm->driver != &runtime.driver()) {
      fail_value("an SMResource belongs to a driver that has been closed");
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
        fail_value("two of the SMResources name the same SMs: the driver would count them twice and use them once");
      }
      if (!(*a)->origin || (*a)->origin != (*b)->origin) {
        fail_value("the SMResources of a context must be groups of one split");
      }
    }
  }
  given_ = sms_.empty() ? runtime.device_sm(device) : merged(sms_);
  if (overlap_matters) {
    const std::string advice = "close the other one first, or take all groups from one split";
    live_entry_ = runtime.enlist(device, {given_}, {name_}, exclusive, false, 0, advice, overlap_report_).front();
  }
}

NewContext::~NewContext() {
  if (live_entry_ != 0) {
    runtime_.delist(device_, live_entry_);
  }
}

ContextHandle NewContext::create() {
  if (const ContextHandle kept = runtime_.pinned().take(device_, *given_, workqueue_)) {
    auto again = std::make_shared<ContextBox>(runtime_, device_, ContextKind::green, name_, given_);
    again->take_over_pinned(*kept);
    again->note_entry(live_entry_);
    again->enlist_as(std::exchange(live_entry_, 0));
    runtime_.contexts().put(again->handle(), *again);
    return again;
  }
  demand_no_capture_on(runtime_, device_);
  const Driver& driver = runtime_.driver();
  const ContextHandle primary = runtime_.primary(device_);
  std::vector<CUdevResource> parts;
  for (const auto& sm : sms_) {
    parts.insert(parts.end(), sm->units.begin(), sm->units.end());
  }
  if (workqueue_) {
    parts.push_back(*workqueue_);
  }
  CUdevResourceDesc description{};
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &description, parts.data(), static_cast<unsigned>(parts.size()));
  auto box = std::make_shared<ContextBox>(runtime_, device_, ContextKind::green, name_, given_);
  auto green = std::make_unique<GreenCtxBox>(primary);
  CUgreenCtx raw = nullptr;
  GCTX_CALL(driver, cuGreenCtxCreate, &raw, description, runtime_.device(device_), CU_GREEN_CTX_DEFAULT_STREAM);
  box->note_entry(live_entry_);
  green->take(raw, std::exchange(live_entry_, 0));
  runtime_.count_made(device_);
  CUcontext handle = nullptr;
  GCTX_CALL(driver, cuCtxFromGreenCtx, &handle, raw);
  box->take(handle, raw, std::move(green), workqueue_);
  box->ask_id();
  runtime_.contexts().put(handle, *box);
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
  entries_ = runtime.enlist(device, sms, names, exclusive, only_free, group, advice, overlap_report_);
}

Claim::~Claim() { release(); }

void Claim::release() noexcept {
  if (is_released_.exchange(true)) {
    return;
  }
  for (const std::uint64_t entry : entries_) {
    runtime_.delist(device_, entry);
  }
}

}  // namespace gctx
