#include "handles/pinned.hpp"

#include <string>
#include <utility>
#include <vector>

namespace gctx {

std::atomic<std::uint64_t> PinnedContexts::limit_{default_limit};

namespace {

// Whether others can use it now. One that cannot be asked stays where it is.
bool is_free_of_captures(OwnedContext& context) {
  try {
    return !context.streams.has_capture(context.runtime.driver());
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void PinnedContexts::demand_and_count(int device) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& seen = seen_[static_cast<std::size_t>(device)];
  if (seen >= limit()) {
    fail_state("frameworks have seen " + std::to_string(seen) + " green contexts of device " + std::to_string(device) +
               ", which is the limit, and none of them is ever destroyed (about " + std::to_string(4 * seen) +
               " MiB with driver 13.0): use fewer layouts, raise store.pinned_limit, or, where frameworks have "
               "finished with those that are closed, call store.drop(pinned=True)");
  }
  ++seen;
}

void PinnedContexts::count(int device) noexcept {
  const std::lock_guard lock(mutex_);
  ++seen_[static_cast<std::size_t>(device)];
}

bool PinnedContexts::keep(const OwnedContextPtr& remains) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_closed_) {
    remains->next_pinned_ = std::exchange(first_, remains);
  }
  return !is_closed_;
}

OwnedContextPtr PinnedContexts::take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue) {
  std::vector<OwnedContextPtr> fitting;
  {
    const std::lock_guard lock(mutex_);
    for (OwnedContextPtr context = first_; context; context = context->next_pinned_) {
      if (context->device == device && context->is_made_of(sms, workqueue)) {
        fitting.push_back(context);
      }
    }
  }
  // The driver is not asked under the lock: another thread may be quicker.
  for (const OwnedContextPtr& context : fitting) {
    if (is_free_of_captures(*context)) {
      const std::lock_guard lock(mutex_);
      for (OwnedContextPtr* at = &first_; *at; at = &(*at)->next_pinned_) {
        if (*at == context) {
          *at = std::exchange(context->next_pinned_, nullptr);
          return context;
        }
      }
    }
  }
  return nullptr;
}

PinnedCounts PinnedContexts::counts(int device) const {
  const std::lock_guard lock(mutex_);
  PinnedCounts counts{seen_[static_cast<std::size_t>(device)], 0};
  for (const OwnedContext* context = first_.get(); context != nullptr; context = context->next_pinned_.get()) {
    counts.waiting += context->device == device && context->green ? 1 : 0;
  }
  return counts;
}

void PinnedContexts::drop() {
  OwnedContextPtr dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(first_);
    for (const OwnedContext* context = dropped.get(); context != nullptr; context = context->next_pinned_.get()) {
      seen_[static_cast<std::size_t>(context->device)] -= context->green ? 1 : 0;
    }
  }
  while (dropped) {
    dropped = std::exchange(dropped->next_pinned_, nullptr);
  }
}

void PinnedContexts::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  drop();
}

}  // namespace gctx
