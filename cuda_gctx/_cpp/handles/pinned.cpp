#include "handles/pinned.hpp"

#include <algorithm>

#include "driver/error.hpp"
#include "handles/context.hpp"
#include "handles/runtime.hpp"

namespace gctx {
namespace {

// Whether others can use it now. One that cannot be asked stays where it is.
bool is_free_of_captures(ContextBox& context) {
  try {
    return !context.has_capture();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void PinnedContexts::count(int device) {
  const std::lock_guard lock(mutex_);
  ++seen_[device];
}

bool PinnedContexts::keep(const ContextHandle& remains) {
  const std::lock_guard lock(mutex_);
  if (!is_dropped_) {
    waiting_.push_back(remains);
  }
  return !is_dropped_;
}

ContextHandle PinnedContexts::take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue) {
  std::vector<ContextHandle> fitting;
  {
    const std::lock_guard lock(mutex_);
    std::copy_if(waiting_.rbegin(), waiting_.rend(), std::back_inserter(fitting), [&](const ContextHandle& context) {
      return context->device() == device && context->is_made_of(sms, workqueue);
    });
  }
  // The driver is not asked under the lock: another thread may be quicker.
  for (const ContextHandle& context : fitting) {
    if (is_free_of_captures(*context)) {
      const std::lock_guard lock(mutex_);
      if (std::erase(waiting_, context) != 0) {
        return context;
      }
    }
  }
  return nullptr;
}

PinnedCounts PinnedContexts::counts(int device) const {
  const std::lock_guard lock(mutex_);
  const auto seen = seen_.find(device);
  const auto waiting = std::count_if(waiting_.begin(), waiting_.end(), [&](const ContextHandle& context) {
    return context->device() == device && context->is_green();
  });
  return {seen != seen_.end() ? seen->second : 0, static_cast<std::uint64_t>(waiting)};
}

std::uint64_t PinnedContexts::total() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [device, seen] : seen_) {
    sum += seen;
  }
  return sum;
}

void PinnedContexts::drop() {
  std::vector<ContextHandle> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_dropped_ = true;
    dropped.swap(waiting_);
  }
  while (!dropped.empty()) {
    dropped.pop_back();
  }
}

}  // namespace gctx
