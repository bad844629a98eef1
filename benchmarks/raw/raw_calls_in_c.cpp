#include "raw_calls_in_c.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace raw {
namespace {

constexpr unsigned grain = 8;
constexpr unsigned uneven_units = 6;  // 8 + 16 + 24

using Clock = std::chrono::steady_clock;

template <typename Handle>
Handle as(std::uintptr_t address) {
  return reinterpret_cast<Handle>(address);
}

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

RawCalls::RawCalls(const std::string& driver_path, int ordinal) : driver_(driver_path) {
  RAW_CALL(driver_, cuDeviceGet, &device_, ordinal);
  RAW_CALL(driver_, cuDeviceGetDevResource, device_, &whole_, CU_DEV_RESOURCE_TYPE_SM);
  auto count = static_cast<unsigned>(groups_.size());
  RAW_CALL(driver_, cuDevSmResourceSplitByCount, groups_.data(), &count, &whole_, nullptr, 0U, grain);
  if (count < groups_.size()) {
    throw std::runtime_error("this device has too few SMs for the raw calls: three groups of " + std::to_string(grain) +
                             " are needed");
  }
  RAW_CALL(driver_, cuDevicePrimaryCtxRetain, &primary_, device_);
  try {
    for (unsigned i = 0; i < green_.size(); ++i) {
      green_[i] = create_green(i);
      RAW_CALL(driver_, cuCtxFromGreenCtx, &contexts_[i], green_[i]);
      streams_[i] = create_stream(i);
    }
    CUcontext popped = nullptr;
    RAW_CALL(driver_, cuCtxPushCurrent, contexts_[0]);
    CUresult created = driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
    for (CUevent& timed : timed_) {
      created = created == CUDA_SUCCESS ? driver_.cuEventCreate(&timed, CU_EVENT_DEFAULT) : created;
    }
    RAW_CALL(driver_, cuCtxPopCurrent, &popped);
    driver_.check(created, "cuEventCreate");
    for (const CUevent timed : timed_) {
      RAW_CALL(driver_, cuEventRecord, timed, streams_[0]);
      RAW_CALL(driver_, cuEventSynchronize, timed);
    }
  } catch (...) {
    release();
    throw;
  }
}

RawCalls::~RawCalls() { release(); }

void RawCalls::release() noexcept {
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
  driver_.cuDevicePrimaryCtxRelease(device_);
}

CUgreenCtx RawCalls::create_green(unsigned group) const {
  CUdevResourceDesc descriptor = nullptr;
  CUdevResource sms = groups_[group];
  RAW_CALL(driver_, cuDevResourceGenerateDesc, &descriptor, &sms, 1U);
  CUgreenCtx created = nullptr;
  RAW_CALL(driver_, cuGreenCtxCreate, &created, descriptor, device_, CU_GREEN_CTX_DEFAULT_STREAM);
  return created;
}

// Driver 12.4 has no call for it: a stream belongs to the context that is current.
CUstream RawCalls::create_stream(unsigned position) const {
  CUstream created = nullptr;
  if (driver_.cuGreenCtxStreamCreate != nullptr) {
    RAW_CALL(driver_, cuGreenCtxStreamCreate, &created, green_[position], CU_STREAM_NON_BLOCKING, 0);
    return created;
  }
  CUcontext popped = nullptr;
  RAW_CALL(driver_, cuCtxPushCurrent, contexts_[position]);
  const CUresult result = driver_.cuStreamCreateWithPriority(&created, CU_STREAM_NON_BLOCKING, 0);
  RAW_CALL(driver_, cuCtxPopCurrent, &popped);
  driver_.check(result, "cuStreamCreateWithPriority");
  return created;
}

std::vector<std::string> RawCalls::names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    names.emplace_back(entry.name);
  }
  return names;
}

double RawCalls::time(std::string_view name, unsigned count) {
  const auto* const entry =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& candidate) { return candidate.name == name; });
  if (entry == entries.end()) {
    throw std::invalid_argument("there is no raw call '" + std::string(name) + "'");
  }
  return (this->*entry->time)(count);
}

void RawCalls::settle() const {
  CUcontext popped = nullptr;
  // With the primary context current the driver waits for its green contexts too.
  RAW_CALL(driver_, cuCtxPushCurrent, primary_);
  const CUresult result = driver_.cuCtxSynchronize();
  RAW_CALL(driver_, cuCtxPopCurrent, &popped);
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
    RAW_CALL(driver_, cuDeviceGetDevResource, device_, &sm, CU_DEV_RESOURCE_TYPE_SM);
  });
}

double RawCalls::split_one(unsigned count) {
  return timed(count, [this] {
    CUdevResource group;
    CUdevResource remainder;
    unsigned groups = 1;
    RAW_CALL(driver_, cuDevSmResourceSplitByCount, &group, &groups, &whole_, &remainder, 0U, grain);
  });
}

// The structured split where the driver has it. Else one split into units of 8: a group is then a run of units, which a
// descriptor takes as they lie, so that composing costs nothing here.
double RawCalls::split_uneven(unsigned count) {
  return timed(count, [this] {
    CUdevResource remainder;
    if (driver_.cuDevSmResourceSplit != nullptr) {
      std::array<CUdevResource, 3> groups;
      std::array<CU_DEV_SM_RESOURCE_GROUP_PARAMS, 3> parameters{};
      for (unsigned i = 0; i < 3; ++i) {
        parameters[i].smCount = grain * (i + 1);
        parameters[i].coscheduledSmCount = grain;
      }
      RAW_CALL(driver_, cuDevSmResourceSplit, groups.data(), 3U, &whole_, &remainder, 0U, parameters.data());
    } else {
      std::array<CUdevResource, uneven_units> units;
      unsigned count_of_units = uneven_units;
      RAW_CALL(driver_, cuDevSmResourceSplitByCount, units.data(), &count_of_units, &whole_, &remainder, 0U, grain);
    }
  });
}

double RawCalls::context(unsigned count) {
  return timed(count, [this] {
    const CUgreenCtx green = create_green(2);
    CUcontext context = nullptr;
    const CUresult result = driver_.cuCtxFromGreenCtx(&context, green);
    RAW_CALL(driver_, cuGreenCtxDestroy, green);
    driver_.check(result, "cuCtxFromGreenCtx");
  });
}

double RawCalls::stream(unsigned count) {
  return timed(count, [this] { RAW_CALL(driver_, cuStreamDestroy, create_stream(0)); });
}

double RawCalls::stream_sm_count(unsigned count) {
  return timed(count, [this] {
    CUdevResource sm;
    if (driver_.cuStreamGetDevResource != nullptr) {
      RAW_CALL(driver_, cuStreamGetDevResource, streams_[0], &sm, CU_DEV_RESOURCE_TYPE_SM);
    } else {
      CUcontext context = nullptr;
      RAW_CALL(driver_, cuStreamGetCtx, streams_[0], &context);
      RAW_CALL(driver_, cuCtxGetDevResource, context, &sm, CU_DEV_RESOURCE_TYPE_SM);
    }
  });
}

double RawCalls::push_pop(unsigned count) {
  return timed(count, [this] {
    CUcontext popped = nullptr;
    RAW_CALL(driver_, cuCtxPushCurrent, contexts_[0]);
    RAW_CALL(driver_, cuCtxPopCurrent, &popped);
  });
}

double RawCalls::is_current(unsigned count) {
  return timed(count, [this] {
    CUcontext current = nullptr;
    RAW_CALL(driver_, cuCtxGetCurrent, &current);
  });
}

double RawCalls::record_wait(unsigned count) {
  return timed(count, [this] {
    RAW_CALL(driver_, cuEventRecord, event_, streams_[0]);
    RAW_CALL(driver_, cuStreamWaitEvent, streams_[1], event_, 0U);
  });
}

double RawCalls::context_record_wait(unsigned count) {
  return timed(count, [this] {
    RAW_CALL(driver_, cuGreenCtxRecordEvent, green_[0], event_);
    RAW_CALL(driver_, cuGreenCtxWaitEvent, green_[1], event_);
  });
}

double RawCalls::stream_is_done(unsigned count) {
  return timed(count, [this] { RAW_CALL(driver_, cuStreamQuery, streams_[0]); });
}

double RawCalls::event_is_done(unsigned count) {
  return timed(count, [this] { RAW_CALL(driver_, cuEventQuery, timed_[0]); });
}

double RawCalls::priority(unsigned count) {
  return timed(count, [this] {
    int priority = 0;
    RAW_CALL(driver_, cuStreamGetPriority, streams_[0], &priority);
  });
}

double RawCalls::elapsed(unsigned count) {
  return timed(count, [this] {
    float ms = 0.0F;
    RAW_CALL(driver_, cuEventElapsedTime, &ms, timed_[0], timed_[1]);
  });
}

RawSwitch::RawSwitch(const std::string& driver_path, std::vector<std::uintptr_t> asked,
                     const std::vector<Place>& earlier, const std::vector<Place>& later)
    : driver_(driver_path), asked_(std::move(asked)) {
  if (later.empty()) {
    throw std::invalid_argument("this switch has no waits");
  }
  for (std::size_t i = 0; i < later.size(); ++i) {
    const Place& source = earlier[i];
    auto record = std::find_if(records_.begin(), records_.end(), [&](const Step& step) {
      return step.place.context == source.context && step.place.stream == source.stream;
    });
    if (record == records_.end()) {
      CUcontext popped = nullptr;
      CUevent event = nullptr;
      RAW_CALL(driver_, cuCtxPushCurrent, as<CUcontext>(source.context));
      const CUresult result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      RAW_CALL(driver_, cuCtxPopCurrent, &popped);
      driver_.check(result, "cuEventCreate");
      records_.push_back({source, event});
      record = records_.end() - 1;
    }
    if (later[i].stream != 0) {
      primary_ = as<CUcontext>(later[i].context);
    }
    waits_.push_back({later[i], record->event});
  }
}

RawSwitch::~RawSwitch() {
  for (const Step& record : records_) {
    driver_.cuEventDestroy(record.event);
  }
}

double RawSwitch::time() const {
  unsigned long long id = 0;
  const auto start = Clock::now();
  if (primary_ != nullptr) {
    RAW_CALL(driver_, cuCtxGetId, primary_, &id);
  }
  for (const std::uintptr_t stream : asked_) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    RAW_CALL(driver_, cuStreamIsCapturing, as<CUstream>(stream), &status);
  }
  for (const auto& [place, event] : records_) {
    if (place.stream != 0) {
      RAW_CALL(driver_, cuEventRecord, event, as<CUstream>(place.stream));
    } else {
      RAW_CALL(driver_, cuCtxRecordEvent, as<CUcontext>(place.context), event);
    }
  }
  for (const auto& [place, event] : waits_) {
    if (place.stream != 0) {
      RAW_CALL(driver_, cuStreamWaitEvent, as<CUstream>(place.stream), event, CU_EVENT_WAIT_DEFAULT);
    } else {
      RAW_CALL(driver_, cuCtxWaitEvent, as<CUcontext>(place.context), event);
    }
  }
  return nanoseconds_since(start);
}

}  // namespace raw
