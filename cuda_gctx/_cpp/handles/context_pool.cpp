#include "handles/context_pool.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "handles/capture.hpp"

namespace gctx {
namespace {

bool has_resources(const SmResource& given, const std::optional<CUdevResource>& workqueue,
                   const ContextRequest& request) {
  const bool has_queues = workqueue.has_value() == request.workqueue.has_value() &&
                          (!workqueue || byte_equal(*workqueue, *request.workqueue));
  return has_queues && same_sms(given, *request.sms);
}

}  // namespace

// ---- contexts of leases

DriverContextHandle ContextPool::reserve(int device, const ContextRequest& request, const Lease& lease,
                                         const LeaseGroup* group, std::vector<const DriverContext*>& unfit) {
  const std::lock_guard lock(mutex_);
  for (auto at = contexts_.rbegin(); at != contexts_.rend(); ++at) {
    DriverContext& context = **at;
    const bool is_shared = !context.leases_.empty() && group != nullptr && context.group_ == group;
    if (context.device() == device && !context.is_ending_ && context.purpose == DriverContext::Purpose::leases &&
        (is_shared || context.leases_.empty()) && has_resources(*context.sms_.given, context.workqueue, request) &&
        std::find(unfit.begin(), unfit.end(), &context) == unfit.end()) {
      context.leases_.push_back(&lease);
      context.group_ = group;
      return *at;
    }
  }
  return nullptr;
}

DriverContextHandle ContextPool::find(int device, const ContextRequest& request, const Lease& lease,
                                      const LeaseGroup* group) {
  std::vector<const DriverContext*> unfit;  // with work in flight, or a capture
  while (DriverContextHandle found = reserve(device, request, lease, group, unfit)) {
    bool is_shared = false;
    {
      const std::lock_guard lock(mutex_);
      is_shared = found->leases_.size() > 1;
    }
    if (is_shared || found->is_idle()) {
      return found;
    }
    give_back(*found, lease);
    unfit.push_back(found.get());
  }
  return nullptr;
}

DriverContextHandle ContextPool::make(int device, const ContextRequest& request, const Lease& lease,
                                      const LeaseGroup* group) {
  DriverContextHandle made;
  try {
    made = make(device, request, DriverContext::Purpose::leases);
  } catch (const Error& error) {
    if (error.code != CUDA_ERROR_OUT_OF_MEMORY || release(device, false).destroyed == 0) {
      throw;
    }
    made = make(device, request, DriverContext::Purpose::leases);
  }
  const std::lock_guard lock(mutex_);
  made->leases_.push_back(&lease);
  made->group_ = group;
  contexts_.push_back(made);
  return made;
}

DriverContextHandle ContextPool::make(int device, const ContextRequest& request, DriverContext::Purpose purpose) {
  warn_of_idle(device);
  auto made = std::make_shared<DriverContext>(runtime_, device, ContextKind::green);
  made->purpose = purpose;
  made->primary = request.primary;
  made->workqueue = request.workqueue;
  if (request.queues_of) {
    request.queues_of->add_child();
    made->queues_of = request.queues_of;
  }
  made->sms_.given = request.sms;
  fill(*made, request);
  DriverContext::registry.put(*made);
  return made;
}

void ContextPool::fill(DriverContext& context, const ContextRequest& request) {
  const Driver& driver = runtime_.driver();
  std::vector<CUdevResource> parts;
  for (const auto& sm : request.groups) {
    parts.insert(parts.end(), sm->units.begin(), sm->units.end());
  }
  if (request.workqueue) {
    parts.push_back(*request.workqueue);
  }
  CUdevResourceDesc description{};
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &description, parts.data(), static_cast<unsigned>(parts.size()));
  CUgreenCtx raw = nullptr;
  GCTX_CALL_WITHOUT_CAPTURE(driver, cuGreenCtxCreate, &raw, description, runtime_.device(context.device()),
                            CU_GREEN_CTX_DEFAULT_STREAM);
  context.own_green(raw);
  CUcontext handle = nullptr;
  GCTX_CALL(driver, cuCtxFromGreenCtx, &handle, raw);
  context.take(handle, raw);
}

void ContextPool::give_back(DriverContext& context, const Lease& lease) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(context.leases_, &lease);
  if (context.leases_.empty()) {
    context.group_ = nullptr;
    context.streams_.free_spares();
  }
}

void ContextPool::give_back(const Lease& lease) noexcept {
  for (const DriverContextHandle& context : lease.contexts()) {
    give_back(*context, lease);
  }
}

void ContextPool::warn_of_idle(int device) noexcept {
  const std::lock_guard lock(mutex_);
  char& has_warned = has_warned_[static_cast<std::size_t>(device)];
  const auto idle = std::count_if(contexts_.begin(), contexts_.end(), [&](const auto& context) {
    return context->device() == device && context->leases_.empty();
  });
  if (has_warned == 0 && static_cast<std::size_t>(idle) >= most_idle) {
    has_warned = 1;
    note_failure(
        "more than 512 green contexts of a device are idle, and each keeps about 5.5 MiB: use the same layouts again, "
        "or call system.release_contexts()");
  }
}

// ---- contexts of splits

DriverContextHandle ContextPool::find_splitting(const SmResource& group) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(contexts_.begin(), contexts_.end(), [&](const auto& context) {
    return context->purpose == DriverContext::Purpose::splits && context->device() == group.device &&
           same_sms(*context->sms_.given, group);
  });
  return at != contexts_.end() ? *at : nullptr;
}

DriverContextHandle ContextPool::make_splitting(const ContextRequest& request) {
  DriverContextHandle made = make(request.sms->device, request, DriverContext::Purpose::splits);
  const std::lock_guard lock(mutex_);
  contexts_.push_back(made);
  return made;
}

// ---- raw handles

void ContextPool::note_lease(DriverContext& context, const Lease& lease) {
  const std::lock_guard lock(mutex_);
  context.leases_.push_back(&lease);
}

bool ContextPool::is_leased(const DriverContext& context) noexcept {
  const std::lock_guard lock(mutex_);
  return !context.leases_.empty();
}

DriverContextHandle ContextPool::find(CUgreenCtx green) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(contexts_.begin(), contexts_.end(),
                               [&](const auto& context) { return context->green_handle() == green; });
  return at != contexts_.end() ? *at : nullptr;
}

// ---- all contexts

std::vector<SmResourcePtr> ContextPool::idle_sms(int device) {
  std::vector<SmResourcePtr> found;
  const std::lock_guard lock(mutex_);
  for (auto at = contexts_.rbegin(); at != contexts_.rend(); ++at) {
    if ((*at)->device() == device && (*at)->leases_.empty() && (*at)->purpose == DriverContext::Purpose::leases) {
      found.push_back((*at)->sms_.given);
    }
  }
  return found;
}

std::vector<DriverContextHandle> ContextPool::at_work(int device) {
  std::vector<DriverContextHandle> found;
  const std::lock_guard lock(mutex_);
  for (const DriverContextHandle& context : contexts_) {
    if (context->device() == device && (!context->leases_.empty() || context->is_exposed())) {
      found.push_back(context);
    }
  }
  return found;
}

ContextCounts ContextPool::counts(int device) {
  ContextCounts counts;
  const std::lock_guard lock(mutex_);
  for (const DriverContextHandle& context : contexts_) {
    if (context->device() != device) {
      continue;
    }
    const bool is_open = std::any_of(context->leases_.begin(), context->leases_.end(),
                                     [](const Lease* lease) { return lease->is_open(); });
    ++counts.contexts;
    ++(context->leases_.empty() ? counts.idle : is_open ? counts.open : counts.lingering);
    counts.exposed += context->is_exposed() ? 1 : 0;
  }
  return counts;
}

ReleasedContexts ContextPool::release(std::optional<int> device, bool exposed) {
  ReleasedContexts released;
  std::vector<DriverContextHandle> idle;
  std::vector<DriverContextHandle> destroyed;
  {
    const std::lock_guard lock(mutex_);
    idle.reserve(contexts_.size());
    destroyed.reserve(contexts_.size());
    for (const DriverContextHandle& context : contexts_) {
      if (context->leases_.empty() && !context->is_ending_ && (!device || context->device() == *device)) {
        idle.push_back(context);
        context->is_ending_ = true;
      }
    }
  }
  const std::lock_guard splitting(splitting_);
  for (const DriverContextHandle& context : idle) {
    const bool has_children = context->has_children();
    const bool is_left = has_children || (context->is_exposed() && !exposed) || !context->is_idle();
    if (is_left) {
      ++(has_children ? released.in_use : context->is_exposed() && !exposed ? released.exposed : released.at_work);
    } else {
      destroyed.push_back(context);
    }
    const std::lock_guard lock(mutex_);
    context->is_ending_ = false;
    if (!is_left) {
      std::erase(contexts_, context);
      DriverContext::registry.drop(*context);
    }
  }
  for (const DriverContextHandle& context : destroyed) {
    context->destroy();
  }
  released.destroyed = destroyed.size();
  return released;
}

ReleasedContexts release_contexts(Runtime& runtime, bool exposed) {
  return context_pool(runtime).release(std::nullopt, exposed);
}

// Open leases keep their contexts, whose driver is closed then: nothing can call it.
void ContextPool::close() noexcept {
  std::vector<DriverContextHandle> contexts;
  {
    const std::lock_guard lock(mutex_);
    contexts.swap(contexts_);
    std::erase_if(contexts, [](const auto& context) { return !context->leases_.empty(); });
  }
  for (const DriverContextHandle& context : contexts) {
    context->wait();
    context->destroy();
  }
}

}  // namespace gctx
