#include "handles/context.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "handles/capture.hpp"
#include "handles/pinned.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

// A use of a context that may have gone.
class AliveUse {
 public:
  explicit AliveUse(ContextBox& context) noexcept : context_(context), is_alive_(context.state().enter_alive()) {}
  ~AliveUse() {
    if (is_alive_ && context_.state().leave()) {
      context_.let_go();
    }
  }
  AliveUse(const AliveUse&) = delete;
  AliveUse& operator=(const AliveUse&) = delete;

  bool is_alive() const noexcept { return is_alive_; }

 private:
  ContextBox& context_;
  const bool is_alive_;
};

// The number of splits that a context remembers, in addition to the one that it was made for.
constexpr std::size_t most_splits = 16;

}  // namespace

// ---- boxes

ContextBox::~ContextBox() {
  if (is_forked() || handle_ == nullptr) {
    return;
  }
  // Before the driver can give the address to a new context.
  registry_of<ContextBox>(runtime_).drop(*this);
  let_go();
  if (kind_ == ContextKind::primary && runtime_.is_usable()) {
    const Driver& driver = runtime_.driver();
    driver.note(driver.cuDevicePrimaryCtxRelease(runtime_.device(device_)), "cuDevicePrimaryCtxRelease");
  }
}

void ContextBox::take(CUcontext handle, CUgreenCtx green_handle) {
  handle_ = owned_->handle = handle;
  green_handle_ = green_handle;
  owned_->ask_id();
  id_ = owned_->id;
}

void ContextBox::take_pinned() noexcept {
  handle_ = owned_->handle;
  green_handle_ = owned_->green->handle();
  id_ = owned_->id;
  pinned_.store(true);
}

void ContextBox::let_go() noexcept {
  if (is_forked() || !owned_) {
    return;
  }
  registry_of<ContextBox>(runtime_).drop(*this);
  OwnedContextPtr owned = std::move(owned_);
  if (kind_ == ContextKind::primary) {
    owned->destroy_streams();
  } else if (is_pinned() && owned->has_anything()) {
    if (owned->green) {
      owned->green->enlist_as(0);  // its SMs are free from here on
    }
    if (pinned_contexts(runtime_).keep(owned)) {
      return;
    }
  }
  if (owned->has_anything()) {
    runtime_.keep_for_later([&] { return owned; });
  }
}

bool ContextBox::pin() {
  const AliveUse use(*this);
  if (!use.is_alive()) {
    fail_closed();
  }
  streams().expose();
  if (is_pinned()) {
    return false;
  }
  if (kind_ != ContextKind::green) {
    pinned_.store(true);
    return false;
  }
  const std::lock_guard lock(name_mutex_);
  if (is_pinned()) {
    return false;
  }
  pinned_contexts(runtime_).demand_and_count(device_);
  pinned_.store(true);
  return true;
}

void ContextBox::ask_to_be_there() const {
  const CUresult answer = owned_->ask_whether_there();
  if (answer == CUDA_ERROR_CONTEXT_IS_DESTROYED) [[unlikely]] {
    fail(ErrorKind::closed,
         kind_ == ContextKind::primary
             ? "device " + std::to_string(device_) +
                   " has been reset, and everything created on its primary context is gone: create it again"
             : label() + " has been destroyed by its owner, and everything created on it is gone");
  }
  runtime_.driver().check(answer, "cuCtxGetId");
}

void ContextBox::keep() noexcept {
  const std::lock_guard lock(name_mutex_);
  streams().expose();
  if (!pinned_.exchange(true) && kind_ == ContextKind::green) {
    pinned_contexts(runtime_).count(device_);
  }
}

std::string ContextBox::name() const {
  const std::lock_guard lock(name_mutex_);
  return name_;
}

void ContextBox::rename(std::string name) {
  const std::lock_guard lock(name_mutex_);
  name_.swap(name);
}

void ContextBox::fail_closed() const { fail(ErrorKind::closed, label() + " has been closed"); }

bool ContextBox::is_current() const {
  CUcontext current = nullptr;
  GCTX_CALL(runtime_.driver(), cuCtxGetCurrent, &current);
  return current == handle_;
}

void ContextBox::close() {
  if (is_closed()) {
    return;
  }
  runtime_.demand_usable();
  if (is_current()) {
    fail_current(true);
  }
  switch (state_.close()) {
    case ContextState::Closing::refused:
      fail_current(false);
    case ContextState::Closing::done_and_gone:
      let_go();
      break;
    case ContextState::Closing::done:
      live_contexts(runtime_).note_closed(device_, live_entry_);
      break;
    case ContextState::Closing::was_closed:
      break;
  }
}

void ContextBox::demand_not_current() const {
  runtime_.demand_usable();
  const bool current_here = is_current();
  if (current_here || state_.is_current_anywhere()) {
    fail_current(current_here);
  }
}

void ContextBox::fail_current(bool is_here) const {
  const long thread = last_thread_.load(std::memory_order_relaxed);
  std::string what = label() + " cannot be closed while it is current on ";
  if (is_here) {
    what += "this thread: leave its 'with' block, or make another context current by Device.set_current()";
  } else if (thread == ::syscall(SYS_gettid)) {
    what = label() +
           " has an open 'with' block on this thread, or was made current by it, and another context is current above "
           "it now: leave the block, or call Device.set_current() for another context";
  } else {
    what += "another thread (native id " + std::to_string(thread) +
            "): leave its 'with' block, or call Device.set_current() for another context there";
  }
  fail(ErrorKind::current, std::move(what));
}

SmResourcePtr ContextBox::sm_resource() {
  const Driver& driver = runtime_.driver();
  driver.require(Feature::green_contexts);
  if (kind_ == ContextKind::primary) {
    return runtime_.device_sm(device_);
  }
  const std::lock_guard lock(query_mutex_);
  if (!queried_) {
    const CallUse use(*this, CallUse::Of::alive);
    CUdevResource answer{};
    GCTX_CALL(driver, cuCtxGetDevResource, handle_, &answer, CU_DEV_RESOURCE_TYPE_SM);
    auto resource = std::make_shared<SmResource>(*sm_resource_from_query(runtime_, device_, answer));
    if (given_) {
      resource->coscheduled = given_->promised();
      resource->origin = given_->origin;
      resource->members = given_->members;
      resource->also = given_->also;
    }
    resource->whole_device = resource->sm_count == runtime_.device_sm(device_)->sm_count;
    queried_ = std::move(resource);
  }
  return queried_;
}

SmResourcePtr ContextBox::known_sm_resource() {
  if (kind_ == ContextKind::primary) {
    return runtime_.known_device_sm(device_);
  }
  const std::unique_lock lock(query_mutex_, std::try_to_lock);
  return lock.owns_lock() ? queried_ : nullptr;
}

void ContextBox::serve_as(const SmResource& group) {
  const std::lock_guard lock(query_mutex_);
  if (!given_ || !group.origin || given_->origin == group.origin || !same_sms(*given_, group)) {
    return;
  }
  std::vector<Provenance> also = given_->also;
  if (std::any_of(also.begin(), also.end(), [&](const Provenance& one) { return one.origin == group.origin; })) {
    return;
  }
  if (also.size() == most_splits) {
    also.erase(also.begin());
  }
  also.push_back({group.origin, group.members});
  for (SmResourcePtr* known : {&given_, &queried_}) {
    if (*known) {
      auto resource = std::make_shared<SmResource>(**known);
      resource->also = also;
      *known = std::move(resource);
    }
  }
}

CUdevResource ContextBox::ask_for(CUdevResourceType type) {
  const Driver& driver = runtime_.driver();
  driver.require(Feature::workqueues);
  const CallUse use(*this, CallUse::Of::alive);
  CUdevResource answer{};
  GCTX_CALL(driver, cuCtxGetDevResource, handle_, &answer, type);
  return answer;
}

// Users report that the driver takes no configuration that a context returned for a new context: it takes that of a
// device, changed in place, as cuda.h describes.
CUdevResource ContextBox::workqueue_config() {
  const CUdevResource own = ask_for(CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  CUdevResource answer = runtime_.device_workqueue(device_);
  answer.wqConfig.sharingScope = own.wqConfig.sharingScope;
  answer.wqConfig.wqConcurrencyLimit = own.wqConfig.wqConcurrencyLimit;
  return answer;
}

CUdevResource ContextBox::existing_workqueue() { return ask_for(CU_DEV_RESOURCE_TYPE_WORKQUEUE); }

bool ContextBox::has_capture() {
  const AliveUse use(*this);
  if (!use.is_alive() || !streams().may_capture()) [[likely]] {
    return false;
  }
  demand_there();
  return streams().has_capture(runtime_.driver());
}

void ContextBox::fail_capturing(const char* what) const {
  fail(ErrorKind::capturing, "a stream of " + label() + " is capturing a graph, and " + what +
                                 " the whole context would invalidate the capture: end it first, or name a stream");
}

// ---- uses

ContextUse::ContextUse(ContextHandle context) : context_(std::move(context)) {
  context_->runtime().demand_usable();
  if (!context_->state().enter()) {
    const ContextHandle closed = std::move(context_);
    closed->fail_closed();
  }
}

ContextUse::ContextUse(const ContextUse& other) noexcept : context_(other.context_) { context_->state().enter_again(); }

ContextUse::~ContextUse() {
  if (context_ && context_->state().leave()) {
    context_->let_go();
  }
}

CallUse::CallUse(ContextBox& context, Of state) : context_(context) {
  context.demand_there();
  if (!(state == Of::open ? context.state().enter() : context.state().enter_alive())) {
    context.fail_closed();
  }
}

CallUse::~CallUse() {
  if (context_.state().leave()) {
    context_.let_go();
  }
}

// ---- the contexts of a driver

ContextHandle Contexts::primary(int ordinal) {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  ContextHandle gone;  // destroyed after the lock is given back
  const std::lock_guard lock(state.mutex);
  if (state.primary && !state.primary->is_there()) {  // the device has been reset
    gone = std::move(state.primary);
    registry_of<ContextBox>(runtime_).drop(*gone);
  }
  if (!state.primary) {
    auto box = std::make_shared<ContextBox>(ContextKind::primary, OwnedContext::make(runtime_, ordinal));
    CUcontext handle = nullptr;
    GCTX_CALL(runtime_.driver(), cuDevicePrimaryCtxRetain, &handle, runtime_.device(ordinal));
    box->take(handle);  // from here on the box releases it
    registry_of<ContextBox>(runtime_).put(*box);
    state.primary = std::move(box);
  }
  return state.primary;
}

PriorityRange Contexts::priorities(int ordinal) {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  {
    const std::lock_guard lock(state.mutex);
    if (state.priorities) {
      return *state.priorities;
    }
  }
  CurrentScope scope(*primary(ordinal));
  PriorityRange range;
  GCTX_CALL(runtime_.driver(), cuCtxGetStreamPriorityRange, &range.least, &range.greatest);
  scope.leave();
  const std::lock_guard lock(state.mutex);
  state.priorities = range;
  return range;
}

void Contexts::drop_primaries() {
  for (Device& state : devices_) {
    ContextHandle primary;
    {
      const std::lock_guard lock(state.mutex);
      primary.swap(state.primary);
    }
    if (primary) {
      primary->destroy_streams();  // others may hold it
    }
  }
}

ContextHandle primary_context(Runtime& runtime, int ordinal) { return contexts_of(runtime).primary(ordinal); }

PriorityRange priorities(Runtime& runtime, int ordinal) { return contexts_of(runtime).priorities(ordinal); }

// ---- contexts of others

namespace {

CUgreenCtx green_context_of_current(const Driver& driver) {
  CUgreenCtx green = nullptr;
  if (driver.cuStreamGetGreenCtx != nullptr) {
    GCTX_CALL(driver, cuStreamGetGreenCtx, CU_STREAM_LEGACY, &green);
  }
  return green;
}

}  // namespace

ContextHandle adopt_context(Runtime& runtime, CUcontext handle) {
  const Driver& driver = runtime.driver();
  const auto is_there = [](const ContextBox& box) { return box.is_there(); };
  if (auto known = registry_of<ContextBox>(runtime).find(handle, is_there)) {
    return known;
  }
  CUdevice device = 0;
  CUgreenCtx green = nullptr;
  try {
    CurrentScope scope(driver, handle);
    GCTX_CALL(driver, cuCtxGetDevice, &device);
    green = green_context_of_current(driver);
    scope.leave();
  } catch (Error& error) {
    name_dead_handle(error, "CUcontext", handle);
    throw;
  }
  int ordinal = 0;
  while (ordinal < runtime.device_count() && runtime.device(ordinal) != device) {
    ++ordinal;
  }
  if (ordinal == runtime.device_count()) {
    fail_value("the context belongs to a device that the driver does not list");
  }
  if (green == nullptr) {
    if (auto primary = primary_context(runtime, ordinal); primary->handle() == handle) {
      return primary;
    }
  }
  auto made = std::make_shared<ContextBox>(ContextKind::foreign, OwnedContext::make(runtime, ordinal));
  made->take(handle, green);
  return registry_of<ContextBox>(runtime).settle(std::move(made), is_there);
}

ContextHandle current_context(Runtime& runtime) {
  CUcontext current = nullptr;
  GCTX_CALL(runtime.driver(), cuCtxGetCurrent, &current);
  return current != nullptr ? adopt_context(runtime, current) : nullptr;
}

int current_device(Runtime& runtime) {
  const ContextHandle current = current_context(runtime);
  return current ? current->device() : 0;
}

bool any_has_capture(const std::vector<ContextHandle>& contexts) {
  return std::any_of(contexts.begin(), contexts.end(), [](const ContextHandle& context) {
    context->demand_live();
    return context->has_capture();
  });
}

void synchronize_context(const ContextHandle& context) {
  const CallUse use(*context);
  context->demand_no_capture("waiting for");
  Runtime& runtime = context->runtime();
  const auto wait = [&](const ContextBox& box) {
    CurrentScope scope(box);
    GCTX_CALL(runtime.driver(), cuCtxSynchronize);
    scope.leave();
  };
  wait(*context);
  if (context->kind() != ContextKind::primary) {
    return;
  }
  // That includes green contexts, but for graphs that other code has launched there (see show_to_device).
  for (const ContextHandle& other : registry_of<ContextBox>(runtime).all()) {
    if (other->is_green() && other->device() == context->device() && other->is_there() && !other->has_capture()) {
      wait(*other);
    }
  }
  ending_contexts(runtime).wait(context->device(), context->handle());
}

std::string capturing_stream(Runtime& runtime, int device) {
  for (const ContextHandle& context : registry_of<ContextBox>(runtime).all()) {
    if (context->device() == device && context->is_there() && context->has_capture()) {
      return "a stream of " + context->label();
    }
  }
  CurrentScope scope(*primary_context(runtime, device));
  const bool is_legacy_capturing = is_capturing(runtime.driver(), CU_STREAM_LEGACY);
  scope.leave();
  return is_legacy_capturing ? "a blocking stream of the primary context" : "";
}

void demand_no_capture_on(Runtime& runtime, int device) {
  if (const std::string capturing = capturing_stream(runtime, device); !capturing.empty()) {
    fail(ErrorKind::capturing,
         capturing + " is capturing a graph: contexts cannot be created during a capture; create them first");
  }
}

}  // namespace gctx
