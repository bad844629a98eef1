#include "handles/context.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "handles/capture.hpp"
#include "handles/current.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

// The number of splits that a context remembers, in addition to the one that it was made for.
constexpr std::size_t most_splits = 16;

}  // namespace

// ---- boxes

ContextBox::~ContextBox() {
  if (is_forked() || handle_ == nullptr) {
    return;
  }
  // Before the driver can give the address to a new context.
  runtime_.contexts().drop(*this);
  let_go();
  if (kind_ == ContextKind::primary && runtime_.is_usable()) {
    const Driver& driver = runtime_.driver();
    driver.note(driver.cuDevicePrimaryCtxRelease(runtime_.device(device_)), "cuDevicePrimaryCtxRelease");
  }
}

void ContextBox::let_go() noexcept {
  if (is_forked()) {
    return;
  }
  runtime_.contexts().drop(*this);
  if (is_pinned() && keep_pinned()) {
    return;
  }
  OwnStreams kept = take_own_streams();
  const bool is_kept = (green_ || !kept.empty()) && runtime_.keep_for_later([&] {
    auto later = std::make_shared<ContextBox>(runtime_, device_, ContextKind::foreign);
    later->take(handle_, nullptr, std::move(green_), std::nullopt);
    later->id_ = id_;
    later->own_streams_ = std::move(kept);
    return later;
  });
  if (!is_kept) {
    destroy(kept);
    green_.reset();
  }
}

// True if nothing of it has to be destroyed. Its SMs are free from here on.
bool ContextBox::keep_pinned() noexcept {
  if (kind_ == ContextKind::primary) {
    return false;  // its streams stay with it
  }
  if (green_) {
    green_->enlist_as(0);
  }
  try {
    auto remains = std::make_shared<ContextBox>(runtime_, device_, ContextKind::foreign, std::string(), given_);
    remains->take_over(*this);
    if (!remains->green_ && remains->own_streams_.empty()) {
      return true;
    }
    if (runtime_.pinned().keep(remains)) {
      return true;
    }
    take_over(*remains);  // the driver is being closed
    return false;
  } catch (const std::bad_alloc&) {  // lost rather than destroyed under a framework
    static_cast<void>(green_.release());
    static_cast<void>(take_own_streams());
    return true;
  }
}

void ContextBox::take_over(ContextBox& other) noexcept {
  take(other.handle_, other.green_handle_, std::move(other.green_), other.given_workqueue_);
  id_ = other.id_;
  if (other.may_capture()) {
    expose_stream();
  }
  OwnStreams kept = other.take_own_streams();
  const std::lock_guard lock(streams_mutex_);
  own_streams_ = std::move(kept);
}

bool ContextBox::pin() {
  expose_stream();
  if (is_pinned() || pinned_.exchange(true) || kind_ != ContextKind::green) {
    return false;
  }
  runtime_.pinned().count(device_);
  return true;
}

bool ContextBox::is_made_of(const SmResource& sms, const std::optional<CUdevResource>& workqueue) const noexcept {
  const bool same_queues = given_workqueue_.has_value() == workqueue.has_value() &&
                           (!workqueue || byte_equal(*given_workqueue_, *workqueue));
  return green_ && given_ && same_queues && same_sms(*given_, sms);
}

void ContextBox::ask_id() {
  unsigned long long id = 0;
  const Driver& driver = runtime_.driver();
  GCTX_CALL(driver, cuCtxGetId, handle_, &id);
  id_ = id;
}

// Asked for a handle whose context is gone, too: the driver answers CUDA_ERROR_CONTEXT_IS_DESTROYED, or the id of a
// newer one at the same address (seen on an H100 with driver 13.0, of primary contexts after a reset and of ordinary
// ones).
CUresult ContextBox::ask_whether_there() const noexcept {
  if (kind_ == ContextKind::green) {
    return CUDA_SUCCESS;
  }
  unsigned long long id = 0;
  const CUresult answer = runtime_.driver().cuCtxGetId(handle_, &id);
  const bool is_other = answer == CUDA_ERROR_INVALID_CONTEXT || (answer == CUDA_SUCCESS && id != id_);
  return is_other ? CUDA_ERROR_CONTEXT_IS_DESTROYED : answer;
}

bool ContextBox::is_there() const noexcept { return ask_whether_there() != CUDA_ERROR_CONTEXT_IS_DESTROYED; }

void ContextBox::ask_to_be_there() const {
  const CUresult answer = ask_whether_there();
  if (answer == CUDA_ERROR_CONTEXT_IS_DESTROYED) [[unlikely]] {
    fail(ErrorKind::closed, kind_ == ContextKind::primary
                                ? "device " + std::to_string(device_) +
                                      " has been reset, and what was made on its primary context is gone: make it anew"
                                : label() + " has been destroyed by its owner, and what was made on it is gone");
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
  runtime_.demand_usable();
  forget_replaced_current();
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
      runtime_.note_closed(device_, live_entry_);
      break;
    case ContextState::Closing::was_closed:
      break;
  }
}

void ContextBox::demand_not_current() const {
  runtime_.demand_usable();
  forget_replaced_current();
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

CUdevResource ContextBox::workqueue_resource() {
  const Driver& driver = runtime_.driver();
  driver.require(Feature::workqueues);
  const CallUse use(*this, CallUse::Of::alive);
  CUdevResource answer{};
  GCTX_CALL(driver, cuCtxGetDevResource, handle_, &answer, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  return answer;
}

// ---- the streams of a context

CUstream ContextBox::context_stream(int priority, std::size_t number) {
  const std::lock_guard lock(streams_mutex_);
  std::vector<CUstream>& streams = own_streams_.lent[priority];
  while (streams.size() <= number) {
    streams.reserve(streams.size() + 1);  // so that nothing is lost if memory runs out
    streams.push_back(make_raw_stream(*this, CU_STREAM_NON_BLOCKING, priority));
  }
  return streams[number];
}

CUstream ContextBox::any_own_stream() noexcept {
  const std::lock_guard lock(streams_mutex_);
  for (const auto& [priority, streams] : own_streams_.lent) {
    if (!streams.empty()) {
      return streams.front();
    }
  }
  return nullptr;
}

ContextBox::OwnStreams ContextBox::take_own_streams() noexcept {
  const std::lock_guard lock(streams_mutex_);
  return std::exchange(own_streams_, {});
}

void ContextBox::destroy(const OwnStreams& kept) const noexcept {
  if (kept.empty() || !runtime_.is_usable() || !is_there()) {
    return;
  }
  const Driver& driver = runtime_.driver();
  for (const SpareStream& stream : kept.spare) {
    driver.note(driver.cuStreamDestroy(stream.handle), "cuStreamDestroy");
  }
  for (const auto& [priority, streams] : kept.lent) {
    for (const CUstream stream : streams) {
      driver.note(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
  }
}

void ContextBox::keep_spare(CUstream stream, bool nonblocking) noexcept {
  const std::lock_guard lock(streams_mutex_);
  try {
    own_streams_.spare.push_back({stream, nonblocking});
  } catch (const std::bad_alloc&) {  // lost rather than destroyed under a framework
  }
}

CUstream ContextBox::take_spare(bool nonblocking, int priority) {
  const std::lock_guard lock(streams_mutex_);
  if (own_streams_.spare.empty()) [[likely]] {
    return nullptr;
  }
  demand_there();
  const Driver& driver = runtime_.driver();
  for (auto spare = own_streams_.spare.begin(); spare != own_streams_.spare.end(); ++spare) {
    int found = 0;
    if (spare->nonblocking == nonblocking && !is_capturing(driver, spare->handle) &&
        driver.cuStreamQuery(spare->handle) == CUDA_SUCCESS &&
        driver.cuStreamGetPriority(spare->handle, &found) == CUDA_SUCCESS && found == priority) {
      const CUstream handle = spare->handle;
      own_streams_.spare.erase(spare);
      return handle;
    }
  }
  return nullptr;
}

void ContextBox::destroy_own_streams() noexcept {
  if (!is_forked()) {
    destroy(take_own_streams());
  }
}

void ContextBox::add(StreamBox& stream) noexcept {
  const std::lock_guard lock(streams_mutex_);
  stream.link(first_stream_);
}

void ContextBox::remove(StreamBox& stream) noexcept {
  const std::lock_guard lock(streams_mutex_);
  stream.unlink(first_stream_);
}

bool ContextBox::has_capture() {
  if (!may_capture()) [[likely]] {
    return false;
  }
  bool is_first = true;
  const auto captures = [&](CUstream stream) {
    if (std::exchange(is_first, false)) {
      demand_there();
    }
    return is_capturing(runtime_.driver(), stream);
  };
  // Under the lock, because a stream takes itself off the list before it is destroyed.
  const std::lock_guard lock(streams_mutex_);
  for (const StreamBox* stream = first_stream_; stream != nullptr; stream = stream->next_of_context()) {
    if (stream->may_capture() && captures(stream->handle())) {
      return true;
    }
  }
  return std::any_of(
             own_streams_.lent.begin(), own_streams_.lent.end(),
             [&](const auto& level) { return std::any_of(level.second.begin(), level.second.end(), captures); }) ||
         std::any_of(own_streams_.spare.begin(), own_streams_.spare.end(),
                     [&](const SpareStream& spare) { return captures(spare.handle); });
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
  if (auto known = runtime.contexts().find(handle, is_there)) {
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
    if (auto primary = runtime.primary(ordinal); primary->handle() == handle) {
      return primary;
    }
  }
  auto made = std::make_shared<ContextBox>(runtime, ordinal, ContextKind::foreign);
  made->take(handle, green);
  made->ask_id();
  return runtime.contexts().settle(handle, std::move(made), is_there);
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
  CurrentScope scope(*context);
  GCTX_CALL(context->runtime().driver(), cuCtxSynchronize);
  scope.leave();
}

}  // namespace gctx
