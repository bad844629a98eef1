#include "handles/runtime.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "handles/claim.hpp"
#include "handles/current.hpp"
#include "handles/probe.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

std::atomic<Runtime*> active_runtime{nullptr};

std::mutex& opening() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The runtimes in the order in which they were opened; never freed, since objects of a closed one still ask it.
std::vector<Runtime*>& opened() {
  static auto* runtimes = new std::vector<Runtime*>;
  return *runtimes;
}

[[noreturn]] void fail_forked() {
  fail(ErrorKind::forked,
       "this process was forked after the CUDA driver was in use, and a forked child cannot use CUDA: start it with "
       "the 'spawn' or 'forkserver' method, or fork before the first use");
}

// The lock under which drivers are opened. In a forked child another thread may have held it.
class Opening {
 public:
  Opening() {
    if (is_forked()) {
      fail_forked();
    }
    begin_use();
    opening().lock();
  }
  ~Opening() {
    opening().unlock();
    if (!is_done_) {
      end_use();
    }
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  Runtime& open(std::string_view choice) {
    opened().reserve(opened().size() + 1);
    auto* runtime = new Runtime(choice);
    opened().push_back(runtime);
    active_runtime.store(runtime, std::memory_order_release);
    watch_exit();
    is_done_ = true;
    return *runtime;
  }

 private:
  bool is_done_ = false;
};

}  // namespace

Runtime& Runtime::active() {
  if (Runtime* runtime = active_runtime.load(std::memory_order_acquire)) [[likely]] {
    runtime->demand_usable();
    return *runtime;
  }
  Opening opening;
  if (Runtime* runtime = active_runtime.load(std::memory_order_acquire)) {
    return *runtime;
  }
  const char* choice = std::getenv("CUDA_GCTX_DRIVER");
  return opening.open(choice != nullptr ? choice : "");
}

bool Runtime::is_any_open() noexcept { return active_runtime.load(std::memory_order_acquire) != nullptr; }

Runtime& Runtime::open(std::string_view choice) { return Opening().open(choice); }

void Runtime::close(Runtime& runtime) {
  if (is_forked()) {
    return;
  }
  forget_current_of(runtime);
  runtime.drop_caches();
  const std::lock_guard lock(opening());
  runtime.standing_.store(Standing::closed);
  std::erase(opened(), &runtime);
  active_runtime.store(opened().empty() ? nullptr : opened().back(), std::memory_order_release);
}

void Runtime::set_aside_active() noexcept {
  if (is_forked()) {
    return;
  }
  const std::lock_guard lock(opening());
  if (!opened().empty()) {
    opened().back()->standing_.store(Standing::set_aside);
  }
}

void Runtime::resume() noexcept {
  std::vector<std::shared_ptr<void>> later;
  if (is_forked()) {
    return;
  }
  {
    const std::lock_guard lock(opening());
    if (opened().empty() || !opened().back()->is_set_aside()) {
      return;
    }
    Runtime& runtime = *opened().back();
    const std::lock_guard later_lock(runtime.later_mutex_);
    runtime.standing_.store(Standing::open);
    later.swap(runtime.later_);
  }
  // In the order in which they were dropped.
  for (std::shared_ptr<void>& remains : later) {
    remains.reset();
  }
}

void Runtime::keep(std::shared_ptr<void> remains) {
  const std::lock_guard lock(later_mutex_);
  if (is_set_aside()) {
    later_.push_back(std::move(remains));
  }
}

Runtime::Runtime(std::string_view choice) : driver_(choice) {
  int count = 0;
  GCTX_CALL(driver_, cuDeviceGetCount, &count);
  devices_ = std::vector<DeviceState>(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    GCTX_CALL(driver_, cuDeviceGet, &devices_[static_cast<std::size_t>(i)].device, i);
  }
}

void Runtime::fail_unusable() const {
  if (is_forked()) {
    fail_forked();
  }
  if (is_set_aside()) {
    fail_state("the driver that this object belongs to is set aside while another one is in use");
  }
  fail(ErrorKind::closed, "the driver that this object belongs to has been closed");
}

void Runtime::drop_caches() {
  split_contexts_.drop();
  pinned_.drop();
  for (DeviceState& state : devices_) {
    std::shared_ptr<Probe> probe;
    ContextHandle primary;
    {
      const std::lock_guard lock(state.mutex);
      probe.swap(state.probe);
      primary.swap(state.primary);
    }
    probe.reset();  // it needs the primary context
    if (primary) {
      primary->destroy_own_streams();  // others may hold it
    }
  }
}

SmResourcePtr sm_resource_from_query(const Runtime& runtime, int ordinal, const CUdevResource& queried) {
  auto resource = std::make_shared<SmResource>();
  resource->driver = &runtime.driver();
  resource->device = ordinal;
  resource->units.push_back(queried);
  resource->sm_count = queried.sm.smCount;
  resource->min_partition_size = queried.sm.minSmPartitionSize;
  resource->alignment = queried.sm.smCoscheduledAlignment;
  resource->flags = runtime.driver().has(Feature::structured_split) ? queried.sm.flags : 0;
  resource->splittable = true;
  return resource;
}

SmResourcePtr Runtime::device_sm(int ordinal) {
  driver_.require(Feature::green_contexts);
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.mutex);
  if (!state.sm) {
    CUdevResource queried{};
    GCTX_CALL(driver_, cuDeviceGetDevResource, state.device, &queried, CU_DEV_RESOURCE_TYPE_SM);
    auto resource = std::make_shared<SmResource>(*sm_resource_from_query(*this, ordinal, queried));
    resource->whole_device = true;
    state.sm = std::move(resource);
  }
  return state.sm;
}

CUdevResource Runtime::device_workqueue(int ordinal) {
  driver_.require(Feature::workqueues);
  CUdevResource queried{};
  GCTX_CALL(driver_, cuDeviceGetDevResource, device(ordinal), &queried, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  return queried;
}

SmResourcePtr Runtime::known_device_sm(int ordinal) {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::unique_lock lock(state.mutex, std::try_to_lock);
  return lock.owns_lock() ? state.sm : nullptr;
}

ContextHandle Runtime::primary(int ordinal) {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  // What belongs to a context that is gone; destroyed after the lock is given back.
  ContextHandle gone;
  std::shared_ptr<Probe> gone_probe;
  const std::lock_guard lock(state.mutex);
  if (state.primary && !state.primary->is_there()) {  // the device has been reset
    gone = std::move(state.primary);
    gone_probe = std::move(state.probe);
    contexts_.drop(*gone);
  }
  if (!state.primary) {
    auto box = std::make_shared<ContextBox>(*this, ordinal, ContextKind::primary);
    CUcontext handle = nullptr;
    GCTX_CALL(driver_, cuDevicePrimaryCtxRetain, &handle, state.device);
    box->take(handle);  // from here on the box releases it
    box->ask_id();
    contexts_.put(handle, *box);
    state.primary = std::move(box);
  }
  return state.primary;
}

PriorityRange Runtime::priorities(int ordinal) {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  {
    const std::lock_guard lock(state.mutex);
    if (state.priorities) {
      return *state.priorities;
    }
  }
  CurrentScope scope(*primary(ordinal));
  PriorityRange range;
  GCTX_CALL(driver_, cuCtxGetStreamPriorityRange, &range.least, &range.greatest);
  scope.leave();
  const std::lock_guard lock(state.mutex);
  state.priorities = range;
  return range;
}

std::shared_ptr<Probe> Runtime::probe(int ordinal) {
  const ContextHandle context = primary(ordinal);
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.mutex);
  if (!state.probe) {
    state.probe = std::make_shared<Probe>(context);
  }
  return state.probe;
}

ContextCounts Runtime::context_counts(int ordinal) const {
  const DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  return {state.made.load(), state.destroyed.load()};
}

namespace {

// At most this many are named in one message.
constexpr std::size_t most_named = 3;

std::string joined(const std::vector<std::string>& labels) {
  std::string text;
  const std::size_t named = std::min(labels.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i == 0 ? "" : i + 1 == labels.size() ? " and " : ", ") + labels[i];
  }
  return text + (labels.size() > named ? " and " + std::to_string(labels.size() - named) + " more" : "");
}

std::string label_of(const std::string& name, const SmResource& sms, bool closed) {
  return (name.empty() ? "an unnamed context" : "'" + name + "'") + " (" + std::to_string(sms.sm_count) + " SMs" +
         (closed ? ", closed, kept alive by a stream or event" : "") + ")";
}

}  // namespace

std::vector<std::uint64_t> Runtime::enlist(int ordinal, const std::vector<SmResourcePtr>& sms,
                                           const std::vector<std::string>& names, bool exclusive, bool only_free,
                                           std::uint64_t group, const std::string& advice, std::string& report) {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.live_mutex);
  bool certain = false;
  std::vector<char> shares(sms.size());
  std::vector<std::string> others;
  const LiveContext* owner = nullptr;
  for (const LiveContext& live : state.live) {
    if (group != 0 && live.group == group) {
      continue;
    }
    bool is_other = false;
    for (std::size_t i = 0; i < sms.size(); ++i) {
      const auto shared = overlaps(*sms[i], *live.sms);
      if (shared.value_or(true)) {
        certain = certain || shared.has_value();
        shares[i] = 1;
        is_other = true;
      }
    }
    if (is_other) {
      others.push_back(label_of(live.name, *live.sms, live.closed));
      owner = live.exclusive ? &live : owner;
    }
  }
  if (!others.empty()) {
    std::vector<std::string> mine;
    for (std::size_t i = 0; i < sms.size(); ++i) {
      if (shares[i] != 0) {
        mine.push_back(label_of(names[i], *sms[i], false));
      }
    }
    report = joined(mine) +
             (!certain           ? " may share"
              : mine.size() == 1 ? " shares"
                                 : " share") +
             " SMs with " + joined(others) +
             (owner != nullptr ? "; " + context_label(owner->name) + " has its SMs exclusively" : "") + ": " + advice;
    if (exclusive || only_free) {
      fail(ErrorKind::overlap, report);
    }
  }
  std::vector<std::uint64_t> entries;
  std::vector<LiveContext> entered;
  for (std::size_t i = 0; i < sms.size(); ++i) {
    entries.push_back(next_entry_.fetch_add(1));
    entered.push_back({entries[i], group, exclusive, false, sms[i], names[i]});
  }
  state.live.reserve(state.live.size() + entered.size());  // all of them are entered, or none
  std::move(entered.begin(), entered.end(), std::back_inserter(state.live));
  return entries;
}

std::vector<int> Runtime::are_free(int ordinal, const std::vector<SmResourcePtr>& sms) {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  std::vector<int> answers;
  const std::lock_guard lock(state.live_mutex);
  for (const SmResourcePtr& one : sms) {
    answers.push_back(std::none_of(state.live.begin(), state.live.end(),
                                   [&](const LiveContext& live) { return overlaps(*one, *live.sms).value_or(true); }));
  }
  return answers;
}

void Runtime::note_closed(int ordinal, std::uint64_t entry) noexcept {
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.live_mutex);
  for (LiveContext& live : state.live) {
    live.closed = live.closed || live.entry == entry;
  }
}

void Runtime::delist(int ordinal, std::uint64_t entry) noexcept {
  if (is_forked()) {
    return;
  }
  DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.live_mutex);
  std::erase_if(state.live, [&](const LiveContext& live) { return live.entry == entry; });
}

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run) {
  if (input->driver != &runtime.driver()) {
    fail_value("this SMResource belongs to a driver that has been closed");
  }
  return split(runtime.driver(), input, requests, dry_run,
               [&](const SmResourcePtr& group) { return runtime.split_contexts().splittable(group); });
}

}  // namespace gctx
