#include "part.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"
#include "per_process.hpp"
#include "real_driver.hpp"
#include "reports.hpp"
#include "resources/descriptor.hpp"
#include "resources/split.hpp"

namespace gctx::interpose {
namespace {

constexpr int most_devices = 64;

using Parts = std::array<Part, most_devices>;
const PerProcess<Parts> all_parts;
Parts& parts() { return *all_parts; }
std::atomic<int> used_devices{0};  // one more than the highest device with a part

struct Others {
  std::shared_mutex mutex;
  std::unordered_map<CUcontext, const Part*> foreign;  // contexts of the program, and the parts in which they are
  std::unordered_map<CUcontext, CUdevice> former;      // contexts of parts that a reset has ended
  std::atomic<unsigned long> contexts{0};              // all contexts of the program, with those of its parts
};
const PerProcess<Others> all_others;
Others& others() { return *all_others; }

// The part as the environment names it: NAME, its position, and the groups of the layout.
struct Wish {
  std::string name;
  std::size_t position = 0;
  std::vector<std::string> groups;
};

unsigned number(std::string_view text) {
  unsigned value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Streams of the C++ library would bring its locales.
std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> words;
  while (true) {
    const auto end = text.find(separator);
    words.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return words;
    }
    text.remove_prefix(end + 1);
  }
}

// CUDA_GCTX_PART: "NAME POSITION GROUP...". A group is a number of SMs, a share of the device, "aligned" for the
// remaining SMs in whole units, or "rest" for all remaining SMs; "/N" and "/backfill" add co-scheduling and backfill.
const Wish* wish() {
  static const Wish* const parsed = []() -> const Wish* {
    const char* const text = std::getenv("CUDA_GCTX_PART");
    if (text == nullptr || *text == '\0') {
      return nullptr;
    }
    const std::vector<std::string> words = split_text(text, ' ');
    if (words.size() < 3) {
      return nullptr;
    }
    return new Wish{words[0], number(words[1]), {words.begin() + 2, words.end()}};
  }();
  return parsed;
}

GroupRequest request_of(const std::string& group, const SmResource& whole) {
  GroupRequest request;
  const std::vector<std::string> words = split_text(group, '/');
  const std::string& count = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "backfill") {
      request.backfill = true;
    } else {
      request.coscheduled = number(words[i]);
    }
  }
  if (count.find('.') != std::string::npos) {
    const unsigned grain = whole.alignment;
    // The slack is more than a share loses by the rounding of its digits.
    const auto units =
        static_cast<unsigned>(std::floor(std::strtod(count.c_str(), nullptr) * whole.sm_count / grain + 1e-6));
    if (units * grain < whole.min_partition_size) {
      fail_value(count + " of " + std::to_string(whole.sm_count) + " SMs are fewer than the smallest partition (" +
                 std::to_string(whole.min_partition_size) + " SMs)");
    }
    request.count = units * grain;
  } else if (count != "aligned") {
    request.count = number(count);
  }
  return request;
}

const Driver& core_driver() {
  static const auto* const driver = new Driver(real_driver_path());
  return *driver;
}

std::shared_ptr<SmResource> resource_from(const Driver& driver, CUdevice device, const CUdevResource& queried,
                                          bool is_whole) {
  auto resource = std::make_shared<SmResource>();
  resource->driver = &driver;
  resource->device = device;
  resource->units.push_back(queried);
  resource->sm_count = queried.sm.smCount;
  resource->min_partition_size = queried.sm.minSmPartitionSize;
  resource->alignment = queried.sm.smCoscheduledAlignment;
  resource->flags = driver.has(Feature::structured_split) ? queried.sm.flags : 0;
  resource->splittable = true;
  resource->whole_device = is_whole;
  return resource;
}

// A context over SMs, and the resource that the driver reports for the context.
CUgreenCtx create(const Driver& driver, CUdevice device, const SmResource& sms, CUdevResource& resource) {
  CUgreenCtx green = nullptr;
  GCTX_CALL(driver, cuGreenCtxCreate, &green, descriptor_of(driver, sms), device, CU_GREEN_CTX_DEFAULT_STREAM);
  driver.check(real.cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM), "cuGreenCtxGetDevResource");
  return green;
}

// The SMs of the part, by the split that the whole layout makes on this device.
SmResourcePtr split_off(const Driver& driver, CUdevice device, bool dry_run) {
  driver.require(Feature::green_contexts);
  CUdevResource queried{};
  GCTX_CALL(driver, cuDeviceGetDevResource, device, &queried, CU_DEV_RESOURCE_TYPE_SM);
  const SmResourcePtr whole = resource_from(driver, device, queried, true);
  const Wish& wanted = *wish();
  std::vector<GroupRequest> requests;
  std::size_t position = wanted.groups.size();  // among the requests; the remainder has the last one
  for (std::size_t i = 0; i < wanted.groups.size(); ++i) {
    if (wanted.groups[i] != "rest") {
      if (i == wanted.position) {
        position = requests.size();
      }
      requests.push_back(request_of(wanted.groups[i], *whole));
    }
  }
  if (requests.empty()) {
    return whole;
  }
  // The context that makes the remainder of a split splittable lives as long as the process.
  const Requery requery = [&](const SmResourcePtr& group) {
    CUdevResource answer{};
    create(driver, device, *group, answer);
    auto usable = resource_from(driver, device, answer, false);
    usable->come_from(group);
    return usable;
  };
  const SplitResult result = split(driver, whole, requests, dry_run, requery);
  SmResourcePtr part = position < requests.size() ? result.group(position) : result.remainder();
  if (part->sm_count == 0) {
    fail_value("the other partitions take all " + std::to_string(whole->sm_count) + " SMs: request fewer for them");
  }
  return part;
}

// Runs something that throws errors of the core, and turns them into a CUresult and one sentence.
template <typename Action>
CUresult guarded(CUdevice device, const Action& action) {
  CUresult result = CUDA_SUCCESS;
  try {
    action();
    return CUDA_SUCCESS;
  } catch (const Error& error) {
    result = error.code != CUDA_SUCCESS ? error.code : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    static std::once_flag once;
    std::call_once(once, [&] {
      tell("partition %s of device %d cannot be opened: %s", part_name(), device, error.what());
      report("\"event\": \"failure\", \"device\": %d", device);
    });
  }
  return result;
}

// Tells cuda-gctx trace the name of the part's context.
void mark_for_trace(CUcontext context) {
  const char* const folder = std::getenv("CUDA_GCTX_TRACE");
  unsigned long long number = 0;
  if (folder == nullptr || real.cuCtxGetId(context, &number) != CUDA_SUCCESS) {
    return;
  }
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".marks";
  if (std::FILE* const marks = std::fopen(path.c_str(), "ae")) {
    std::fprintf(marks, "{\"event\": \"open\", \"time\": %lld%09ld, \"contexts\": {\"%llu\": \"%s\"}}\n",
                 static_cast<long long>(now.tv_sec), now.tv_nsec, number, part_name());
    std::fclose(marks);
  }
}

CUresult create_part(Part& part) {
  return guarded(part.device, [&] {
    const Driver& driver = core_driver();
    driver.require(Feature::green_contexts);
    CUcontext primary = nullptr;
    driver.check(real.cuDevicePrimaryCtxRetain(&primary, part.device), "cuDevicePrimaryCtxRetain");
    try {
      CUdevResource whole{};
      GCTX_CALL(driver, cuDeviceGetDevResource, part.device, &whole, CU_DEV_RESOURCE_TYPE_SM);
      const SmResourcePtr sms = split_off(driver, part.device, false);
      const CUgreenCtx green = create(driver, part.device, *sms, part.resource);
      CUcontext context = nullptr;
      driver.check(real.cuCtxFromGreenCtx(&context, green), "cuCtxFromGreenCtx");
      part.device_sm_count = whole.sm.smCount;
      part.sm_count.store(part.resource.sm.smCount);
      part.primary.store(primary);
      part.green.store(green);
      int used = used_devices.load();
      while (used <= part.device && !used_devices.compare_exchange_weak(used, part.device + 1)) {
      }
      part.context.store(context);
    } catch (...) {
      real.cuDevicePrimaryCtxRelease_v2(part.device);
      throw;
    }
    ++others().contexts;
    mark_for_trace(part.context.load());
    report("\"event\": \"part\", \"device\": %d, \"part\": \"%s\", \"sms\": %u", part.device, part_name(),
           part.sm_count.load());
  });
}

// The device of a context that nobody has seen yet, if it is the primary context. The CUDA runtime has its handle from
// a private function of the driver before it retains the context.
int device_of_primary(CUcontext context) {
  CUdevice device = -1;
  if (real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
    real.cuCtxGetDevice(&device);
    CUcontext popped = nullptr;
    real.cuCtxPopCurrent_v2(&popped);
  }
  int count = 0;
  real.cuDeviceGetCount(&count);
  for (CUdevice i = device >= 0 ? device : 0; i < (device >= 0 ? device + 1 : count); ++i) {
    CUcontext primary = nullptr;
    if (real.cuDevicePrimaryCtxRetain(&primary, i) == CUDA_SUCCESS) {
      if (primary == context) {
        return i;  // stays retained: the release would end a primary context that the runtime is about to use
      }
      real.cuDevicePrimaryCtxRelease_v2(i);
    }
  }
  return -1;
}

}  // namespace

bool has_part() { return wish() != nullptr; }

const char* part_name() { return wish()->name.c_str(); }

Part* part_of(CUcontext context) {
  const int used = used_devices.load(std::memory_order_acquire);
  for (int i = 0; context != nullptr && i < used; ++i) {
    Part& part = parts()[static_cast<std::size_t>(i)];
    if (part.context.load(std::memory_order_acquire) == context) {
      return &part;
    }
  }
  return nullptr;
}

Part* current_part() {
  CUcontext context = nullptr;
  return real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? part_of(context) : nullptr;
}

CUcontext inside(CUcontext context) {
  if (context == nullptr || !has_part() || part_of(context) != nullptr) {
    return context;
  }
  int device = -1;
  for (int i = 0; i < used_devices.load(); ++i) {
    if (parts()[static_cast<std::size_t>(i)].primary.load() == context) {
      device = i;
    }
  }
  if (device < 0) {
    if (is_foreign(context)) {
      return context;
    }
    {
      Others& known = others();
      const std::shared_lock lock(known.mutex);
      const auto former = known.former.find(context);
      device = former != known.former.end() ? former->second : -1;
    }
    if (device < 0 && (device = device_of_primary(context)) < 0) {
      add_foreign(context, nullptr);
      return context;
    }
  }
  CUresult result = CUDA_SUCCESS;
  const Part* const part = open_part(device, result);
  return part != nullptr ? part->context.load() : context;
}

CUcontext outside(CUcontext context) {
  const Part* const part = part_of(context);
  return part != nullptr ? part->primary.load() : context;
}

Part* open_part(CUdevice device, CUresult& result) {
  result = CUDA_SUCCESS;
  if (device < 0 || device >= most_devices) {
    result = CUDA_ERROR_INVALID_DEVICE;
    return nullptr;
  }
  Part& part = parts()[static_cast<std::size_t>(device)];
  if (part.context.load(std::memory_order_acquire) == nullptr) {
    const std::lock_guard lock(part.mutex);
    if (part.context.load() == nullptr) {
      part.device = device;
      result = create_part(part);
    }
  }
  return result == CUDA_SUCCESS ? &part : nullptr;
}

unsigned part_sm_count(CUdevice device) {
  if (device < 0 || device >= most_devices) {
    return 0;
  }
  Part& part = parts()[static_cast<std::size_t>(device)];
  if (part.sm_count.load(std::memory_order_acquire) == 0) {
    const std::lock_guard lock(part.mutex);
    if (part.sm_count.load() == 0) {
      guarded(device, [&] { part.sm_count.store(split_off(core_driver(), device, true)->sm_count); });
    }
  }
  return part.sm_count.load();
}

Part* opened_part(CUdevice device) {
  Part* const part = device >= 0 && device < most_devices ? &parts()[static_cast<std::size_t>(device)] : nullptr;
  return part != nullptr && part->context.load() != nullptr ? part : nullptr;
}

void close_part(CUdevice device) {
  if (device < 0 || device >= most_devices) {
    return;
  }
  Part& part = parts()[static_cast<std::size_t>(device)];
  const std::lock_guard lock(part.mutex);
  const CUcontext context = part.context.load();
  if (context == nullptr) {
    return;
  }
  {
    Others& known = others();
    const std::lock_guard guard(known.mutex);
    known.former[context] = device;
  }
  part.context.store(nullptr);
  real.cuGreenCtxDestroy(part.green.exchange(nullptr));
  real.cuDevicePrimaryCtxRelease_v2(device);
}

void add_foreign(CUcontext context, const Part* around) {
  Others& known = others();
  const std::lock_guard lock(known.mutex);
  known.former.erase(context);
  known.contexts += known.foreign.insert_or_assign(context, around).second;
}

bool is_foreign(CUcontext context) {
  Others& known = others();
  const std::shared_lock lock(known.mutex);
  return known.foreign.count(context) != 0;
}

const Part* part_around(CUcontext context) {
  Others& known = others();
  const std::shared_lock lock(known.mutex);
  const auto found = known.foreign.find(context);
  return found != known.foreign.end() ? found->second : nullptr;
}

void drop_foreign(CUcontext context) {
  Others& known = others();
  const std::lock_guard lock(known.mutex);
  known.foreign.erase(context);
}

unsigned long context_count() { return others().contexts.load(); }

}  // namespace gctx::interpose
