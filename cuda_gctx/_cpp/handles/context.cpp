// Contexts: their boxes, how green ones are made, and how foreign ones are recognised.
#include <algorithm>
#include <utility>

#include "handles/runtime.hpp"

namespace gctx {
namespace {

std::uint64_t context_id(const Driver& driver, CUcontext handle) {
  unsigned long long id = 0;
  if (driver.cuCtxGetId != nullptr) {
    GCTX_CALL(driver, cuCtxGetId, handle, &id);
  }
  return id;
}

// Whether a box still stands for what is at its address. One that owns its object does; a view of a foreign one is
// asked.
bool is_same_context(const Driver& driver, const ContextBox& box, CUcontext handle) {
  return box.kind() != ContextKind::foreign || box.id() == context_id(driver, handle);
}

}  // namespace

// ---- boxes

GreenCtxBox::~GreenCtxBox() {
  Runtime& runtime = primary_->runtime();
  if (live_entry_ != 0) {
    runtime.delist(primary_->device(), live_entry_);
  }
  if (handle_ == nullptr || !runtime.is_usable()) {
    return;
  }
  const CUresult result = runtime.driver().cuGreenCtxDestroy(handle_);
  runtime.count_destroyed(primary_->device());
  if (result != CUDA_SUCCESS) {
    note_failure(runtime.driver().describe(result, "cuGreenCtxDestroy").c_str());
  }
}

ContextBox::ContextBox(Runtime& runtime, int device, CUcontext handle, ContextKind kind, GreenCtxHandle green,
                       CUgreenCtx raw_green, std::uint64_t id) noexcept
    : runtime_(runtime),
      device_(device),
      handle_(handle),
      kind_(kind),
      green_(std::move(green)),
      green_handle_(raw_green),
      id_(id) {}

ContextBox::~ContextBox() {
  // Before the driver can give the address to a new context.
  runtime_.contexts().drop_expired(handle_);
  destroy_kept_streams();
  if (kind_ == ContextKind::primary && runtime_.is_usable()) {
    const CUresult result = runtime_.driver().cuDevicePrimaryCtxRelease(runtime_.device(device_));
    if (result != CUDA_SUCCESS) {
      note_failure(runtime_.driver().describe(result, "cuDevicePrimaryCtxRelease").c_str());
    }
  }
}

void ContextBox::demand_open() const {
  if (is_closed()) {
    fail_state(label() + " has been closed");
  }
  runtime_.demand_usable();
}

void ContextBox::demand_alive() const {
  if (is_closed() && uses_.load() == 0) {
    demand_open();
  }
  runtime_.demand_usable();
}

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
  const bool current_here = is_current();
  // Said first and taken back: a thread that makes it current at this moment sees one or the other.
  closed_.store(true);
  if (current_here || current_uses_.load() > 0) {
    closed_.store(false);
    fail_current(current_here);
  }
  release_if_unused();
}

void ContextBox::demand_not_current() const {
  runtime_.demand_usable();
  forget_replaced_current();
  const bool current_here = is_current();
  if (current_here || current_uses_.load() > 0) {
    fail_current(current_here);
  }
}

void ContextBox::fail_current(bool here) const {
  fail_state(label() + " is current on " + (here ? "this" : "another") +
             " thread: leave its 'with' block or make another context current first");
}

void ContextBox::release_if_unused() noexcept {
  GreenCtxHandle green;
  {
    const std::lock_guard lock(green_mutex_);
    if (is_closed() && uses_.load() == 0) {
      green.swap(green_);
    }
  }
  if (green) {
    runtime_.contexts().drop(handle_, this);
    destroy_kept_streams();
  }
}

SmResourcePtr ContextBox::sm_resource() {
  const Driver& driver = runtime_.driver();
  driver.require(Feature::green_contexts);
  if (kind_ == ContextKind::primary) {
    return runtime_.device_sm(device_);
  }
  const std::lock_guard lock(query_mutex_);
  if (!queried_) {
    demand_alive();
    CUdevResource answer{};
    GCTX_CALL(driver, cuCtxGetDevResource, handle_, &answer, CU_DEV_RESOURCE_TYPE_SM);
    auto resource = std::make_shared<SmResource>(*sm_resource_from_query(runtime_, device_, answer));
    if (given_) {
      resource->origin = given_->origin;
      resource->members = given_->members;
    }
    resource->whole_device = resource->sm_count == runtime_.device_sm(device_)->sm_count;
    queried_ = std::move(resource);
  }
  return queried_;
}

CUdevResource ContextBox::workqueue_resource() const {
  const Driver& driver = runtime_.driver();
  driver.require(Feature::workqueues);
  demand_alive();
  CUdevResource answer{};
  GCTX_CALL(driver, cuCtxGetDevResource, handle_, &answer, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG);
  return answer;
}

ContextUse::ContextUse(ContextHandle context) : context_(std::move(context)) {
  context_->uses_.fetch_add(1);
  try {
    context_->demand_open();
  } catch (...) {
    release();
    throw;
  }
}

ContextUse::ContextUse(const ContextUse& other) noexcept : context_(other.context_) { context_->uses_.fetch_add(1); }

ContextUse::~ContextUse() { release(); }

void ContextUse::release() noexcept {
  if (!context_) {
    return;
  }
  const ContextHandle context = std::move(context_);
  if (context->uses_.fetch_sub(1) == 1 && context->is_closed()) {
    context->release_if_unused();
  }
}

// ---- making green contexts

Reservation::Reservation(Runtime& runtime, int device, std::vector<SmResourcePtr> sms,
                         std::optional<CUdevResource> workqueue, std::string name, bool exclusive, bool overlap_matters)
    : runtime_(runtime), device_(device), sms_(std::move(sms)), workqueue_(workqueue), name_(std::move(name)) {
  runtime.driver().require(Feature::green_contexts);
  for (const auto& sm : sms_) {
    if (sm->driver != &runtime.driver()) {
      fail_value("an SMResource belongs to a driver that has been closed");
    }
    if (sm->device != device) {
      fail_value("an SMResource of device " + std::to_string(sm->device) + " cannot be part of a context on device " +
                 std::to_string(device));
    }
    if (sm->dry_run) {
      fail_value("an SMResource is the result of a dry run: repeat the split without dry_run to use it");
    }
    if (sm->sm_count == 0) {
      fail_value("an SMResource has no SMs: the split that made it left nothing over");
    }
  }
  for (auto a = sms_.begin(); a != sms_.end(); ++a) {
    for (auto b = std::next(a); b != sms_.end(); ++b) {
      if (overlaps(**a, **b).value_or(false)) {
        fail_value("two of the SMResources name the same SMs: the driver would count them twice and use them once");
      }
      if (!(*a)->origin || (*a)->origin != (*b)->origin) {
        fail_value("the SMResources of a context must be groups of one split");
      }
    }
  }
  given_ = sms_.empty() ? runtime.device_sm(device) : merged(sms_);
  if (overlap_matters) {
    live_entry_ = runtime.enlist(device, given_, name_, exclusive, 0, overlap_report_);
  }
}

Reservation::~Reservation() {
  if (live_entry_ != 0) {
    runtime_.delist(device_, live_entry_);
  }
}

ContextHandle Reservation::create_context() {
  const Driver& driver = runtime_.driver();
  const ContextHandle primary = runtime_.primary(device_);
  std::vector<CUdevResource> parts;
  for (const auto& sm : sms_) {
    parts.insert(parts.end(), sm->units.begin(), sm->units.end());
  }
  if (workqueue_) {
    parts.push_back(*workqueue_);
  }
  CUdevResourceDesc description{};
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &description, parts.data(), static_cast<unsigned>(parts.size()));
  auto green = std::make_shared<GreenCtxBox>(primary);
  CUgreenCtx raw = nullptr;
  GCTX_CALL(driver, cuGreenCtxCreate, &raw, description, runtime_.device(device_), CU_GREEN_CTX_DEFAULT_STREAM);
  green->take(raw, std::exchange(live_entry_, 0));
  runtime_.count_made(device_);
  CUcontext handle = nullptr;
  GCTX_CALL(driver, cuCtxFromGreenCtx, &handle, raw);
  auto box = std::make_shared<ContextBox>(runtime_, device_, handle, ContextKind::green, std::move(green), raw,
                                          context_id(driver, handle));
  box->name_ = name_;
  box->given_ = given_;
  runtime_.contexts().put(handle, box);
  return box;
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
  const auto is_same = [&](const ContextBox& box) { return is_same_context(driver, box, handle); };
  if (auto known = runtime.contexts().find(handle, is_same)) {
    return known;
  }
  CUdevice device = 0;
  CUgreenCtx green = nullptr;
  {
    const CurrentScope scope(driver, handle);
    GCTX_CALL(driver, cuCtxGetDevice, &device);
    green = green_context_of_current(driver);
  }
  int ordinal = 0;
  while (ordinal < runtime.device_count() && runtime.device(ordinal) != device) {
    ++ordinal;
  }
  if (green == nullptr) {
    if (auto primary = runtime.primary(ordinal); primary->handle() == handle) {
      return primary;
    }
  }
  auto made = std::make_shared<ContextBox>(runtime, ordinal, handle, ContextKind::foreign, nullptr, green,
                                           context_id(driver, handle));
  return runtime.contexts().settle(handle, std::move(made), is_same);
}

ContextHandle current_context(Runtime& runtime) {
  CUcontext current = nullptr;
  GCTX_CALL(runtime.driver(), cuCtxGetCurrent, &current);
  return current != nullptr ? adopt_context(runtime, current) : nullptr;
}

void synchronize_context(const ContextHandle& context) {
  context->demand_open();
  const CurrentScope scope(*context);
  GCTX_CALL(context->runtime().driver(), cuCtxSynchronize);
}

}  // namespace gctx
