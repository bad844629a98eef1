#include "handles/context.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "handles/context_pool.hpp"
#include "handles/scope.hpp"

namespace gctx {
// ---- boxes

std::string ContextBox::label() const { return is_partition_ ? "partition " + name_ : label_of_context(name_); }

void ContextBox::ask_to_be_there() const {
  const CUresult answer = context_->ask_whether_there();
  if (answer == CUDA_ERROR_CONTEXT_IS_DESTROYED) [[unlikely]] {
    fail(ErrorKind::closed,
         kind() == ContextKind::primary
             ? "device " + std::to_string(device()) +
                   " has been reset, and everything created on its primary context is gone: create it again"
             : label() + " has been destroyed by its owner, and everything created on it is gone");
  }
  runtime().driver().check(answer, "cuCtxGetId");
}

void ContextBox::fail_closed() const { fail(ErrorKind::closed, label() + " has been closed"); }

bool ContextBox::is_current() const {
  CUcontext current = nullptr;
  GCTX_CALL(runtime().driver(), cuCtxGetCurrent, &current);
  return current == handle();
}

void ContextBox::fail_current(bool is_here) const {
  const long thread = last_thread_.load(std::memory_order_relaxed);
  std::string what = label() + " cannot be closed while it is current on ";
  if (is_here) {
    what += "this thread: leave its 'with' block, or make another context current by Device.set_current()";
  } else if (thread == ::syscall(SYS_gettid)) {
    what = label() +
           " has an open 'with' block on this thread, or was made current here by Device.set_current(): leave the "
           "block, or call set_current() for another context";
  } else {
    what += "another thread (native id " + std::to_string(thread) +
            "): leave its 'with' block, or call Device.set_current() for another context there";
  }
  fail(ErrorKind::current, std::move(what));
}

void note_box(const ContextHandle& box) {
  DriverContext::Boxes& boxes = box->in_driver().boxes();
  const std::lock_guard lock(boxes.mutex);
  std::erase_if(boxes.all, [](const auto& known) { return known.expired(); });
  boxes.all.push_back(box);
}

ContextHandle open_box(DriverContext& context) {
  DriverContext::Boxes& boxes = context.boxes();
  const std::lock_guard lock(boxes.mutex);
  for (auto at = boxes.all.rbegin(); at != boxes.all.rend(); ++at) {
    if (ContextHandle box = at->lock(); box && !box->is_closed()) {
      return box;
    }
  }
  return nullptr;
}

bool context_is_idle(const ContextHandle& context) {
  const CallUse use(*context);
  return context->in_driver().is_idle();
}

// ---- uses

ContextUse::ContextUse(ContextHandle context, Of of) : context_(std::move(context)) {
  context_->demand_usable();
  if (!(of == Of::open ? context_->lease().enter() : context_->lease().enter_lingering())) {
    const ContextHandle closed = std::move(context_);
    closed->fail_closed();
  }
}

ContextUse::ContextUse(const ContextUse& other) noexcept : context_(other.context_) { context_->lease().enter_again(); }

CallUse::CallUse(const ContextBox& context, ContextUse::Of of) : context_(context) {
  context.demand_there();
  if (!(of == ContextUse::Of::open ? context.lease().enter() : context.lease().enter_lingering())) {
    context.fail_closed();
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
    DriverContext::registry.drop(gone->in_driver());
  }
  if (!state.context) {
    auto context = std::make_shared<DriverContext>(runtime, ordinal, ContextKind::primary);
    auto box = std::make_shared<ContextBox>(std::make_shared<Lease>(runtime), context);
    CUcontext handle = nullptr;
    GCTX_CALL(runtime.driver(), cuDevicePrimaryCtxRetain, &handle, runtime.device(ordinal));
    context->take(handle);  // from here on it is released with its last handle
    note_box(box);
    DriverContext::registry.put(*context);
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
    if (primary && runtime.is_usable() && primary->is_there()) {
      primary->streams().destroy_own(runtime.driver());  // others may hold the box
    }
  }
}

// ---- contexts of other code, and raw handles

namespace {

int ordinal_of(const Runtime& runtime, CUdevice device) {
  int ordinal = 0;
  while (ordinal < runtime.device_count() && runtime.device(ordinal) != device) {
    ++ordinal;
  }
  if (ordinal == runtime.device_count()) {
    fail_value("the context belongs to a device that the driver does not list");
  }
  return ordinal;
}

// Opens a lease of a context of this package that other code still uses. It never warns: the SMs are in use already.
ContextHandle reopened(Runtime& runtime, const DriverContextHandle& context) {
  ContextPool& pool = context_pool(runtime);
  auto lease = std::make_shared<Lease>(runtime);
  const std::string name = "a context that was adopted by its handle";
  std::vector<DriverContextHandle> contexts{context};
  auto claim = std::make_shared<Claim>(runtime, context->device(), std::vector{context->sms().given}, std::vector{name},
                                       Claim::Terms{});
  auto box = std::make_shared<ContextBox>(lease, context, name);
  lease->take(pool, std::move(claim), std::move(contexts), nullptr);
  pool.note_lease(*context, *lease);
  note_box(box);
  return box;
}

}  // namespace

ContextHandle adopt_context(Runtime& runtime, CUcontext handle) {
  const Driver& driver = runtime.driver();
  const auto box_of = [&](const DriverContextHandle& context) -> ContextHandle {
    if (ContextHandle box = open_box(*context)) {
      return box;
    }
    if (context->kind() == ContextKind::green) {
      return reopened(runtime, context);
    }
    auto box = std::make_shared<ContextBox>(std::make_shared<Lease>(runtime), context);
    note_box(box);
    return box;
  };
  const auto is_there = [](const DriverContext& context) { return context.is_there(); };
  if (const auto known = DriverContext::registry.find(runtime, handle, is_there)) {
    return box_of(known);
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
  const int ordinal = ordinal_of(runtime, device);
  if (green == nullptr) {
    if (auto primary = primary_context(runtime, ordinal); primary->handle() == handle) {
      return primary;
    }
  }
  auto made = std::make_shared<DriverContext>(runtime, ordinal, ContextKind::foreign);
  made->take(handle, green);
  return box_of(DriverContext::registry.find(runtime, handle, is_there, std::move(made)));
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
