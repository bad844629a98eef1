#include "handles/runtime.hpp"

#include <algorithm>
#include <cstdlib>

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
class DriverOpening {
 public:
  DriverOpening() {
    demand_not_forked();
    begin_use();
    opening().lock();
  }
  ~DriverOpening() {
    opening().unlock();
    if (!is_done_) {
      end_use();
    }
  }
  DriverOpening(const DriverOpening&) = delete;
  DriverOpening& operator=(const DriverOpening&) = delete;

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

void demand_not_forked() {
  if (is_forked()) [[unlikely]] {
    fail_forked();
  }
}

Runtime& Runtime::active() {
  if (Runtime* runtime = active_runtime.load(std::memory_order_acquire)) [[likely]] {
    runtime->demand_usable();
    return *runtime;
  }
  DriverOpening opening;
  if (Runtime* runtime = active_runtime.load(std::memory_order_acquire)) {
    return *runtime;
  }
  const char* choice = std::getenv("CUDA_GCTX_DRIVER");
  return opening.open(choice != nullptr ? choice : "");
}

bool Runtime::is_any_open() noexcept { return active_runtime.load(std::memory_order_acquire) != nullptr; }

Runtime& Runtime::open(std::string_view choice) { return DriverOpening().open(choice); }

void Runtime::close(Runtime& runtime) {
  if (is_forked()) {
    return;
  }
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
  std::vector<std::function<void()>> later;
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
  for (std::function<void()>& end : later) {
    std::exchange(end, nullptr)();
  }
}

void Runtime::keep(std::function<void()> end) {
  {
    const std::lock_guard lock(later_mutex_);
    if (is_set_aside()) {
      later_.push_back(std::move(end));
      return;
    }
  }
  end_now_or_later(end);  // it has been resumed meanwhile
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
    fail_state("the driver that this object belongs to is inactive while another one is in use");
  }
  fail(ErrorKind::closed, "the driver that this object belongs to is closed");
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
  if (state.sm.load(std::memory_order_relaxed) == nullptr) {
    CUdevResource queried{};
    GCTX_CALL(driver_, cuDeviceGetDevResource, state.device, &queried, CU_DEV_RESOURCE_TYPE_SM);
    auto* resource = new SmResource(sm_resource_from_query(*this, ordinal, queried));
    resource->whole_device = true;
    state.sm.store(resource, std::memory_order_release);
  }
  return known_device_sm(ordinal);
}

CUdevResource Runtime::device_workqueue(int ordinal) {
  driver_.require(Feature::workqueues);
  CUdevResource queried{};
  GCTX_CALL(driver_, cuDeviceGetDevResource, device(ordinal), &queried, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  return queried;
}

SmResourcePtr Runtime::known_device_sm(int ordinal) const noexcept {
  const DeviceState& state = devices_[static_cast<std::size_t>(ordinal)];
  return {SmResourcePtr(), state.sm.load(std::memory_order_acquire)};
}

}  // namespace gctx
