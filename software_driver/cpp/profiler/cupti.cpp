// The part of CUPTI that a tracer uses: activity records of contexts, kernels, copies, fills, graphs, and of calls that
// launch, in the layout of CUPTI 13.0. Records wait here until they are flushed, and then go into the buffers of the
// tracer.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "abi/cuda_software_driver.h"

namespace {

// CUptiResult.
constexpr int success = 0, invalid_parameter = 1, max_limit_reached = 12, not_initialized = 15;
// CUpti_ActivityKind.
enum Kind : int { copy = 1, fill = 2, driver = 4, context = 9, kernel = 10, synchronization = 38, graph = 51 };
// CUpti_driver_api_trace_cbid.
const std::map<std::string, std::uint32_t>& numbers_of_calls() {
  static const auto& numbers = *new const std::map<std::string, std::uint32_t>{{"cuDriverGetVersion", 2},
                                                                               {"cuLaunchKernel", 307},
                                                                               {"cuLaunchCooperativeKernel", 477},
                                                                               {"cuGraphLaunch", 514},
                                                                               {"cuLaunchKernelEx", 652}};
  return numbers;
}

constexpr std::size_t kernel_size = 216, copy_size = 96, fill_size = 88, graph_size = 56, context_size = 32,
                      call_size = 40, wait_size = 56;
// The number of records that the real library keeps.
constexpr std::size_t most_waiting = 4'000'000;

// A function of the software driver, which the process has loaded.
template <class Function>
Function* of_driver(const char* name) {
  void* const driver = dlopen("libcuda_software_driver.so", RTLD_NOW | RTLD_NOLOAD);
  return driver != nullptr ? reinterpret_cast<Function*>(dlsym(driver, name)) : nullptr;
}

using Record = std::vector<std::uint8_t>;

template <class Number>
void put(Record& record, std::size_t offset, Number value) {
  std::memcpy(record.data() + offset, &value, sizeof value);
}

using Request = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
using Complete = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                          std::size_t valid);

// All that ends with cuptiFinalize.
struct Session {
  std::set<int> kinds;
  std::set<std::uint32_t> calls;
  std::deque<Record> waiting;
  std::map<std::uint64_t, std::uint64_t> graph_starts;  // of launches under way
  std::size_t dropped = 0;
  Request request = nullptr;
  Complete complete = nullptr;
};

struct State : Session {
  std::mutex mutex;
  std::set<std::string> names;  // kernels' names live as long as the process
};

State& state() {
  static State* const kept = new State;  // threads of the driver may outlive static destruction
  return *kept;
}

void add(State& here, Record record) {
  if (here.waiting.size() >= most_waiting) {
    ++here.dropped;
  } else {
    here.waiting.push_back(std::move(record));
  }
}

Record made(int kind, std::size_t size) {
  Record record(size);
  put(record, 0, kind);
  return record;
}

Record of_context(const softwareDriverActivity& activity) {
  Record record = made(context, context_size);
  put(record, 4, static_cast<std::uint32_t>(activity.context));
  put(record, 8, activity.device);
  put(record, 16, static_cast<std::uint32_t>(activity.parent));
  put(record, 20, static_cast<std::uint8_t>(activity.is_green));
  put(record, 22, static_cast<std::uint16_t>(activity.sm_count));
  return record;
}

Record of_kernel(State& here, const softwareDriverActivity& activity) {
  Record record = made(kernel, kernel_size);
  put(record, 16, activity.started);
  put(record, 24, activity.ended);
  put(record, 40, activity.device);
  put(record, 44, static_cast<std::uint32_t>(activity.context));
  put(record, 48, static_cast<std::uint32_t>(activity.stream));
  put(record, 92, static_cast<std::uint32_t>(activity.launch));
  put(record, 104, here.names.insert(activity.name).first->c_str());
  put(record, 144, activity.graph != 0 ? activity.launch : std::uint64_t{0});
  put(record, 156, static_cast<std::uint32_t>(activity.graph));
  return record;
}

Record of_call(const softwareDriverActivity& activity, std::uint32_t call) {
  Record record = made(driver, call_size);
  put(record, 4, call);
  put(record, 8, activity.started);
  put(record, 16, activity.ended);
  put(record, 32, static_cast<std::uint32_t>(activity.launch));
  return record;
}

// Copies and fills have the same fields in the same places.
Record of_memory(const softwareDriverActivity& activity, int kind, std::size_t size) {
  Record record = made(kind, size);
  put(record, 8, activity.bytes);
  put(record, 16, activity.started);
  put(record, 24, activity.ended);
  put(record, 32, activity.device);
  put(record, 36, static_cast<std::uint32_t>(activity.context));
  put(record, 40, static_cast<std::uint32_t>(activity.stream));
  put(record, 44, static_cast<std::uint32_t>(activity.launch));
  put(record, 72, static_cast<std::uint32_t>(activity.graph));
  return record;
}

Record of_wait(const softwareDriverActivity& activity) {
  Record record = made(synchronization, wait_size);
  put(record, 8, activity.started);
  put(record, 16, activity.ended);
  put(record, 28, static_cast<std::uint32_t>(activity.context));
  put(record, 32, static_cast<std::uint32_t>(activity.stream));
  return record;
}

Record of_graph(const softwareDriverActivity& activity, std::uint64_t started) {
  Record record = made(graph, graph_size);
  put(record, 4, static_cast<std::uint32_t>(activity.launch));
  put(record, 8, started);
  put(record, 16, activity.ended);
  put(record, 24, activity.device);
  put(record, 28, static_cast<std::uint32_t>(activity.graph));
  put(record, 32, static_cast<std::uint32_t>(activity.context));
  put(record, 36, static_cast<std::uint32_t>(activity.stream));
  return record;
}

void notice(const softwareDriverActivity* activity) {
  State& here = state();
  const std::lock_guard lock(here.mutex);
  if (activity->graph != 0 && here.kinds.count(graph) != 0) {
    if (activity->kind != softwareDriverGraphActivity) {
      std::uint64_t& start = here.graph_starts.try_emplace(activity->launch, activity->started).first->second;
      start = std::min(start, activity->started);
    } else if (const auto known = here.graph_starts.extract(activity->launch)) {
      add(here, of_graph(*activity, known.mapped()));
    }
    return;
  }
  switch (activity->kind) {
    case softwareDriverContextActivity:
      if (here.kinds.count(context) != 0) {
        add(here, of_context(*activity));
      }
      break;
    case softwareDriverKernelActivity:
      if (here.kinds.count(kernel) != 0) {
        add(here, of_kernel(here, *activity));
      }
      break;
    case softwareDriverCopyActivity:
      if (here.kinds.count(copy) != 0) {
        add(here, of_memory(*activity, copy, copy_size));
      }
      break;
    case softwareDriverFillActivity:
      if (here.kinds.count(fill) != 0) {
        add(here, of_memory(*activity, fill, fill_size));
      }
      break;
    case softwareDriverCallActivity: {
      const std::uint32_t call = numbers_of_calls().at(activity->name);
      if (here.calls.count(call) != 0) {
        add(here, of_call(*activity, call));
      }
      break;
    }
    case softwareDriverWaitActivity:
      if (here.kinds.count(synchronization) != 0) {
        add(here, of_wait(*activity));
      }
      break;
    case softwareDriverGraphActivity:
      break;
  }
}

// The driver reports the contexts that exist, too. It calls notice(), so that the state must not be locked.
int start_observing() {
  auto* const start = of_driver<decltype(softwareDriverObserve)>("softwareDriverObserve");
  if (start == nullptr) {
    return not_initialized;
  }
  start(notice);
  return success;
}

}  // namespace

#define CUPTI_STAND_IN extern "C" __attribute__((visibility("default")))

CUPTI_STAND_IN int cuptiGetVersion(std::uint32_t* version) {
  *version = 130000;
  return success;
}

CUPTI_STAND_IN int cuptiGetTimestamp(std::uint64_t* time) {
  static auto* const now = of_driver<decltype(softwareDriverTime)>("softwareDriverTime");
  *time = now != nullptr ? now() : 0;
  return now != nullptr ? success : not_initialized;
}

CUPTI_STAND_IN int cuptiActivityRegisterCallbacks(Request request, Complete complete) {
  {
    State& here = state();
    const std::lock_guard lock(here.mutex);
    here.request = request;
    here.complete = complete;
  }
  return start_observing();
}

CUPTI_STAND_IN int cuptiActivityEnable(int kind) {
  static const std::set<int> known{copy, fill, context, kernel, synchronization, graph};
  if (known.count(kind) == 0) {
    return invalid_parameter;
  }
  State& here = state();
  const std::lock_guard lock(here.mutex);
  here.kinds.insert(kind);
  return success;
}

CUPTI_STAND_IN int cuptiActivityEnableAndDump(int kind) {
  const int result = cuptiActivityEnable(kind);
  if (kind == context) {
    start_observing();
  }
  return result;
}

CUPTI_STAND_IN int cuptiActivityDisable(int kind) {
  State& here = state();
  const std::lock_guard lock(here.mutex);
  here.kinds.erase(kind);
  return success;
}

CUPTI_STAND_IN int cuptiActivityEnableDriverApi(std::uint32_t call, std::uint8_t enable) {
  State& here = state();
  const std::lock_guard lock(here.mutex);
  if (enable != 0) {
    here.calls.insert(call);
  } else {
    here.calls.erase(call);
  }
  return success;
}

// The limits of memory on the device: there are none here.
CUPTI_STAND_IN int cuptiActivitySetAttribute(int, std::size_t*, void*) { return success; }

CUPTI_STAND_IN int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* dropped) {
  State& here = state();
  const std::lock_guard lock(here.mutex);
  *dropped = here.dropped;
  here.dropped = 0;
  return success;
}

CUPTI_STAND_IN int cuptiActivityFlushAll(std::uint32_t) {
  State& here = state();
  while (true) {
    std::uint8_t* buffer = nullptr;
    std::size_t size = 0, most = 0, used = 0;
    Complete complete = nullptr;
    {
      const std::lock_guard lock(here.mutex);
      if (here.waiting.empty() || here.request == nullptr) {
        return success;
      }
      complete = here.complete;
    }
    here.request(&buffer, &size, &most);
    {
      const std::lock_guard lock(here.mutex);
      if (buffer == nullptr) {
        here.dropped += here.waiting.size();
        here.waiting.clear();
        return success;
      }
      while (!here.waiting.empty() && used + here.waiting.front().size() <= size) {
        const Record& record = here.waiting.front();
        std::memcpy(buffer + used, record.data(), record.size());
        used += record.size();
        here.waiting.pop_front();
      }
    }
    complete(nullptr, 0, buffer, size, used);
  }
}

CUPTI_STAND_IN int cuptiFinalize() {
  if (auto* const observe = of_driver<decltype(softwareDriverObserve)>("softwareDriverObserve")) {
    observe(nullptr);
  }
  State& here = state();
  const std::lock_guard lock(here.mutex);
  static_cast<Session&>(here) = Session{};
  return success;
}

CUPTI_STAND_IN int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record) {
  // Never destroyed: a tracer flushes while the process ends.
  static const auto& sizes = *new const std::map<int, std::size_t>{
      {copy, copy_size},     {fill, fill_size},   {driver, call_size},         {context, context_size},
      {kernel, kernel_size}, {graph, graph_size}, {synchronization, wait_size}};
  const auto size_of = [](const std::uint8_t* at) {
    int kind = 0;
    std::memcpy(&kind, at, sizeof kind);
    return sizes.at(kind);
  };
  std::uint8_t* const next = *record == nullptr ? buffer : *record + size_of(*record);
  if (next >= buffer + valid) {
    return max_limit_reached;
  }
  *record = next;
  return success;
}
