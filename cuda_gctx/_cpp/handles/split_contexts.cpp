#include "handles/split_contexts.hpp"

#include <algorithm>
#include <utility>

#include "handles/context.hpp"
#include "handles/given.hpp"
#include "resources/split.hpp"

namespace gctx {
namespace {

// The driver's bytes name the SMs (recorded: the same split gives the same bytes), on one device.
std::string key_of(const SmResource& group) {
  std::string key(reinterpret_cast<const char*>(&group.device), sizeof group.device);
  key.append(reinterpret_cast<const char*>(group.units.data()), group.units.size() * sizeof(CUdevResource));
  return key;
}

}  // namespace

std::shared_ptr<SplitContexts::Slot> SplitContexts::slot_of(const SmResource& group) {
  std::string key = key_of(group);
  std::shared_ptr<Slot> evicted;  // declared before the lock: destroying a context calls the driver
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) { return slot->key == key; });
  if (found != slots_.end()) {
    slots_.splice(slots_.end(), slots_, found);
    return slots_.back();
  }
  slots_.push_back(std::make_shared<Slot>(group.device, std::move(key)));
  if (slots_.size() > limit) {
    evicted = std::move(slots_.front());
    slots_.pop_front();
  }
  return slots_.back();
}

SmResourcePtr SplitContexts::splittable(const SmResourcePtr& group) {
  const std::shared_ptr<Slot> slot = slot_of(*group);
  const std::lock_guard lock(slot->mutex);
  if (!slot->context) {
    auto usable = std::make_shared<SmResource>(group);
    usable->dry_run = false;
    slot->context = claim_context(runtime_, group->device, {usable}, std::nullopt, "", false, false)->create();
    slot->is_made = true;
  }
  // The same SMs, but as a part of the split that this group came from.
  auto resource = std::make_shared<SmResource>(sm_resource(slot->context));
  resource->come_from(group);
  return resource;
}

std::size_t SplitContexts::count(int device) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      slots_.begin(), slots_.end(), [&](const auto& slot) { return slot->device == device && slot->is_made; }));
}

void SplitContexts::drop() {
  Slots dropped;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  dropped.swap(slots_);
}

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run) {
  if (input->driver != &runtime.driver()) {
    fail_value("this SMResource belongs to a driver that is closed");
  }
  return split(runtime.driver(), input, requests, dry_run,
               [&](const SmResourcePtr& group) { return split_contexts(runtime).splittable(group); });
}

}  // namespace gctx
