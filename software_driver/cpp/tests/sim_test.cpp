// The software driver as a program sees it: opened with dlopen, its functions asked for by name and version.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "abi/cuda_software_driver.h"
#include "tests/check.hpp"
#include "tests/sim_library.hpp"

namespace {

using software_driver::test::fail;
using software_driver::test::symbol;

#define ANSWERS(expected, ...)                                                                               \
  do {                                                                                                       \
    const int answer = static_cast<int>(__VA_ARGS__);                                                        \
    if (answer != static_cast<int>(expected)) {                                                              \
      fail(__FILE__, __LINE__, (std::string(#__VA_ARGS__) + " answered " + std::to_string(answer)).c_str()); \
    }                                                                                                        \
  } while (false)

#define OK(...) ANSWERS(CUDA_SUCCESS, __VA_ARGS__)

int driver_version() {
  int version = 0;
  CHECK(symbol<CUresult(int*)>("cuDriverGetVersion")(&version) == CUDA_SUCCESS);
  return version;
}

// A driver function of the version asked for (else the driver's own), through cuGetProcAddress as programs do it; null
// if the driver has none.
template <class Function>
Function* get(const char* name, int version = driver_version()) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = symbol<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>(
      "cuGetProcAddress_v2")(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  CHECK(result == CUDA_SUCCESS);
  CHECK((address != nullptr) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
  return reinterpret_cast<Function*>(address);
}

#define DRIVER(name, ...) get<decltype(name)>(#name)(__VA_ARGS__)

std::string text_of(const char* name) { return symbol<const char*()>(name)(); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void start(const char* spec) {
  char error[256] = "";
  if (symbol<decltype(softwareDriverConfigure)>("softwareDriverConfigure")(spec, error, sizeof error) != 0) {
    throw std::runtime_error(std::string(spec) + ": " + error);
  }
  OK(DRIVER(cuInit, 0));
}

std::vector<CUdevResource> split(unsigned count, unsigned minimum, CUdevResource* rest = nullptr, unsigned flags = 0) {
  CUdevResource all{};
  OK(DRIVER(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM));
  std::vector<CUdevResource> groups(count);
  OK(DRIVER(cuDevSmResourceSplitByCount, groups.data(), &count, &all, rest, flags, minimum));
  groups.resize(count);
  return groups;
}

CUgreenCtx green(std::vector<CUdevResource> resources) {
  CUdevResourceDesc descriptor = nullptr;
  OK(DRIVER(cuDevResourceGenerateDesc, &descriptor, resources.data(), static_cast<unsigned>(resources.size())));
  CUgreenCtx context = nullptr;
  OK(DRIVER(cuGreenCtxCreate, &context, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return context;
}

CUcontext face(CUgreenCtx context) {
  CUcontext converted = nullptr;
  OK(DRIVER(cuCtxFromGreenCtx, &converted, context));
  return converted;
}

CUstream stream_on(CUgreenCtx context, int priority = 0) {
  CUcontext old = nullptr;
  CUstream stream = nullptr;
  OK(DRIVER(cuCtxPushCurrent_v2, face(context)));
  OK(DRIVER(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, priority));
  OK(DRIVER(cuCtxPopCurrent_v2, &old));
  return stream;
}

#undef cuCtxPushCurrent
#undef cuCtxPopCurrent

constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
// Each block writes {SM, start, end, block}, and stays for `spin` nanoseconds.
.visible .entry probe(.param .u64 out, .param .u32 capacity, .param .u64 spin)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
.reg .b64 %d<9>;
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [spin];
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %d3, %r1, 32;
add.s64 %d1, %d1, %d3;
mov.u64 %d4, %globaltimer;
wait:
mov.u64 %d5, %globaltimer;
sub.s64 %d6, %d5, %d4;
setp.le.u64 %p1, %d6, %d2;
@%p1 bra wait;
mov.u32 %r2, %smid;
cvt.u64.u32 %d7, %r2;
cvt.u64.u32 %d8, %r1;
st.global.u64 [%d1], %d7;
st.global.u64 [%d1+8], %d4;
st.global.u64 [%d1+16], %d5;
st.global.u64 [%d1+24], %d8;
ret;
}
.visible .entry long_kernel(.param .u64 unused) { ret; }
.visible .entry quick() { ret; }
)";

struct Program {
  CUlibrary library = nullptr;
  Program() { OK(DRIVER(cuLibraryLoadData, &library, program, nullptr, nullptr, 0, nullptr, nullptr, 0)); }
  ~Program() { OK(DRIVER(cuLibraryUnload, library)); }
  CUfunction operator[](const char* name) const {
    CUkernel kernel = nullptr;
    OK(DRIVER(cuLibraryGetKernel, &kernel, library, name));
    return reinterpret_cast<CUfunction>(kernel);
  }
};

// The SMs that a grid which fills the stream's context runs on.
std::set<std::uint64_t> sms_of(const Program& code, CUstream stream, unsigned blocks) {
  CUdeviceptr memory = 0;
  std::vector<std::uint64_t> records(std::size_t{blocks} * 4);
  OK(DRIVER(cuMemAlloc_v2, &memory, records.size() * 8));
  unsigned long long spin = 100'000;
  void* arguments[] = {&memory, &blocks, &spin};
  OK(DRIVER(cuLaunchKernel, code["probe"], blocks, 1, 1, 1024, 1, 1, 0, stream, arguments, nullptr));
  OK(DRIVER(cuStreamSynchronize, stream));
  OK(DRIVER(cuMemcpyDtoH_v2, records.data(), memory, records.size() * 8));
  OK(DRIVER(cuMemFree_v2, memory));
  std::set<std::uint64_t> seen;
  for (std::size_t i = 0; i < records.size(); i += 4) {
    CHECK(records[i + 2] > records[i + 1]);
    CHECK(records[i + 3] == i / 4);
    seen.insert(records[i]);
  }
  return seen;
}

CUcontext retain_primary() {
  CUcontext context = nullptr;
  OK(DRIVER(cuDevicePrimaryCtxRetain, &context, 0));
  OK(DRIVER(cuCtxPushCurrent_v2, context));
  return context;
}

void release_primary() {
  CUcontext old = nullptr;
  OK(DRIVER(cuCtxPopCurrent_v2, &old));
  OK(DRIVER(cuDevicePrimaryCtxRelease_v2, 0));
}

void functions_appear_with_their_version() {
  start("h200@12.3");
  CHECK(get<void>("cuGreenCtxCreate") == nullptr);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, symbol<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy")(nullptr));
  start("h200@12.4");
  CHECK(get<void>("cuGreenCtxCreate") != nullptr);
  CHECK(get<void>("cuGreenCtxStreamCreate") == nullptr);
  start("h200@12.8");
  CHECK(get<void>("cuGreenCtxGetId") == nullptr);
  CHECK(get<void>("cuStreamGetCtx", 9020) != get<void>("cuStreamGetCtx", 12050));
  CHECK(get<void>("cuEventElapsedTime", 12070) != get<void>("cuEventElapsedTime", 12080));
  start("h200@13.0");
  CHECK(get<void>("cuDevSmResourceSplit") == nullptr);
  CHECK(get<void>("cuNoSuchFunction") == nullptr);
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  OK(symbol<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>("cuGetProcAddress_v2")(
      "cuGreenCtxCreate", &address, 12000, 0, &status));
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT && address == nullptr);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          symbol<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>(
              "cuGetProcAddress_v2")("cuGreenCtxCreate", &address, 13010, 0, &status));
  start("h200@13.1");
  CHECK(get<void>("cuDevSmResourceSplit") != nullptr);
  int version = 0;
  OK(DRIVER(cuDriverGetVersion, &version));
  CHECK(version == 13010);
}

void resources_are_as_recorded() {
  start("h200@13.0");
  CUdevResource rest{};
  const auto groups = split(16, 8, &rest);
  CHECK(groups.size() == 15 && groups[0].sm.smCount == 8 && rest.sm.smCount == 12);
  CHECK(groups[0].sm.minSmPartitionSize == 0 && groups[0].sm.smCoscheduledAlignment == 0);
  const auto again = split(16, 8);
  CHECK(std::memcmp(groups.data(), again.data(), groups.size() * sizeof groups[0]) == 0);
  std::vector<CUdevResource> out(4);
  unsigned count = 4;
  ANSWERS(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
          DRIVER(cuDevSmResourceSplitByCount, out.data(), &count, &groups[0], nullptr, 0, 2));
  CUdevResource edited = groups[0];
  edited._internal_padding[20] ^= 1;
  CUdevResourceDesc descriptor = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, DRIVER(cuDevResourceGenerateDesc, &descriptor, &edited, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, DRIVER(cuDevResourceGenerateDesc, &descriptor, &edited, 0));
  CUdevResource workqueue{};
  ANSWERS(CUDA_ERROR_INVALID_RESOURCE_TYPE,
          DRIVER(cuDeviceGetDevResource, 0, &workqueue, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
  split(66, 2, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING);
  CHECK(rest.type == CU_DEV_RESOURCE_TYPE_INVALID);
}

void kernels_run_on_the_sms_of_their_context() {
  start("h200@13.0");
  retain_primary();
  {
    const Program code;
    const auto groups = split(16, 8);
    const CUgreenCtx several = green({groups[0], groups[3], groups[7]});
    const CUgreenCtx twice = green({groups[0], groups[0]});
    const CUgreenCtx overlapping = green({groups[0], split(1, 16)[0]});
    CUdevResource reported{};
    OK(DRIVER(cuGreenCtxGetDevResource, twice, &reported, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(reported.sm.smCount == 16);
    OK(DRIVER(cuGreenCtxGetDevResource, overlapping, &reported, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(reported.sm.smCount == 24);
    const CUstream streams[] = {stream_on(several), stream_on(twice), stream_on(overlapping)};
    const std::set<std::uint64_t> recorded{0,  1,  6,  7,  14, 15, 16, 17, 22, 23, 30, 31,
                                           32, 33, 38, 39, 46, 47, 48, 49, 54, 55, 62, 63};
    CHECK(sms_of(code, streams[0], 48) == recorded);
    CHECK(sms_of(code, streams[1], 16).size() == 8);
    CHECK(sms_of(code, streams[2], 32).size() == 16);
    OK(DRIVER(cuLaunchCooperativeKernel, code["quick"], 48, 1, 1, 1024, 1, 1, 0, streams[0], nullptr));
    ANSWERS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            DRIVER(cuLaunchCooperativeKernel, code["quick"], 49, 1, 1, 1024, 1, 1, 0, streams[0], nullptr));
    for (const CUstream stream : streams) {
      OK(DRIVER(cuStreamSynchronize, stream));
      OK(DRIVER(cuStreamDestroy_v2, stream));
    }
    for (const CUgreenCtx context : {several, twice, overlapping}) {
      OK(DRIVER(cuGreenCtxDestroy, context));
    }
  }
  release_primary();
  CHECK(contains(text_of("softwareDriverLedger"), "\"live\":[],\"misuse\":[]"));
  CHECK(contains(text_of("softwareDriverLedger"), "\"lost_bytes\":12582912"));
}

void a_stream_after_its_context(const char* spec, CUresult use, CUresult destroy) {
  start(spec);
  const CUgreenCtx context = green(split(1, 8));
  const CUcontext converted = face(context);
  const CUstream stream = stream_on(context);
  OK(DRIVER(cuCtxPushCurrent_v2, converted));
  OK(DRIVER(cuGreenCtxDestroy, context));
  CUcontext current = nullptr;
  OK(DRIVER(cuCtxGetCurrent, &current));
  CHECK(current == converted);
  OK(DRIVER(cuCtxPushCurrent_v2, converted));
  CUdevResource reported{};
  ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, DRIVER(cuCtxGetDevResource, converted, &reported, CU_DEV_RESOURCE_TYPE_SM));
  ANSWERS(use, DRIVER(cuStreamQuery, stream));
  ANSWERS(use, DRIVER(cuStreamSynchronize, stream));
  ANSWERS(destroy, DRIVER(cuStreamDestroy_v2, stream));
  OK(DRIVER(cuCtxPopCurrent_v2, &current));
  OK(DRIVER(cuCtxPopCurrent_v2, &current));
  CHECK(contains(text_of("softwareDriverLedger"), "wrong order"));
}

// What is captured on one stream, and an event of it that outlives the capture.
struct Captured {
  explicit Captured(const Program& kernels) : code(kernels) {
    OK(DRIVER(cuStreamCreate, &origin, CU_STREAM_NON_BLOCKING));
    OK(DRIVER(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING));
    OK(DRIVER(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
    OK(DRIVER(cuStreamBeginCapture_v2, origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(origin));
    OK(DRIVER(cuEventRecord, event, origin));
  }
  ~Captured() {
    if (origin != nullptr) {
      OK(DRIVER(cuStreamDestroy_v2, origin));
    }
    OK(DRIVER(cuStreamDestroy_v2, other));
    OK(DRIVER(cuEventDestroy_v2, event));
  }
  CUresult launch(CUstream stream) const {
    return DRIVER(cuLaunchKernel, code["quick"], 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
  }
  CUstreamCaptureStatus status(CUstream stream) const {
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    OK(DRIVER(cuStreamIsCapturing, stream, &found));
    return found;
  }

  const Program& code;
  CUstream origin = nullptr;
  CUstream other = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
};

void a_capture_is_over_when_it_is_over() {
  start("h200@13.0");
  retain_primary();
  {
    const Program code;
    {
      Captured well(code);
      OK(DRIVER(cuStreamEndCapture, well.origin, &well.graph));
      ANSWERS(CUDA_ERROR_INVALID_VALUE, DRIVER(cuStreamWaitEvent, well.other, well.event, 0));
      CHECK(well.status(well.other) == CU_STREAM_CAPTURE_STATUS_NONE);
      OK(DRIVER(cuGraphDestroy, well.graph));
      OK(well.launch(well.other));
      OK(DRIVER(cuStreamSynchronize, well.other));
    }
    {
      Captured unjoined(code);
      OK(DRIVER(cuStreamWaitEvent, unjoined.other, unjoined.event, 0));
      OK(unjoined.launch(unjoined.other));
      ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, DRIVER(cuStreamEndCapture, unjoined.origin, &unjoined.graph));
      ANSWERS(CUDA_ERROR_INVALID_VALUE, DRIVER(cuStreamWaitEvent, unjoined.other, unjoined.event, 0));
      OK(unjoined.launch(unjoined.other));
      OK(DRIVER(cuStreamSynchronize, unjoined.other));
    }
    {
      // A joined stream may go before the end; one that took part keeps nothing of the capture.
      Captured joined(code);
      CUstream third = nullptr;
      OK(DRIVER(cuStreamCreate, &third, CU_STREAM_NON_BLOCKING));
      OK(DRIVER(cuStreamWaitEvent, third, joined.event, 0));
      OK(joined.launch(third));
      OK(DRIVER(cuEventRecord, joined.event, third));
      OK(DRIVER(cuStreamWaitEvent, joined.origin, joined.event, 0));
      OK(DRIVER(cuStreamDestroy_v2, third));
      CHECK(joined.status(joined.origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
      OK(joined.launch(joined.origin));
      OK(DRIVER(cuStreamEndCapture, joined.origin, &joined.graph));
      std::size_t nodes = 0;
      OK(DRIVER(cuGraphGetNodes, joined.graph, nullptr, &nodes));
      CHECK(nodes == 3);
      OK(DRIVER(cuGraphDestroy, joined.graph));
    }
    {
      // Without its origin a capture cannot be ended: the others are free again.
      Captured lost(code);
      OK(DRIVER(cuStreamWaitEvent, lost.other, lost.event, 0));
      OK(DRIVER(cuStreamDestroy_v2, lost.origin));
      lost.origin = nullptr;
      CHECK(lost.status(lost.other) == CU_STREAM_CAPTURE_STATUS_NONE);
      OK(lost.launch(lost.other));
      OK(DRIVER(cuStreamSynchronize, lost.other));
    }
    {
      // A default stream takes part in no capture, whatever becomes of its context.
      Captured drawn(code);
      const CUgreenCtx context = green(split(1, 8));
      CUcontext old = nullptr;
      OK(DRIVER(cuCtxPushCurrent_v2, face(context)));
      ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, DRIVER(cuStreamWaitEvent, nullptr, drawn.event, 0));
      OK(DRIVER(cuCtxPopCurrent_v2, &old));
      OK(DRIVER(cuGreenCtxDestroy, context));
      ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, DRIVER(cuStreamEndCapture, drawn.origin, &drawn.graph));
    }
    {
      Captured asked(code);
      CUstreamCaptureStatus status{};
      const CUgraphNode* nodes = nullptr;
      const CUgraphEdgeData* edges = nullptr;
      std::size_t count = 0;
      OK(DRIVER(cuStreamGetCaptureInfo_v3, asked.origin, &status, nullptr, nullptr, &nodes, &edges, &count));
      CHECK(count == 1 && nodes != nullptr && edges != nullptr && edges[0].type == 0);
      OK(DRIVER(cuStreamEndCapture, asked.origin, &asked.graph));
      OK(DRIVER(cuGraphDestroy, asked.graph));
    }
  }
  release_primary();
  CHECK(contains(text_of("softwareDriverLedger"), "\"live\":[],\"misuse\":[]"));
}

// As programs poll memory that a device writes: nothing orders the two, which a sanitizer for threads would report.
__attribute__((no_sanitize("thread"))) void poll(void* address, unsigned char value) {
  while (*static_cast<volatile unsigned char*>(address) != value) {
    std::this_thread::yield();
  }
}

// A program that polls memory of its own makes no calls: copies and fills come all the same.
void effects_are_seen_without_a_call() {
  start("h200@13.0");
  retain_primary();
  constexpr std::size_t size = 64;
  void* pinned = nullptr;
  CUdeviceptr managed = 0;
  CUdeviceptr device = 0;
  CUstream stream = nullptr;
  OK(DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING));
  OK(DRIVER(cuMemAllocHost, &pinned, size));
  OK(DRIVER(cuMemAllocManaged, &managed, size, CU_MEM_ATTACH_GLOBAL));
  OK(DRIVER(cuMemAlloc, &device, size));
  OK(DRIVER(cuMemsetD8, device, 7, size));
  OK(DRIVER(cuMemsetD8, managed, 0, size));
  std::memset(pinned, 0, size);
  const auto address = reinterpret_cast<CUdeviceptr>(pinned);
  OK(DRIVER(cuMemcpyDtoHAsync, pinned, device, size, stream));
  poll(pinned, 7);
  OK(DRIVER(cuMemsetD8Async, address, 5, size, stream));
  poll(pinned, 5);
  OK(DRIVER(cuMemcpyDtoDAsync, managed, device, size, stream));
  poll(reinterpret_cast<void*>(managed), 7);
  // The last of many is as near as the first.
  for (unsigned char value = 1; value <= 200; ++value) {
    OK(DRIVER(cuMemsetD8Async, address, value, size, stream));
  }
  poll(pinned, 200);
  OK(DRIVER(cuStreamDestroy, stream));
  OK(DRIVER(cuMemFreeHost, pinned));
  OK(DRIVER(cuMemFree, managed));
  OK(DRIVER(cuMemFree, device));
}

// A host function is called by itself, and while one waits the rest of the machine goes on.
void host_functions_stop_nobody() {
  start("h200@13.0");
  retain_primary();
  {
    const Program code;
    CUstream streams[2] = {};
    for (CUstream& stream : streams) {
      OK(DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    }

    static std::atomic<bool> called;
    called = false;
    OK(DRIVER(cuLaunchKernel, code["quick"], 1, 1, 1, 32, 1, 1, 0, streams[0], nullptr, nullptr));
    OK(DRIVER(
        cuLaunchHostFunc, streams[0],
        [](void*) {
          called = true;
          called.notify_all();
        },
        nullptr));
    called.wait(false);  // no call to the driver

    static std::atomic<bool> go;
    static std::atomic<bool> entered;
    go = entered = false;
    const CUhostFn waits = [](void*) {
      entered = true;
      entered.notify_all();
      go.wait(false);
    };
    OK(DRIVER(cuLaunchHostFunc, streams[0], waits, nullptr));
    std::thread waiting([&] { OK(DRIVER(cuStreamSynchronize, streams[0])); });
    entered.wait(false);
    OK(DRIVER(cuLaunchKernel, code["quick"], 1, 1, 1, 32, 1, 1, 0, streams[1], nullptr, nullptr));
    OK(DRIVER(cuStreamSynchronize, streams[1]));
    // Another host function is called while the first one still waits, and may not wait for the driver itself.
    static CUresult inside;
    static decltype(cuStreamSynchronize)* synchronize;
    static CUstream other;
    synchronize = get<decltype(cuStreamSynchronize)>("cuStreamSynchronize");
    other = streams[0];
    OK(DRIVER(cuLaunchHostFunc, streams[1], [](void*) { inside = synchronize(other); }, nullptr));
    OK(DRIVER(cuStreamSynchronize, streams[1]));
    ANSWERS(CUDA_ERROR_NOT_PERMITTED, inside);
    go = true;
    go.notify_all();
    waiting.join();
    for (const CUstream stream : streams) {
      OK(DRIVER(cuStreamDestroy_v2, stream));
    }
  }
  release_primary();
}

// A call that waits has been overtaken by others when it goes on: by a green context that keeps the primary context
// alive, by another call that frees the same memory.
void calls_look_again_after_they_have_waited() {
  start("h200@13.0");
  retain_primary();
  {
    static std::atomic<bool> go;
    static std::atomic<bool> entered;
    go = entered = false;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    OK(DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    OK(DRIVER(cuMemAlloc_v2, &memory, 4096));
    const CUhostFn waits = [](void*) {
      entered = true;
      entered.notify_all();
      go.wait(false);
    };
    OK(DRIVER(cuLaunchHostFunc, stream, waits, nullptr));
    std::atomic<int> freed{0};
    std::thread resetting([] { ANSWERS(CUDA_ERROR_NOT_PERMITTED, DRIVER(cuDevicePrimaryCtxReset, 0)); });
    const auto frees = [&] { freed += DRIVER(cuMemFree_v2, memory) == CUDA_SUCCESS ? 1 : 0; };
    std::thread freeing[] = {std::thread(frees), std::thread(frees)};
    entered.wait(false);
    // Calls are counted under the lock, which is open again only while they wait.
    const auto are_waiting = [] {
      const std::string calls = text_of("softwareDriverCalls");
      return contains(calls, "\"cuDevicePrimaryCtxReset\":1") && contains(calls, "\"cuMemFree\":2");
    };
    while (!are_waiting()) {
      std::this_thread::yield();
    }
    const CUgreenCtx made = green(split(1, 16));
    const CUstream inside = stream_on(made);
    go = true;
    go.notify_all();
    resetting.join();
    for (std::thread& one : freeing) {
      one.join();
    }
    CHECK(freed == 1);
    CUcontext context = nullptr;
    CUgreenCtx found = nullptr;
    OK(symbol<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx_v2")(inside, &context, &found));
    CHECK(found == made);
    for (const CUstream one : {stream, inside}) {
      OK(DRIVER(cuStreamDestroy_v2, one));
    }
    OK(DRIVER(cuGreenCtxDestroy, made));
  }
  release_primary();
}

// A caller that runs far ahead of the device is made to wait, whatever it queues.
void queues_do_not_grow_without_end() {
  start("h200@13.0");
  retain_primary();
  {
    const Program code;
    const softwareDriverKernelCost long_kernel{1'500'000, 0, -1, 0, 0, 0, 0};
    symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")("long_kernel", nullptr, nullptr, &long_kernel,
                                                                   nullptr, 0);
    CUstream stream = nullptr;
    CUevent event = nullptr;
    OK(DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    OK(DRIVER(cuEventCreate, &event, CU_EVENT_DEFAULT));
    std::uint64_t unused = 0;
    void* arguments[] = {&unused};
    const auto time = symbol<decltype(softwareDriverTime)>("softwareDriverTime");
    const std::uint64_t before = time();
    OK(DRIVER(cuLaunchKernel, code["long_kernel"], 1, 1, 1, 1024, 1, 1, 0, stream, arguments, nullptr));
    const auto record = get<decltype(cuEventRecord)>("cuEventRecord");
    for (int i = 0; i < 1000; ++i) {
      OK(record(event, stream));
    }
    CHECK(time() - before < 1'000'000);
    for (int i = 0; i < 1000; ++i) {
      OK(record(event, stream));
    }
    CHECK(time() - before > 1'500'000);
    OK(DRIVER(cuEventDestroy_v2, event));
    OK(DRIVER(cuStreamDestroy_v2, stream));
  }
  release_primary();
}

// The virtual time that a short kernel takes next to a kernel that fills every SM it may use.
float next_to_long_work(bool partitioned, bool apart, int priority) {
  start("h200@13.0");
  retain_primary();
  float milliseconds = 0;
  {
    const Program code;
    const softwareDriverKernelCost long_kernel{1'500'000, 0, -1, 0, 0, 0, 0};
    const softwareDriverKernelCost quick{5'000, 0, -1, 0, 0, 0, 0};
    symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")("long_kernel", nullptr, nullptr, &long_kernel,
                                                                   nullptr, 0);
    symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")("quick", nullptr, nullptr, &quick, nullptr, 0);
    CUdevResource rest{};
    const auto groups = split(1, 16, &rest);
    CUgreenCtx small = nullptr;
    CUgreenCtx complement = nullptr;
    CUstream quick_stream = nullptr;
    CUstream long_stream = nullptr;
    if (partitioned) {
      small = green(groups);
      quick_stream = stream_on(small);
    } else {
      OK(DRIVER(cuStreamCreateWithPriority, &quick_stream, CU_STREAM_NON_BLOCKING, priority));
    }
    if (apart) {
      complement = green({rest});
      long_stream = stream_on(complement);
    } else {
      OK(DRIVER(cuStreamCreate, &long_stream, CU_STREAM_NON_BLOCKING));
    }
    CUevent before = nullptr;
    CUevent after = nullptr;
    OK(DRIVER(cuEventCreate, &before, CU_EVENT_DEFAULT));
    OK(DRIVER(cuEventCreate, &after, CU_EVENT_DEFAULT));
    std::uint64_t unused = 0;
    void* arguments[] = {&unused};
    OK(DRIVER(cuLaunchKernel, code["long_kernel"], 4 * 132, 1, 1, 1024, 1, 1, 0, long_stream, arguments, nullptr));
    OK(DRIVER(cuEventRecord, before, quick_stream));
    OK(DRIVER(cuLaunchKernel, code["quick"], 16, 1, 1, 256, 1, 1, 0, quick_stream, nullptr, nullptr));
    OK(DRIVER(cuEventRecord, after, quick_stream));
    ANSWERS(CUDA_ERROR_NOT_READY, DRIVER(cuStreamQuery, long_stream));
    OK(DRIVER(cuEventSynchronize, after));
    OK(DRIVER(cuEventElapsedTime_v2, &milliseconds, before, after));
    OK(DRIVER(cuStreamSynchronize, long_stream));
    OK(DRIVER(cuEventDestroy_v2, before));
    OK(DRIVER(cuEventDestroy_v2, after));
    OK(DRIVER(cuStreamDestroy_v2, quick_stream));
    OK(DRIVER(cuStreamDestroy_v2, long_stream));
    if (small != nullptr) {
      OK(DRIVER(cuGreenCtxDestroy, small));
    }
    if (complement != nullptr) {
      OK(DRIVER(cuGreenCtxDestroy, complement));
    }
  }
  release_primary();
  CHECK(contains(text_of("softwareDriverLedger"), "\"live\":[],\"misuse\":[]"));
  return milliseconds;
}

void only_a_fence_protects() {
  CHECK(next_to_long_work(false, false, 0) > 1);
  CHECK(next_to_long_work(false, false, -5) > 1);
  CHECK(next_to_long_work(true, false, 0) > 1);
  CHECK(next_to_long_work(true, true, 0) < 0.1F);
}

void a_captured_kernel_keeps_its_context() {
  start("h200@13.0");
  retain_primary();
  {
    const Program code;
    const auto groups = split(2, 8);
    const CUgreenCtx contexts[] = {green({groups[0]}), green({groups[1]})};
    const CUstream streams[] = {stream_on(contexts[0]), stream_on(contexts[1])};
    CUdeviceptr memory = 0;
    OK(DRIVER(cuMemAlloc_v2, &memory, 8 * 32));
    unsigned capacity = 8;
    unsigned long long spin = 1'000;
    void* arguments[] = {&memory, &capacity, &spin};
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    OK(DRIVER(cuStreamBeginCapture_v2, streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(DRIVER(cuLaunchKernel, code["probe"], 8, 1, 1, 64, 1, 1, 0, streams[0], arguments, nullptr));
    OK(DRIVER(cuStreamEndCapture, streams[0], &graph));
    CUgraphNode node = nullptr;
    std::size_t count = 1;
    OK(DRIVER(cuGraphGetNodes, graph, &node, &count));
    CUDA_KERNEL_NODE_PARAMS params{};
    OK(DRIVER(cuGraphKernelNodeGetParams_v2, node, &params));
    CHECK(params.ctx == face(contexts[0]));
    OK(DRIVER(cuGraphInstantiateWithFlags, &exec, graph, 0));
    OK(DRIVER(cuGraphLaunch, exec, streams[1]));
    OK(DRIVER(cuStreamSynchronize, streams[1]));
    std::uint64_t records[32];
    OK(DRIVER(cuMemcpyDtoH_v2, records, memory, sizeof records));
    const std::set<std::uint64_t> recorded{0, 1, 16, 17, 32, 33, 48, 49};
    for (int i = 0; i < 8; ++i) {
      CHECK(recorded.contains(records[4 * i]));
    }
    // A whole-context event meets a capture: refused, and the capture is lost.
    CUevent event = nullptr;
    OK(DRIVER(cuEventCreate, &event, CU_EVENT_DEFAULT));
    OK(DRIVER(cuStreamBeginCapture_v2, streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, DRIVER(cuGreenCtxRecordEvent, contexts[0], event));
    CUgraph lost = nullptr;
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, DRIVER(cuStreamEndCapture, streams[0], &lost));
    OK(DRIVER(cuGreenCtxRecordEvent, contexts[0], event));
    OK(DRIVER(cuGreenCtxWaitEvent, contexts[1], event));
    OK(DRIVER(cuEventDestroy_v2, event));
    OK(DRIVER(cuGraphExecDestroy, exec));
    OK(DRIVER(cuGraphDestroy, graph));
    OK(DRIVER(cuMemFree_v2, memory));
    for (const CUstream stream : streams) {
      OK(DRIVER(cuStreamDestroy_v2, stream));
    }
    for (const CUgreenCtx context : contexts) {
      OK(DRIVER(cuGreenCtxDestroy, context));
    }
  }
  release_primary();
  CHECK(contains(text_of("softwareDriverLedger"), "\"live\":[],\"misuse\":[]"));
}

void structured_splits_and_workqueues() {
  start("h200@13.1");
  CUdevResource all{};
  OK(DRIVER(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM));
  CU_DEV_SM_RESOURCE_GROUP_PARAMS params[3] = {};
  params[0].smCount = 8;
  params[1].smCount = 16;
  params[2].smCount = 24;
  std::vector<CUdevResource> groups(3);
  CUdevResource rest{};
  OK(DRIVER(cuDevSmResourceSplit, groups.data(), 3, &all, &rest, 0, params));
  CHECK(groups[2].sm.smCount == 24 && rest.sm.smCount == 84);
  CUdevResource queue{};
  OK(DRIVER(cuDeviceGetDevResource, 0, &queue, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
  queue.wqConfig.sharingScope = CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED;
  queue.wqConfig.wqConcurrencyLimit = 3;
  const CUgreenCtx context = green({groups[0], queue});
  CUdevResource reported{};
  OK(DRIVER(cuGreenCtxGetDevResource, context, &reported, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
  CHECK(reported.wqConfig.wqConcurrencyLimit == 3);
  CHECK(reported.wqConfig.sharingScope == CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED);
  OK(DRIVER(cuGreenCtxGetDevResource, context, &reported, CU_DEV_RESOURCE_TYPE_WORKQUEUE));
  OK(DRIVER(cuGreenCtxDestroy, green({groups[1], reported})));
  CUdevResource both[] = {queue, queue};
  CUdevResourceDesc descriptor = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, DRIVER(cuDevResourceGenerateDesc, &descriptor, both, 2));
  OK(DRIVER(cuGreenCtxDestroy, context));
  ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, DRIVER(cuGreenCtxDestroy, context));
  CHECK(contains(text_of("softwareDriverLedger"), "double destroy"));
}

void faults_are_answered() {
  start("h200@13.0");
  symbol<decltype(softwareDriverFailNth)>("softwareDriverFailNth")("cuGreenCtxCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  CUdevResourceDesc descriptor = nullptr;
  auto groups = split(1, 8);
  OK(DRIVER(cuDevResourceGenerateDesc, &descriptor, groups.data(), 1));
  CUgreenCtx first = nullptr;
  CUgreenCtx second = nullptr;
  OK(DRIVER(cuGreenCtxCreate, &first, descriptor, 0, 1));
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, DRIVER(cuGreenCtxCreate, &second, descriptor, 0, 1));
  OK(DRIVER(cuGreenCtxCreate, &second, descriptor, 0, 1));
  symbol<decltype(softwareDriverLimitContexts)>("softwareDriverLimitContexts")(2);
  CUgreenCtx third = nullptr;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, DRIVER(cuGreenCtxCreate, &third, descriptor, 0, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, DRIVER(cuGreenCtxCreate, &third, descriptor, 0, 0));
  OK(DRIVER(cuGreenCtxDestroy, first));
  OK(DRIVER(cuGreenCtxDestroy, second));
}

void wild_handles_answer_errors() {
  start("h200@13.4");
  const CUgreenCtx old = green(split(1, 8));
  start("h200@13.4");
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, DRIVER(cuGreenCtxDestroy, old));
  for (std::uint64_t seed = 1; seed < 20000; ++seed) {
    const std::uint64_t value = seed * 0x9e3779b97f4a7c15 >> (seed % 60);
    void* wild = reinterpret_cast<void*>(value < 3 ? 3 : value);
    CHECK(DRIVER(cuStreamQuery, static_cast<CUstream>(wild)) != CUDA_SUCCESS);
    CHECK(DRIVER(cuEventQuery, static_cast<CUevent>(wild)) != CUDA_SUCCESS);
    CHECK(DRIVER(cuCtxPushCurrent_v2, static_cast<CUcontext>(wild)) != CUDA_SUCCESS);
    CHECK(DRIVER(cuMemFree_v2, value + 1) != CUDA_SUCCESS);
  }
}

void contexts_are_made_and_destroyed_fast() {
  start("h200@13.0,memory=70000000000000");
  auto groups = split(1, 8);
  CUdevResourceDesc descriptor = nullptr;
  OK(DRIVER(cuDevResourceGenerateDesc, &descriptor, groups.data(), 1));
  CUcontext primary = nullptr;
  OK(DRIVER(cuDevicePrimaryCtxRetain, &primary, 0));
  auto* const create = get<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate");
  auto* const destroy = get<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100'000; ++i) {
    CUgreenCtx context = nullptr;
    OK(create(&context, descriptor, 0, 1));
    OK(destroy(context));
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::printf("100000 pairs of creating and destroying a context (simulated): %.2f s\n", taken.count());
  // The promise is 2 s; sanitizers and busy machines get more.
  CHECK(taken.count() < 20);
  OK(DRIVER(cuDevicePrimaryCtxRelease_v2, 0));
}

void threads_do_not_disturb_each_other() {
  start("h200@13.1,devices=2");
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 16; ++number) {
    threads.emplace_back([&wrong] {
      for (int round = 0; round < 30; ++round) {
        const CUgreenCtx context = green(split(2, 8));
        const CUstream stream = stream_on(context);
        CUcontext current = nullptr;
        CUevent event = nullptr;
        DRIVER(cuCtxPushCurrent_v2, face(context));
        DRIVER(cuEventCreate, &event, CU_EVENT_DEFAULT);
        CUdeviceptr memory = 0;
        int value = 0;
        DRIVER(cuMemAlloc_v2, &memory, 64);
        DRIVER(cuMemsetD32Async, memory, 77, 16, stream);
        DRIVER(cuMemcpyDtoHAsync_v2, &value, memory, sizeof value, stream);
        DRIVER(cuEventRecord, event, stream);
        while (DRIVER(cuEventQuery, event) == CUDA_ERROR_NOT_READY) {
        }
        if (value != 77) {
          ++wrong;
        }
        DRIVER(cuMemFree_v2, memory);
        DRIVER(cuEventDestroy_v2, event);
        DRIVER(cuCtxPopCurrent_v2, &current);
        DRIVER(cuStreamDestroy_v2, stream);
        DRIVER(cuGreenCtxDestroy, context);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
  CHECK(contains(text_of("softwareDriverLedger"), "\"live\":[],\"misuse\":[]"));
}

}  // namespace

int main() {
  if (!software_driver::test::open_library()) {
    return 2;
  }
  try {
    functions_appear_with_their_version();
    resources_are_as_recorded();
    kernels_run_on_the_sms_of_their_context();
    a_stream_after_its_context("h200@13.0", CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    a_stream_after_its_context("h200@13.1", CUDA_ERROR_STREAM_DETACHED, CUDA_SUCCESS);
    only_a_fence_protects();
    a_captured_kernel_keeps_its_context();
    structured_splits_and_workqueues();
    a_capture_is_over_when_it_is_over();
    effects_are_seen_without_a_call();
    host_functions_stop_nobody();
    calls_look_again_after_they_have_waited();
    queues_do_not_grow_without_end();
    faults_are_answered();
    wild_handles_answer_errors();
    contexts_are_made_and_destroyed_fast();
    threads_do_not_disturb_each_other();
  } catch (const std::exception& error) {
    fail(__FILE__, __LINE__, error.what());
  }
  return software_driver::test::summary("sim_test (simulated)");
}
