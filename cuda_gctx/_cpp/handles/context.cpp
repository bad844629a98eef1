#include "handles/context.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "handles/scope.hpp"

namespace gctx {
// ---- boxes

ContextBox::~ContextBox() {
  if (is_forked() || handle_ == nullptr) {
    return;
  }
  // Before the driver can give the address to a new context.
  registry.drop(*this);
  let_go();
  if (kind_ == ContextKind::primary && runtime_.is_usable()) {
    const Driver& driver = runtime_.driver();
    driver.note(driver.cuDevicePrimaryCtxRelease(runtime_.device(device_)), "cuDevicePrimaryCtxRelease");
  }
}

void ContextBox::take(CUcontext handle, CUgreenCtx green_handle) {
  unsigned long long id = 0;
  handle_ = owned().handle = handle;
  green_handle_ = green_handle;
  GCTX_CALL(runtime_.driver(), cuCtxGetId, handle, &id);
  id_ = owned().id = id;
}

void ContextBox::take_pinned(OwnedContexts pinned) noexcept {
  owned_.swap(pinned);
  handle_ = owned().handle;
  green_handle_ = owned().green->handle();
  id_ = owned().id;
  pinned_.store(true);
}

void ContextBox::let_go() noexcept {
  if (!is_forked() && !owned_.empty()) {
    registry.drop(*this);
    retired_contexts(runtime_).retire(std::exchange(owned_, {}), is_pinned() && kind_ != ContextKind::primary);
  }
}

bool ContextBox::pin() {
  const CallUse use(*this, std::nothrow);
  if (!use.is_alive()) {
    fail_closed();
  }
  return keep(RetiredContexts::limit());
}

bool ContextBox::keep(std::uint64_t limit) {
  streams().expose();
  if (is_pinned()) {
    return false;
  }
  const std::lock_guard lock(name_mutex_);
  const bool is_first = !is_pinned() && kind_ == ContextKind::green;
  if (is_first) {
    retired_contexts(runtime_).demand_and_count(device_, limit);
  }
  pinned_.store(true);
  return is_first;
}

void ContextBox::ask_to_be_there() const {
  const CUresult answer = owned_.front().ask_whether_there();
  if (answer == CUDA_ERROR_CONTEXT_IS_DESTROYED) [[unlikely]] {
    fail(ErrorKind::closed,
         kind_ == ContextKind::primary
             ? "device " + std::to_string(device_) +
                   " has been reset, and everything created on its primary context is gone: create it again"
             : label() + " has been destroyed by its owner, and everything created on it is gone");
  }
  runtime_.driver().check(answer, "cuCtxGetId");
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
  demand_not_current();
  const ContextState::Closing closing = state_.close();
  if (closing == ContextState::Closing::refused) {  // it has become current meanwhile
    fail_current(false);
  }
  if (closing == ContextState::Closing::done_and_gone) {
    let_go();
  } else if (closing == ContextState::Closing::done && claim_) {
    claim_->note_closed();
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

CallUse::CallUse(ContextBox& context, Of state) : context_(&context) {
  context.demand_there();
  if (!(state == Of::open ? context.state().enter() : context.state().enter_alive())) {
    context.fail_closed();
  }
}

CallUse::CallUse(ContextBox& context, std::nothrow_t) noexcept
    : context_(context.state().enter_alive() ? &context : nullptr) {}

CallUse::~CallUse() {
  if (context_ != nullptr && context_->state().leave()) {
    context_->let_go();
  }
}

// ---- primary contexts

namespace {

struct Primary {
  std::mutex mutex;
  ContextHandle context;
  std::optional<PriorityRange> priorities;
};

struct Primaries {
  static constexpr Runtime::Place place = Runtime::Place::primaries;
  explicit Primaries(const Runtime& runtime) : of_device(static_cast<std::size_t>(runtime.device_count())) {}
  std::vector<Primary> of_device;
};

Primary& primary_of(Runtime& runtime, int ordinal) {
  return runtime.part<Primaries>().of_device[static_cast<std::size_t>(ordinal)];
}

}  // namespace

ContextHandle primary_context(Runtime& runtime, int ordinal) {
  Primary& state = primary_of(runtime, ordinal);
  ContextHandle gone;  // destroyed after the lock is given back
  const std::lock_guard lock(state.mutex);
  if (state.context && !state.context->is_there()) {  // the device has been reset
    gone = std::move(state.context);
    ContextBox::registry.drop(*gone);
  }
  if (!state.context) {
    auto box = std::make_shared<ContextBox>(runtime, ordinal, ContextKind::primary);
    CUcontext handle = nullptr;
    GCTX_CALL(runtime.driver(), cuDevicePrimaryCtxRetain, &handle, runtime.device(ordinal));
    box->take(handle);  // from here on the box releases it
    ContextBox::registry.put(*box);
    state.context = std::move(box);
  }
  return state.context;
}

PriorityRange priorities(Runtime& runtime, int ordinal) {
  Primary& state = primary_of(runtime, ordinal);
  {
    const std::lock_guard lock(state.mutex);
    if (state.priorities) {
      return *state.priorities;
    }
  }
  CurrentScope scope(*primary_context(runtime, ordinal));
  PriorityRange range;
  GCTX_CALL(runtime.driver(), cuCtxGetStreamPriorityRange, &range.least, &range.greatest);
  scope.leave();
  const std::lock_guard lock(state.mutex);
  state.priorities = range;
  return range;
}

void drop_primaries(Runtime& runtime) {
  for (Primary& state : runtime.part<Primaries>().of_device) {
    ContextHandle primary;
    {
      const std::lock_guard lock(state.mutex);
      primary.swap(state.context);
    }
    if (primary) {
      primary->owned().destroy_streams();  // others may hold it
    }
  }
}

// ---- contexts of others

ContextHandle adopt_context(Runtime& runtime, CUcontext handle) {
  const Driver& driver = runtime.driver();
  const auto is_there = [](const ContextBox& box) { return box.is_there(); };
  if (auto known = ContextBox::registry.find(runtime, handle, is_there)) {
    return known;
  }
  CUdevice device = 0;
  CUgreenCtx green = nullptr;
  try {
    CurrentScope scope(driver, handle);
    GCTX_CALL(driver, cuCtxGetDevice, &device);
    if (driver.cuStreamGetGreenCtx != nullptr) {
      GCTX_CALL(driver, cuStreamGetGreenCtx, CU_STREAM_LEGACY, &green);
    }
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
  auto made = std::make_shared<ContextBox>(runtime, ordinal, ContextKind::foreign);
  made->take(handle, green);
  return ContextBox::registry.find(runtime, handle, is_there, std::move(made));
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

}  // namespace gctx
