#include "bench/raw_calls_in_c.hpp"

#include <algorithm>
#include <chrono>

#include "handles/capture.hpp"
#include "handles/event.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

constexpr unsigned grain = 8;
constexpr unsigned uneven_units = 6;  // 8 + 16 + 24

using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

}  // namespace

struct RawCalls::Entry {
  std::string_view name;
  double (RawCalls::*time)(unsigned count);
};

const std::array<RawCalls::Entry, 14> RawCalls::entries{{
    {"query", &RawCalls::query},
    {"split_one", &RawCalls::split_one},
    {"split_uneven", &RawCalls::split_uneven},
    {"context", &RawCalls::context},
    {"stream", &RawCalls::stream},
    {"stream_sm_count", &RawCalls::stream_sm_count},
    {"push_pop", &RawCalls::push_pop},
    {"is_current", &RawCalls::is_current},
    {"record_wait", &RawCalls::record_wait},
    {"context_record_wait", &RawCalls::context_record_wait},
    {"stream_is_done", &RawCalls::stream_is_done},
    {"event_is_done", &RawCalls::event_is_done},
    {"priority", &RawCalls::priority},
    {"elapsed", &RawCalls::elapsed},
}};

RawCalls::RawCalls(Runtime& runtime, int ordinal)
    : runtime_(runtime),
      driver_(runtime.driver()),
      primary_(primary_context(runtime, ordinal)),
      device_(runtime.device(ordinal)) {
  driver_.require(Feature::green_contexts);
  GCTX_CALL(driver_, cuDeviceGetDevResource, device_, &whole_, CU_DEV_RESOURCE_TYPE_SM);
  auto count = static_cast<unsigned>(groups_.size());
  GCTX_CALL(driver_, cuDevSmResourceSplitByCount, groups_.data(), &count, &whole_, nullptr, 0U, grain);
  if (count < groups_.size()) {
    fail_state("this device has too few SMs for the raw calls: three groups of " + std::to_string(grain) +
               " are needed");
  }
  try {
    for (unsigned i = 0; i < green_.size(); ++i) {
      green_[i] = create_green(i);
      GCTX_CALL(driver_, cuCtxFromGreenCtx, &contexts_[i], green_[i]);
      streams_[i] = create_stream(i);
    }
    CUcontext popped = nullptr;
    GCTX_CALL(driver_, cuCtxPushCurrent, contexts_[0]);
    CUresult created = driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
    for (CUevent& timed : timed_) {
      created = created == CUDA_SUCCESS ? driver_.cuEventCreate(&timed, CU_EVENT_DEFAULT) : created;
    }
    GCTX_CALL(driver_, cuCtxPopCurrent, &popped);
    driver_.check(created, "cuEventCreate");
    for (const CUevent timed : timed_) {
      GCTX_CALL(driver_, cuEventRecord, timed, streams_[0]);
      GCTX_CALL(driver_, cuEventSynchronize, timed);
    }
  } catch (...) {
    release();
    throw;
  }
}

RawCalls::~RawCalls() { release(); }

void RawCalls::release() noexcept {
  if (!runtime_.is_usable()) {
    return;
  }
  for (const CUevent event : {event_, timed_[0], timed_[1]}) {
    if (event != nullptr) {
      driver_.cuEventDestroy(event);
    }
  }
  for (unsigned i = 0; i < green_.size(); ++i) {
    if (streams_[i] != nullptr) {
      driver_.cuStreamDestroy(streams_[i]);
    }
    if (green_[i] != nullptr) {
      driver_.cuGreenCtxDestroy(green_[i]);
    }
  }
}

CUgreenCtx RawCalls::create_green(unsigned group) const {
  CUdevResourceDesc descriptor = nullptr;
  CUdevResource sms = groups_[group];
  GCTX_CALL(driver_, cuDevResourceGenerateDesc, &descriptor, &sms, 1U);
  CUgreenCtx created = nullptr;
  GCTX_CALL(driver_, cuGreenCtxCreate, &created, descriptor, device_, CU_GREEN_CTX_DEFAULT_STREAM);
  return created;
}

// Driver 12.4 has no call for it: a stream belongs to the context that is current.
CUstream RawCalls::create_stream(unsigned position) const {
  CUstream created = nullptr;
  if (driver_.cuGreenCtxStreamCreate != nullptr) {
    GCTX_CALL(driver_, cuGreenCtxStreamCreate, &created, green_[position], CU_STREAM_NON_BLOCKING, 0);
    return created;
  }
  CUcontext popped = nullptr;
  GCTX_CALL(driver_, cuCtxPushCurrent, contexts_[position]);
  const CUresult result = driver_.cuStreamCreateWithPriority(&created, CU_STREAM_NON_BLOCKING, 0);
  GCTX_CALL(driver_, cuCtxPopCurrent, &popped);
  driver_.check(result, "cuStreamCreateWithPriority");
  return created;
}

std::vector<std::string> RawCalls::names() {
  std::vector<std::string> found;
  for (const Entry& entry : entries) {
    found.emplace_back(entry.name);
  }
  return found;
}

double RawCalls::time(std::string_view name, unsigned count) {
  runtime_.demand_usable();
  const auto* const entry =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& one) { return one.name == name; });
  if (entry == entries.end()) {
    fail_value("there is no raw call '" + std::string(name) + "'");
  }
  return (this->*entry->time)(count);
}

void RawCalls::settle() const {
  runtime_.demand_usable();
  CUcontext popped = nullptr;
  // With the primary context current the driver waits for its green contexts too.
  GCTX_CALL(driver_, cuCtxPushCurrent, primary_->handle());
  const CUresult result = driver_.cuCtxSynchronize();
  GCTX_CALL(driver_, cuCtxPopCurrent, &popped);
  driver_.check(result, "cuCtxSynchronize");
}

template <class Call>
double RawCalls::timed(unsigned count, Call one_call) {
  const auto start = Clock::now();
  for (unsigned i = 0; i < count; ++i) {
    one_call();
  }
  return nanoseconds_since(start);
}

double RawCalls::query(unsigned count) {
  return timed(count, [this] {
    CUdevResource sm;
    GCTX_CALL(driver_, cuDeviceGetDevResource, device_, &sm, CU_DEV_RESOURCE_TYPE_SM);
  });
}

double RawCalls::split_one(unsigned count) {
  return timed(count, [this] {
    CUdevResource group;
    CUdevResource remainder;
    unsigned groups = 1;
    GCTX_CALL(driver_, cuDevSmResourceSplitByCount, &group, &groups, &whole_, &remainder, 0U, grain);
  });
}

// The structured split where the driver has it. Else one split into units of 8: a group is then a run of units, which a
// descriptor takes as they lie, so that composing costs nothing here.
double RawCalls::split_uneven(unsigned count) {
  return timed(count, [this] {
    CUdevResource remainder;
    if (driver_.cuDevSmResourceSplit != nullptr) {
      std::array<CUdevResource, 3> groups;
      std::array<CU_DEV_SM_RESOURCE_GROUP_PARAMS, 3> wanted{};
      for (unsigned i = 0; i < 3; ++i) {
        wanted[i].smCount = grain * (i + 1);
        wanted[i].coscheduledSmCount = grain;
      }
      GCTX_CALL(driver_, cuDevSmResourceSplit, groups.data(), 3U, &whole_, &remainder, 0U, wanted.data());
    } else {
      std::array<CUdevResource, uneven_units> units;
      unsigned made = uneven_units;
      GCTX_CALL(driver_, cuDevSmResourceSplitByCount, units.data(), &made, &whole_, &remainder, 0U, grain);
    }
  });
}

double RawCalls::context(unsigned count) {
  return timed(count, [this] {
    const CUgreenCtx green = create_green(2);
    CUcontext found = nullptr;
    const CUresult result = driver_.cuCtxFromGreenCtx(&found, green);
    GCTX_CALL(driver_, cuGreenCtxDestroy, green);
    driver_.check(result, "cuCtxFromGreenCtx");
  });
}

double RawCalls::stream(unsigned count) {
  return timed(count, [this] { GCTX_CALL(driver_, cuStreamDestroy, create_stream(0)); });
}

double RawCalls::stream_sm_count(unsigned count) {
  return timed(count, [this] {
    CUdevResource sm;
    if (driver_.cuStreamGetDevResource != nullptr) {
      GCTX_CALL(driver_, cuStreamGetDevResource, streams_[0], &sm, CU_DEV_RESOURCE_TYPE_SM);
    } else {
      CUcontext found = nullptr;
      GCTX_CALL(driver_, cuStreamGetCtx, streams_[0], &found);
      GCTX_CALL(driver_, cuCtxGetDevResource, found, &sm, CU_DEV_RESOURCE_TYPE_SM);
    }
  });
}

double RawCalls::push_pop(unsigned count) {
  return timed(count, [this] {
    CUcontext popped = nullptr;
    GCTX_CALL(driver_, cuCtxPushCurrent, contexts_[0]);
    GCTX_CALL(driver_, cuCtxPopCurrent, &popped);
  });
}

double RawCalls::is_current(unsigned count) {
  return timed(count, [this] {
    CUcontext found = nullptr;
    GCTX_CALL(driver_, cuCtxGetCurrent, &found);
  });
}

double RawCalls::record_wait(unsigned count) {
  return timed(count, [this] {
    GCTX_CALL(driver_, cuEventRecord, event_, streams_[0]);
    GCTX_CALL(driver_, cuStreamWaitEvent, streams_[1], event_, 0U);
  });
}

double RawCalls::context_record_wait(unsigned count) {
  return timed(count, [this] {
    GCTX_CALL(driver_, cuGreenCtxRecordEvent, green_[0], event_);
    GCTX_CALL(driver_, cuGreenCtxWaitEvent, green_[1], event_);
  });
}

double RawCalls::stream_is_done(unsigned count) {
  return timed(count, [this] { GCTX_CALL(driver_, cuStreamQuery, streams_[0]); });
}

double RawCalls::event_is_done(unsigned count) {
  return timed(count, [this] { GCTX_CALL(driver_, cuEventQuery, timed_[0]); });
}

double RawCalls::priority(unsigned count) {
  return timed(count, [this] {
    int found = 0;
    GCTX_CALL(driver_, cuStreamGetPriority, streams_[0], &found);
  });
}

double RawCalls::elapsed(unsigned count) {
  return timed(count, [this] {
    float ms = 0.0F;
    GCTX_CALL(driver_, cuEventElapsedTime, &ms, timed_[0], timed_[1]);
  });
}

RawSwitch::RawSwitch(std::vector<StreamHandle> asked, std::vector<Place> earlier, std::vector<Place> later)
    : asked_(std::move(asked)) {
  if (later.empty()) {
    fail_value("nothing waits in this switch");
  }
  for (std::size_t at = 0; at < later.size(); ++at) {
    const Place& source = earlier[at];
    auto known = std::find_if(records_.begin(), records_.end(), [&](const Step& one) {
      return one.place.context == source.context && one.place.stream == source.stream;
    });
    if (known == records_.end()) {
      const ContextHandle& context = source.stream ? source.stream->context() : source.context;
      records_.push_back({source, create_event(context, CU_EVENT_DISABLE_TIMING)});
      known = records_.end() - 1;
    }
    if (later[at].stream) {
      primary_ = later[at].stream->context();
    }
    waits_.push_back({later[at], known->event});
  }
}

double RawSwitch::time() const {
  const Runtime& runtime = records_.front().event->context()->runtime();
  runtime.demand_usable();
  const Driver& driver = runtime.driver();
  unsigned long long id = 0;
  const auto start = Clock::now();
  if (primary_) {
    GCTX_CALL(driver, cuCtxGetId, primary_->handle(), &id);
  }
  for (const StreamHandle& stream : asked_) {
    is_capturing(driver, stream->handle());
  }
  for (const auto& [place, event] : records_) {
    if (place.stream) {
      GCTX_CALL(driver, cuEventRecord, event->handle(), place.stream->handle());
    } else {
      record_all(*place.context, event->handle());
    }
  }
  for (const auto& [place, event] : waits_) {
    if (place.stream) {
      GCTX_CALL(driver, cuStreamWaitEvent, place.stream->handle(), event->handle(), CU_EVENT_WAIT_DEFAULT);
    } else {
      let_all_wait(*place.context, event->handle());
    }
  }
  return nanoseconds_since(start);
}

}  // namespace gctx
