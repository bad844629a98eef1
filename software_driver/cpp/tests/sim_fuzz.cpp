// Random sequences of driver calls on several threads, with handles that are alive, gone or never were: whatever a
// program does, the software driver answers, and no call succeeds whose arguments the contract of its function excludes
// (abi/contract.hpp), or inside a host function. Made for the builds with sanitizers.
//   sim_fuzz [--seed N] [--threads N] [--calls N | --seconds N]
#include <cuda.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "abi/contract.hpp"
#include "tests/sim_library.hpp"

extern "C" __attribute__((weak)) void __sanitizer_print_stack_trace();

namespace {

using software_driver::Fn;
using software_driver::test::symbol;

constexpr int newest_version = 99990;

std::atomic<std::uint64_t> calls{0};
std::atomic<std::uint64_t> successes{0};

[[noreturn]] void broken(const char* function, const char* how) {
  std::fprintf(stderr, "sim_fuzz: %s succeeded %s\n", function, how);
  std::abort();
}

// A thread's call that has not returned.
struct InFlight {
  std::atomic<const char*> name{nullptr};
  std::array<std::atomic<std::uint64_t>, 16> arguments{};
  std::atomic<std::size_t> count{0};
};
std::array<InFlight, 64> in_flight;

InFlight& own_call() {
  static std::atomic<std::size_t> threads{0};
  thread_local InFlight& own = in_flight[threads++ % in_flight.size()];
  return own;
}

// Evidence of a process that goes no further: the calls that it is in, and where each of its threads is.
void print_evidence() {
  for (const InFlight& call : in_flight) {
    if (const char* const name = call.name) {
      std::fprintf(stderr, "sim_fuzz: in %s(", name);
      for (std::size_t i = 0; i < call.count; ++i) {
        std::fprintf(stderr, i == 0 ? "%#llx" : ", %#llx", static_cast<unsigned long long>(call.arguments[i]));
      }
      std::fprintf(stderr, ")\n");
    }
  }
  static std::atomic<unsigned> printed{0};
  std::signal(SIGUSR1, [](int) {
    if (__sanitizer_print_stack_trace != nullptr) {
      __sanitizer_print_stack_trace();
    }
    ++printed;
  });
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const long thread = std::stol(task.path().filename());
    std::fprintf(stderr, "sim_fuzz: thread %ld\n", thread);
    const unsigned before = printed;
    syscall(SYS_tgkill, getpid(), thread, SIGUSR1);
    for (int i = 0; i < 1000 && printed == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// Counted, and compared with the contract of the newest version: what an older one refuses, no call gets.
void begin_call(const char* name, const std::uint64_t* numbers, std::size_t count) {
  InFlight& own = own_call();
  std::copy_n(numbers, count, own.arguments.begin());
  own.count = count;
  own.name = name;
}
CUresult end_call(const char* name, Fn function, const software_driver::Arguments& arguments, CUresult result) {
  own_call().name = nullptr;
  calls.fetch_add(1, std::memory_order_relaxed);
  if (result == CUDA_SUCCESS) {
    successes.fetch_add(1, std::memory_order_relaxed);
    if (!software_driver::fits(function, arguments, newest_version)) {
      broken(name, "with arguments that its contract excludes");
    }
  }
  return result;
}
template <class... Given>
CUresult answer_given(const char* name, Fn function, CUresult (*driver)(Given...), Given... given) {
  const std::uint64_t numbers[]{software_driver::number_of_argument(given)..., 0};
  begin_call(name, numbers, sizeof...(Given));
  const CUresult result = driver(given...);
  return end_call(name, function,
                  {numbers, software_driver::needed_of(function, {software_driver::is_needed<Given>...})}, result);
}
template <class... Given, class... Arguments>
CUresult answer(const char* name, Fn function, CUresult (*driver)(Given...), Arguments... arguments) {
  return answer_given<Given...>(name, function, driver, static_cast<Given>(arguments)...);
}

// The function of this very name, whatever the header makes of it.
#define DRIVER(name, ...)                                               \
  [&] {                                                                 \
    static auto* const driver_ = symbol<decltype(::name)>(#name);       \
    return answer(#name, Fn::name, driver_ __VA_OPT__(, ) __VA_ARGS__); \
  }()

constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[4096];
.visible .const .align 4 .u32 answer = 42;
.visible .global .attribute(.managed) .align 4 .u32 shared;
.visible .entry plain() { ret; }
.visible .entry with_arguments(.param .u64 a, .param .u32 b) { ret; }
.visible .entry cuda_gctx_probe(.param .u64 out, .param .u32 capacity, .param .u64 spin) { ret; }
)";

// Handles that were given out. Few are kept, so that the same one is met again, destroyed by somebody else meanwhile.
template <class Handle>
class Handles {
 public:
  void add(Handle handle) {
    const std::scoped_lock lock(mutex_);
    slots_[next_++ % slots_.size()] = handle;
  }
  Handle get(std::mt19937& random) {
    const std::scoped_lock lock(mutex_);
    if (random() % 64 == 0) {
      return reinterpret_cast<Handle>(std::uint64_t{random()} << 6);
    }
    return slots_[random() % slots_.size()];
  }

 private:
  std::mutex mutex_;
  std::array<Handle, 12> slots_{};
  std::size_t next_ = 0;
};

Handles<CUcontext> contexts;
Handles<CUgreenCtx> greens;
Handles<CUdevResourceDesc> descriptors;
Handles<CUstream> streams;
Handles<CUevent> events;
Handles<CUgraph> graphs;
Handles<CUgraphNode> nodes;
Handles<CUgraphExec> execs;
Handles<CUmodule> modules;
Handles<CUlibrary> libraries;
Handles<CUfunction> functions;
Handles<CUmemoryPool> pools;
Handles<void*> addresses;  // of the device
Handles<void*> ranges;     // of reserved addresses
Handles<void*> memory_handles;
Handles<CUuserObject> objects;
Handles<void*> conditions;
// Held while graphs end: the list of a condition's bodies goes with its node.
std::mutex ends_of_graphs;
std::mutex resource_mutex;
std::vector<CUdevResource> resources;

alignas(64) unsigned char host_memory[4][4096];
// Words that streams wait for: nothing else is written there than what ends the waits.
alignas(4096) std::uint32_t words[1024];

void call_back() {
  int number = 0;
  if (DRIVER(cuDeviceGetCount, &number) == CUDA_SUCCESS) {
    broken("cuDeviceGetCount", "inside a host function");
  }
}

class Fuzzer {
 public:
  Fuzzer(std::uint64_t seed, unsigned thread) : random_(static_cast<std::uint32_t>(seed * 1000003 + thread)) {
    buffer_ = host_memory[thread % 4];
  }

  void step() {
    switch (pick(44)) {
      case 0:
      case 1:
        return make_green();
      case 2:
        return current();
      case 3:
      case 4:
        return make_stream();
      case 5:
        DRIVER(cuStreamDestroy_v2, stream());
        return;
      case 6:
        if (CUevent event = nullptr; DRIVER(cuEventCreate, &event, pick(4)) == CUDA_SUCCESS) {
          events.add(event);
        }
        return;
      case 7:
        DRIVER(cuEventDestroy_v2, events.get(random_));
        return;
      case 8:
      case 9:
        DRIVER(cuEventRecordWithFlags, events.get(random_), stream(), pick(2));
        return;
      case 10:
      case 11:
        DRIVER(cuStreamWaitEvent, stream(), events.get(random_), pick(2));
        return;
      case 12:
        return whole_context();
      case 13:
      case 14:
        DRIVER(cuStreamBeginCapture_v2, stream(), static_cast<CUstreamCaptureMode>(pick(4)));
        return;
      case 15:
      case 16:
        if (CUgraph graph = nullptr; DRIVER(cuStreamEndCapture, stream(), &graph) == CUDA_SUCCESS) {
          graphs.add(graph);
        }
        return;
      case 17:
        return capture_information();
      case 18:
      case 19:
      case 20:
      case 21:
        return launch();
      case 22:
        DRIVER(cuLaunchHostFunc, stream(), +[](void*) { call_back(); }, nullptr);
        return;
      case 23:
      case 24:
        return graph_calls();
      case 25:
      case 26:
        return memory();
      case 27:
        return pool_calls();
      case 28:
        return modules_and_functions();
      case 29:
        return wait();
      case 30:
        return questions();
      case 31:
        return occupancy();
      case 32:
        return rare();
      case 33:
      case 34:
        return add_nodes();
      case 35:
        return change_graphs();
      case 36:
        return change_nodes();
      case 37:
        return capture_into();
      case 38:
        return user_objects();
      case 39:
        return managed_memory();
      case 40:
        return box_copy();
      case 41:
        return virtual_memory();
      case 42:
        return words_and_processes();
      default:
        DRIVER(cuGreenCtxDestroy, greens.get(random_));
        return;
    }
  }

 private:
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }

  CUstream stream() {
    switch (pick(16)) {
      case 0:
        return nullptr;
      case 1:
        return CU_STREAM_LEGACY;
      case 2:
        return CU_STREAM_PER_THREAD;
      default:
        return streams.get(random_);
    }
  }

  CUdevResource resource() {
    const std::scoped_lock lock(resource_mutex);
    CUdevResource found{};
    if (!resources.empty()) {
      found = resources[pick(static_cast<unsigned>(resources.size()))];
    }
    if (pick(64) == 0) {
      reinterpret_cast<unsigned char*>(&found)[pick(sizeof found)] ^= 1;
    }
    return found;
  }

  void keep(const CUdevResource& found) {
    const std::scoped_lock lock(resource_mutex);
    if (resources.size() < 24) {
      resources.push_back(found);
    } else {
      resources[pick(24)] = found;
    }
  }

  void make_green() {
    std::array<CUdevResource, 4> made{};
    CUdevResource rest{};
    CUdevResource input{};
    switch (pick(8)) {
      case 0:
        if (DRIVER(cuDeviceGetDevResource, static_cast<int>(pick(2)), &input,
                   static_cast<CUdevResourceType>(pick(2) == 0 ? 1 : 1000 * pick(11))) == CUDA_SUCCESS) {
          keep(input);
        }
        return;
      case 1:
        if (DRIVER(cuGreenCtxGetDevResource, greens.get(random_), &input, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
          keep(input);
        }
        return;
      case 2: {
        input = resource();
        unsigned groups = pick(5);
        if (DRIVER(cuDevSmResourceSplitByCount, made.data(), &groups, &input, &rest, pick(4), pick(40)) ==
            CUDA_SUCCESS) {
          for (unsigned i = 0; i < groups; ++i) {
            keep(made[i]);
          }
          keep(rest);
        }
        return;
      }
      case 3: {
        input = resource();
        std::array<CU_DEV_SM_RESOURCE_GROUP_PARAMS, 4> wanted{};
        const unsigned groups = pick(5);
        for (auto& one : wanted) {
          one = {pick(40), pick(9), pick(9), pick(4), pick(3), {}};
        }
        if (DRIVER(cuDevSmResourceSplit, pick(4) == 0 ? nullptr : made.data(), groups, &input, &rest, pick(20) / 19,
                   wanted.data()) == CUDA_SUCCESS) {
          for (unsigned i = 0; i < groups; ++i) {
            keep(made[i]);
          }
        }
        return;
      }
      case 4: {
        CUdevResourceDesc descriptor = nullptr;
        const unsigned number = pick(4);
        for (unsigned i = 0; i < number; ++i) {
          made[i] = resource();
        }
        if (DRIVER(cuDevResourceGenerateDesc, &descriptor, made.data(), number) == CUDA_SUCCESS) {
          descriptors.add(descriptor);
        }
        return;
      }
      default: {
        CUgreenCtx green = nullptr;
        CUcontext context = nullptr;
        if (DRIVER(cuGreenCtxCreate, &green, descriptors.get(random_), static_cast<int>(pick(20) / 19),
                   pick(20) == 0 ? pick(3) : 1) != CUDA_SUCCESS) {
          return;
        }
        greens.add(green);
        if (DRIVER(cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS) {
          contexts.add(context);
        }
      }
    }
  }

  void current() {
    CUcontext context = nullptr;
    switch (pick(8)) {
      case 0:
        if (DRIVER(cuDevicePrimaryCtxRetain, &context, static_cast<int>(pick(2))) == CUDA_SUCCESS) {
          contexts.add(context);
        }
        return;
      case 1:
        if (pick(8) == 0) {
          DRIVER(cuDevicePrimaryCtxRelease_v2, static_cast<int>(pick(2)));
        }
        return;
      case 2:
        DRIVER(cuCtxPopCurrent_v2, &context);
        return;
      case 3:
        if (DRIVER(cuCtxCreate_v4, &context, nullptr, pick(4), 0) == CUDA_SUCCESS) {
          contexts.add(context);
        }
        return;
      case 4:
        DRIVER(cuCtxDestroy_v2, contexts.get(random_));
        return;
      case 5:
        if (pick(32) == 0) {
          DRIVER(cuDevicePrimaryCtxReset_v2, 0);
        }
        return;
      default:
        DRIVER(cuCtxSetCurrent, contexts.get(random_));
    }
  }

  void make_stream() {
    CUstream made = nullptr;
    const int priority = static_cast<int>(pick(9)) - 7;
    const CUresult result = pick(2) == 0 ? DRIVER(cuGreenCtxStreamCreate, &made, greens.get(random_), 1, priority)
                                         : DRIVER(cuStreamCreateWithPriority, &made, pick(2), priority);
    if (result == CUDA_SUCCESS) {
      streams.add(made);
    }
  }

  void whole_context() {
    switch (pick(4)) {
      case 0:
        DRIVER(cuCtxRecordEvent, contexts.get(random_), events.get(random_));
        return;
      case 1:
        DRIVER(cuCtxWaitEvent, contexts.get(random_), events.get(random_));
        return;
      case 2:
        DRIVER(cuGreenCtxRecordEvent, greens.get(random_), events.get(random_));
        return;
      default:
        DRIVER(cuGreenCtxWaitEvent, greens.get(random_), events.get(random_));
    }
  }

  void capture_information() {
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    const CUgraphNode* tail = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t number = 0;
    if (DRIVER(cuStreamGetCaptureInfo_v3, stream(), &status, &id, &graph, &tail, &edges, &number) == CUDA_SUCCESS &&
        status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      graphs.add(graph);
      for (std::size_t i = 0; i < number; ++i) {
        nodes.add(tail[i]);
      }
      for (std::size_t i = 0; i < number; ++i) {
        kept_ += edges[i].type;
      }
    }
    CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(pick(3));
    DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
  }

  void launch() {
    CUlaunchAttribute attribute{};
    CUlaunchConfig config{};
    config.gridDimX = pick(50) == 0 ? 0x7fffffff : 1 + pick(300);
    config.gridDimY = config.gridDimZ = pick(30) == 0 ? pick(3) : 1;
    config.blockDimX = pick(30) == 0 ? pick(2000) : 32 * (1 + pick(32));
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = pick(8) == 0 ? pick(300'000) : 0;
    config.hStream = stream();
    config.attrs = &attribute;
    config.numAttrs = 1;
    switch (pick(4)) {
      case 0:
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = {1u << pick(6), 1, 1};
        break;
      case 1:
        attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
        break;
      case 2:
        attribute.id = static_cast<CUlaunchAttributeID>(pick(20));
        break;
      default:
        config.numAttrs = 0;
    }
    std::uint64_t address = reinterpret_cast<std::uint64_t>(addresses.get(random_));
    unsigned capacity = pick(2);
    std::uint64_t spin = pick(1000);
    void* arguments[] = {&address, &capacity, &spin};
    DRIVER(cuLaunchKernelEx, &config, functions.get(random_), arguments, nullptr);
  }

  void graph_calls() {
    const CUgraph graph = graphs.get(random_);
    switch (pick(7)) {
      case 0:
        if (CUgraphExec exec = nullptr; DRIVER(cuGraphInstantiateWithFlags, &exec, graph, 0) == CUDA_SUCCESS) {
          execs.add(exec);
        }
        return;
      case 1:
        end_graph([&] { DRIVER(cuGraphDestroy, graph); });
        return;
      case 2:
        DRIVER(cuGraphExecDestroy, execs.get(random_));
        return;
      case 3: {
        std::array<CUgraphNode, 8> found{};
        std::size_t number = found.size();
        if (DRIVER(cuGraphGetNodes, graph, found.data(), &number) == CUDA_SUCCESS) {
          for (std::size_t i = 0; i < number; ++i) {
            nodes.add(found[i]);
          }
        }
        return;
      }
      case 4: {
        CUgraphNodeType type{};
        CUDA_KERNEL_NODE_PARAMS parameters{};
        DRIVER(cuGraphNodeGetType, nodes.get(random_), &type);
        DRIVER(cuGraphKernelNodeGetParams_v2, nodes.get(random_), &parameters);
        return;
      }
      default:
        DRIVER(cuGraphLaunch, execs.get(random_), stream());
    }
  }

  // A graph, sometimes the one inside a node.
  CUgraph graph() {
    CUgraph inner = nullptr;
    if (pick(6) == 0 && DRIVER(cuGraphChildGraphNodeGetGraph, nodes.get(random_), &inner) == CUDA_SUCCESS) {
      return inner;
    }
    return graphs.get(random_);
  }

  std::array<CUgraphNode, 3> some_nodes(CUgraph graph) {
    std::array<CUgraphNode, 3> found{nodes.get(random_), nodes.get(random_), nodes.get(random_)};
    std::size_t number = found.size();
    // Mostly of the graph, since others are refused.
    if (pick(4) != 0) {
      DRIVER(cuGraphGetNodes, graph, found.data(), &number);
    }
    return found;
  }

  CUDA_MEMCPY3D any_copy() {
    CUDA_MEMCPY3D copy{};
    const auto side = [&](CUmemorytype& type, CUdeviceptr& device, std::size_t& pitch, std::size_t& height) {
      type = static_cast<CUmemorytype>(1 + pick(4));
      device = address();
      pitch = pick(2) * 64;
      height = pick(2) * 8;
    };
    side(copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight);
    side(copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight);
    // Unknown addresses are the caller's own memory, which a copy may reach: only memory of this program is named so.
    copy.srcHost = copy.dstHost = buffer_;
    if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED) {
      copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    }
    if (copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
      copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    }
    copy.WidthInBytes = pick(64);
    copy.Height = pick(8);
    copy.Depth = pick(4);
    copy.srcXInBytes = pick(8) == 0 ? pick(64) : 0;
    copy.dstZ = pick(8) == 0 ? pick(4) : 0;
    return copy;
  }

  void box_copy() {
    const CUDA_MEMCPY3D copy = any_copy();
    DRIVER(cuMemcpy3DAsync_v2, &copy, stream());
  }

  CUgraphNodeParams any_parameters(CUgraphNodeType type) {
    CUgraphNodeParams parameters{};
    static std::uint64_t argument_values[3] = {0, 0, 0};
    static void* argument_list[] = {&argument_values[0], &argument_values[1], &argument_values[2]};
    parameters.type = type;
    switch (parameters.type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        parameters.kernel.func = functions.get(random_);
        parameters.kernel.gridDimX = 1 + pick(40);
        parameters.kernel.gridDimY = parameters.kernel.gridDimZ = 1;
        parameters.kernel.blockDimX = 32 * (1 + pick(32));
        parameters.kernel.blockDimY = parameters.kernel.blockDimZ = 1;
        parameters.kernel.kernelParams = argument_list;
        parameters.kernel.ctx = pick(2) == 0 ? nullptr : contexts.get(random_);
        break;
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        parameters.memcpy.copyCtx = pick(2) == 0 ? nullptr : contexts.get(random_);
        parameters.memcpy.copyParams = any_copy();
        break;
      case CU_GRAPH_NODE_TYPE_MEMSET:
        parameters.memset = {address(), pick(200), pick(300), 1u << pick(3), pick(100), pick(4), nullptr};
        break;
      case CU_GRAPH_NODE_TYPE_HOST:
        parameters.host.fn = [](void*) { calls.fetch_add(0); };
        break;
      case CU_GRAPH_NODE_TYPE_GRAPH:
        parameters.graph = {graphs.get(random_), static_cast<CUgraphChildGraphNodeOwnership>(pick(3))};
        break;
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        parameters.eventWait.event = events.get(random_);
        break;
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        parameters.eventRecord.event = events.get(random_);
        break;
      case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        parameters.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        parameters.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(pick(3))}};
        parameters.alloc.bytesize = pick(4096);
        break;
      case CU_GRAPH_NODE_TYPE_MEM_FREE:
        parameters.free.dptr = address();
        break;
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        parameters.conditional.handle = reinterpret_cast<std::uint64_t>(conditions.get(random_));
        parameters.conditional.type = static_cast<CUgraphConditionalNodeType>(pick(4));
        parameters.conditional.size = 1 + pick(3);
        break;
      default:
        break;
    }
    return parameters;
  }

  void add_nodes() {
    CUgraph made = nullptr;
    CUgraphNode node = nullptr;
    CUgraphConditionalHandle condition = 0;
    switch (pick(6)) {
      case 0:
        if (DRIVER(cuGraphCreate, &made, 0) == CUDA_SUCCESS) {
          graphs.add(made);
        }
        return;
      case 1:
        if (DRIVER(cuGraphConditionalHandleCreate, &condition, graph(), nullptr, pick(3), pick(2)) == CUDA_SUCCESS) {
          conditions.add(reinterpret_cast<void*>(condition));
        }
        return;
      default: {
        const CUgraph target = graph();
        const auto behind = some_nodes(target);
        CUgraphNodeParams parameters = any_parameters(static_cast<CUgraphNodeType>(pick(15)));
        const std::scoped_lock lock(ends_of_graphs);
        if (DRIVER(cuGraphAddNode_v2, &node, target, behind.data(), nullptr, pick(3), &parameters) != CUDA_SUCCESS) {
          return;
        }
        nodes.add(node);
        if (parameters.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
          addresses.add(reinterpret_cast<void*>(parameters.alloc.dptr));
        }
        // Bodies of conditions go on being built.
        if (parameters.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
          graphs.add(parameters.conditional.phGraph_out[0]);
        }
      }
    }
  }

  template <class End>
  static void end_graph(End&& end) {
    const std::scoped_lock lock(ends_of_graphs);
    end();
  }

  void change_graphs() {
    const CUgraph target = graph();
    const auto from = some_nodes(target);
    const auto to = some_nodes(target);
    CUgraph copy = nullptr;
    CUgraphExecUpdateResultInfo information{};
    std::array<CUgraphNode, 8> listed{};
    std::array<CUgraphNode, 8> second{};
    std::array<CUgraphEdgeData, 8> data{};
    std::size_t number = listed.size();
    switch (pick(9)) {
      case 0:
        DRIVER(cuGraphAddDependencies_v2, target, &from[pick(3)], &to[pick(3)], nullptr, 1);
        return;
      case 1:
        DRIVER(cuGraphRemoveDependencies_v2, target, &from[pick(3)], &to[pick(3)], nullptr, 1);
        return;
      case 2:
        end_graph([&] { DRIVER(cuGraphDestroyNode, from[pick(3)]); });
        return;
      case 3:
        if (DRIVER(cuGraphClone, &copy, target) == CUDA_SUCCESS) {
          graphs.add(copy);
        }
        return;
      case 4:
        DRIVER(cuGraphGetEdges_v2, target, listed.data(), second.data(), data.data(), &number);
        return;
      case 5:
        DRIVER(cuGraphNodeGetDependentNodes_v2, from[0], listed.data(), data.data(), &number);
        return;
      case 6:
        DRIVER(cuGraphNodeFindInClone, listed.data(), from[0], target);
        return;
      default:
        DRIVER(cuGraphExecUpdate_v2, execs.get(random_), target, &information);
    }
  }

  void change_nodes() {
    auto type = static_cast<CUgraphNodeType>(pick(15));
    const CUgraphNode node = nodes.get(random_);
    // Mostly of the node's own type, since others are refused.
    if (pick(4) != 0) {
      DRIVER(cuGraphNodeGetType, node, &type);
    }
    CUgraphNodeParams parameters = any_parameters(type);
    switch (pick(6)) {
      case 0:
        DRIVER(cuGraphNodeSetParams, node, &parameters);
        return;
      case 1:
        DRIVER(cuGraphExecNodeSetParams, execs.get(random_), node, &parameters);
        return;
      case 2:
        DRIVER(cuGraphNodeSetEnabled, execs.get(random_), node, pick(2));
        return;
      case 3:
        DRIVER(cuGraphExecChildGraphNodeSetParams, execs.get(random_), node, graph());
        return;
      case 4:
        DRIVER(cuDeviceGraphMemTrim, static_cast<int>(pick(2)));
        return;
      default:
        parameters = {};
        DRIVER(cuGraphNodeGetParams, node, &parameters);
    }
  }

  void capture_into() {
    const CUgraph target = graph();
    auto behind = some_nodes(target);
    if (pick(2) == 0) {
      DRIVER(cuStreamBeginCaptureToGraph, stream(), target, behind.data(), nullptr, pick(3),
             static_cast<CUstreamCaptureMode>(pick(3)));
    } else {
      DRIVER(cuStreamUpdateCaptureDependencies_v2, stream(), behind.data(), nullptr, pick(3), pick(3));
    }
  }

  void user_objects() {
    CUuserObject made = nullptr;
    const CUuserObject object = objects.get(random_);
    switch (pick(6)) {
      case 0:
        if (DRIVER(
                cuUserObjectCreate, &made, nullptr, [](void*) { calls.fetch_add(0); }, 1 + pick(2),
                CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS) {
          objects.add(made);
        }
        return;
      case 1:
        DRIVER(cuUserObjectRetain, object, pick(3));
        return;
      case 2:
        DRIVER(cuUserObjectRelease, object, pick(3));
        return;
      case 3:
        DRIVER(cuGraphReleaseUserObject, graph(), object, 1);
        return;
      default:
        DRIVER(cuGraphRetainUserObject, graph(), object, 1, pick(2));
    }
  }

  void managed_memory() {
    CUdeviceptr made = 0;
    const CUmemLocation where{static_cast<CUmemLocationType>(pick(6)), {static_cast<int>(pick(3))}};
    std::array<int, 4> value{};
    switch (pick(4)) {
      case 0:
        if (DRIVER(cuMemAllocManaged, &made, pick(8192), 1 + pick(2)) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(made));
        }
        return;
      case 1:
        DRIVER(cuMemAdvise_v2, address(), 1 + pick(64), static_cast<CUmem_advise>(pick(8)), where);
        return;
      case 2:
        DRIVER(cuMemPrefetchAsync_v2, address(), 1 + pick(64), where, 0, stream());
        return;
      default:
        DRIVER(cuMemRangeGetAttribute, value.data(), 4 * (1 + pick(4)), static_cast<CUmem_range_attribute>(pick(10)),
               address(), 1 + pick(64));
    }
  }

  CUdeviceptr address() { return reinterpret_cast<CUdeviceptr>(addresses.get(random_)) + pick(20) / 19 * pick(5000); }

  void memory() {
    CUdeviceptr made = 0;
    switch (pick(8)) {
      case 0:
        if (DRIVER(cuMemAlloc_v2, &made, pick(10) == 0 ? pick(1 << 20) : 4096) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(made));
        }
        return;
      case 1:
        if (DRIVER(cuMemAllocAsync, &made, pick(4096), stream()) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(made));
        }
        return;
      case 2:
        DRIVER(cuMemFree_v2, address());
        return;
      case 3:
        DRIVER(cuMemFreeAsync, address(), stream());
        return;
      case 4:
        DRIVER(cuMemcpyHtoDAsync_v2, address(), buffer_, pick(4096), stream());
        return;
      case 5:
        DRIVER(cuMemcpyDtoDAsync_v2, address(), address(), pick(4096), stream());
        return;
      case 6:
        DRIVER(cuMemsetD32Async, address(), 7, pick(1024), stream());
        return;
      default: {
        std::array<std::uint64_t, 8> value{};
        DRIVER(cuPointerGetAttribute, value.data(), static_cast<CUpointer_attribute>(pick(24)), address());
      }
    }
  }

  CUdeviceptr in_range() { return reinterpret_cast<CUdeviceptr>(ranges.get(random_)) + grain * pick(4); }
  CUmemGenericAllocationHandle memory_handle() {
    return reinterpret_cast<CUmemGenericAllocationHandle>(memory_handles.get(random_));
  }

  void virtual_memory() {
    constexpr auto kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAllocationProp properties{};
    CUmemAccessDesc access{};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    int descriptor = -1;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(pick(20) / 9)}};
    properties.requestedHandleTypes = pick(2) == 0 ? kind : CU_MEM_HANDLE_TYPE_NONE;
    access.location = properties.location;
    access.flags = static_cast<CUmemAccess_flags>(pick(4));
    switch (pick(11)) {
      case 0:
        if (DRIVER(cuMemCreate, &handle, grain * pick(3), &properties, pick(20) / 19) == CUDA_SUCCESS) {
          memory_handles.add(reinterpret_cast<void*>(handle));
        }
        return;
      case 1:
        DRIVER(cuMemRelease, memory_handle());
        return;
      case 2:
        if (DRIVER(cuMemAddressReserve, &at, 4 * grain, pick(2) * 4 * grain, pick(8) == 0 ? in_range() : 0, 0) ==
            CUDA_SUCCESS) {
          ranges.add(reinterpret_cast<void*>(at));
        }
        return;
      case 3:
        DRIVER(cuMemAddressFree, reinterpret_cast<CUdeviceptr>(ranges.get(random_)), 4 * grain);
        return;
      case 4:
      case 5:
        at = in_range();
        if (DRIVER(cuMemMap, at, grain * (1 + pick(2)), 0, memory_handle(), 0) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(at));
        }
        return;
      case 6:
        DRIVER(cuMemUnmap, in_range(), grain * (1 + pick(3)));
        return;
      case 7:
        DRIVER(cuMemSetAccess, in_range(), grain * (1 + pick(3)), &access, 1);
        return;
      case 8:
        if (DRIVER(cuMemExportToShareableHandle, &descriptor, memory_handle(), kind, 0) == CUDA_SUCCESS) {
          if (DRIVER(cuMemImportFromShareableHandle, &handle,
                     reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), kind) == CUDA_SUCCESS) {
            memory_handles.add(reinterpret_cast<void*>(handle));
          }
          close(descriptor);
        }
        return;
      case 9:
        DRIVER(cuMemsetD8Async, in_range(), static_cast<unsigned char>(pick(2)), grain, stream());
        return;
      default:
        if (DRIVER(cuMemRetainAllocationHandle, &handle, reinterpret_cast<void*>(in_range())) == CUDA_SUCCESS) {
          DRIVER(cuMemRelease, handle);
        }
    }
  }

  void words_and_processes() {
    const auto word = reinterpret_cast<CUdeviceptr>(&words[1 + pick(1023)]);
    CUipcMemHandle memory_of_a_process{};
    CUipcEventHandle event_of_a_process{};
    CUdeviceptr at = 0;
    CUevent event = nullptr;
    switch (pick(8)) {
      case 0:
        DRIVER(cuMemHostRegister_v2, words, sizeof words, 0);
        return;
      case 1:
        DRIVER(cuStreamWriteValue32_v2, stream(), word, pick(1000), pick(3));
        return;
      case 2:
        DRIVER(cuStreamWaitValue32_v2, stream(), word, 0, pick(2) == 0 ? CU_STREAM_WAIT_VALUE_NOR : 0);
        return;
      case 3:
        // The main thread counts the first word up.
        if (pick(32) == 0) {
          DRIVER(cuStreamWaitValue32_v2, stream(), reinterpret_cast<CUdeviceptr>(words),
                 std::atomic_ref(words[0]).load() + 1, CU_STREAM_WAIT_VALUE_GEQ);
        }
        return;
      case 4:
        DRIVER(cuStreamWriteValue64_v2, stream(), address(), pick(1000), 0);
        return;
      case 5:
        if (DRIVER(cuIpcGetMemHandle, &memory_of_a_process, address()) == CUDA_SUCCESS) {
          DRIVER(cuIpcOpenMemHandle_v2, &at, memory_of_a_process, pick(2));
        }
        return;
      case 6:
        if (DRIVER(cuEventCreate, &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
          events.add(event);
          DRIVER(cuIpcGetEventHandle, &event_of_a_process, event);
        }
        return;
      default:
        DRIVER(cuIpcCloseMemHandle, address());
    }
  }

  void pool_calls() {
    CUmemoryPool pool = nullptr;
    CUmemPoolProps properties{};
    CUdeviceptr made = 0;
    std::uint64_t value = pick(2);
    switch (pick(5)) {
      case 0:
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(pick(2))}};
        properties.maxSize = pick(2) == 0 ? 0 : pick(1 << 24);
        if (DRIVER(cuMemPoolCreate, &pool, &properties) == CUDA_SUCCESS) {
          pools.add(pool);
        }
        return;
      case 1:
        DRIVER(cuMemPoolDestroy, pools.get(random_));
        return;
      case 2:
        if (DRIVER(cuMemAllocFromPoolAsync, &made, pick(4096), pools.get(random_), stream()) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(made));
        }
        return;
      case 3:
        DRIVER(cuDeviceSetMemPool, static_cast<int>(pick(2)), pools.get(random_));
        return;
      default:
        DRIVER(cuMemPoolGetAttribute, pools.get(random_), static_cast<CUmemPool_attribute>(pick(17)), &value);
    }
  }

  void modules_and_functions() {
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;
    CUlibrary loaded = nullptr;
    CUmodule module = nullptr;
    const char* const names[] = {"plain", "with_arguments", "cuda_gctx_probe", "nothing"};
    const char* const variables[] = {"table", "answer", "shared", "nothing"};
    CUdeviceptr address = 0;
    std::size_t size = 0;
    switch (pick(11)) {
      case 0:
        if (DRIVER(cuModuleLoadData, &module, program) == CUDA_SUCCESS) {
          modules.add(module);
        }
        return;
      case 1:
        if (DRIVER(cuLibraryLoadData, &loaded, program, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS) {
          libraries.add(loaded);
        }
        return;
      case 2:
        if (pick(4) == 0) {
          DRIVER(cuModuleUnload, modules.get(random_));
        }
        return;
      case 3:
        if (pick(4) == 0) {
          DRIVER(cuLibraryUnload, libraries.get(random_));
        }
        return;
      case 4:
        if (DRIVER(cuModuleGetFunction, &function, modules.get(random_), names[pick(4)]) == CUDA_SUCCESS) {
          functions.add(function);
        }
        return;
      case 5:
        if (DRIVER(cuKernelGetFunction, &function, reinterpret_cast<CUkernel>(functions.get(random_))) ==
            CUDA_SUCCESS) {
          functions.add(function);
        }
        return;
      case 6:
        if (DRIVER(cuModuleGetGlobal_v2, &address, &size, modules.get(random_), variables[pick(4)]) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(address));
        }
        return;
      case 7:
        if (DRIVER(cuLibraryGetGlobal, &address, &size, libraries.get(random_), variables[pick(4)]) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(address));
        }
        return;
      case 8:
        DRIVER(cuFuncSetAttribute, functions.get(random_), static_cast<CUfunction_attribute>(pick(18)),
               static_cast<int>(pick(300'000)));
        return;
      case 9:
        if (DRIVER(cuLibraryGetManaged, &address, &size, libraries.get(random_), variables[pick(4)]) == CUDA_SUCCESS) {
          addresses.add(reinterpret_cast<void*>(address));
        }
        return;
      default:
        if (DRIVER(cuLibraryGetKernel, &kernel, libraries.get(random_), names[pick(4)]) == CUDA_SUCCESS) {
          functions.add(reinterpret_cast<CUfunction>(kernel));
        }
    }
  }

  void wait() {
    switch (pick(4)) {
      case 0:
        DRIVER(cuCtxSynchronize);
        return;
      case 1:
        DRIVER(cuEventSynchronize, events.get(random_));
        return;
      default:
        DRIVER(cuStreamSynchronize, stream());
    }
  }

  void questions() {
    unsigned long long id = 0;
    unsigned flags = 0;
    int number = 0;
    float milliseconds = 0;
    CUcontext context = nullptr;
    CUgreenCtx green = nullptr;
    switch (pick(9)) {
      case 0:
        DRIVER(cuStreamQuery, stream());
        return;
      case 1:
        DRIVER(cuEventQuery, events.get(random_));
        return;
      case 2:
        DRIVER(cuEventElapsedTime_v2, &milliseconds, events.get(random_), events.get(random_));
        return;
      case 3:
        DRIVER(cuStreamGetId, stream(), &id);
        return;
      case 4:
        DRIVER(cuStreamGetFlags, stream(), &flags);
        return;
      case 5:
        DRIVER(cuStreamGetCtx_v2, stream(), &context, &green);
        return;
      case 6:
        DRIVER(cuCtxGetId, contexts.get(random_), &id);
        return;
      case 7:
        DRIVER(cuDeviceGetAttribute, &number, static_cast<CUdevice_attribute>(pick(164)), static_cast<int>(pick(3)));
        return;
      default:
        DRIVER(cuGreenCtxGetId, greens.get(random_), &id);
    }
  }

  void occupancy() {
    int number = 0;
    CUlaunchConfig config{};
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {pick(20), 1, 1};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = pick(2000);
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream();
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (pick(2) == 0) {
      DRIVER(cuOccupancyMaxActiveClusters, &number, functions.get(random_), &config);
    } else {
      DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, &number, functions.get(random_), static_cast<int>(pick(2000)),
             pick(300'000));
    }
  }

  // What disturbs everybody.
  void rare() {
    static auto* const fail = symbol<decltype(softwareDriverFailRandomly)>("softwareDriverFailRandomly");
    static auto* const clear = symbol<decltype(softwareDriverClearFaults)>("softwareDriverClearFaults");
    static auto* const configure = symbol<decltype(softwareDriverConfigure)>("softwareDriverConfigure");
    static auto* const ledger = symbol<decltype(softwareDriverLedger)>("softwareDriverLedger");
    switch (pick(200)) {
      case 0:
        fail("*", 0.02, random_(), CUDA_ERROR_OUT_OF_MEMORY);
        return;
      case 1:
        kept_ += std::strlen(ledger());
        return;
      case 2: {
        static const char* const machines[] = {"h200@13.0,devices=2", "h200@13.5",    "b200@13.4,devices=2",
                                               "a100@12.8",           "rtx5080@13.1", "thor@12.9"};
        configure(machines[pick(6)], nullptr, 0);
        DRIVER(cuInit, 0);
        return;
      }
      default:
        clear();
    }
  }

  static constexpr std::size_t grain = std::size_t{2} << 20;
  std::mt19937 random_;
  unsigned char* buffer_;
  std::uint64_t kept_ = 0;
};

std::uint64_t argument(int count_of, char** values, const char* name, std::uint64_t otherwise) {
  for (int i = 1; i + 1 < count_of; ++i) {
    if (std::string(values[i]) == name) {
      return std::strtoull(values[i + 1], nullptr, 10);
    }
  }
  return otherwise;
}

}  // namespace

int main(int count_of, char** values) {
  const std::uint64_t seed = argument(count_of, values, "--seed", 1);
  const auto threads = static_cast<unsigned>(argument(count_of, values, "--threads", 3));
  const std::uint64_t wanted = argument(count_of, values, "--calls", 0);
  const std::chrono::seconds seconds(argument(count_of, values, "--seconds", wanted == 0 ? 60 : 1'000'000));
  if (!software_driver::test::open_library()) {
    return 2;
  }
  software_driver::test::configure("h200@13.0,devices=2");
  if (DRIVER(cuInit, 0) != CUDA_SUCCESS) {
    return 2;
  }
  const auto end = std::chrono::steady_clock::now() + seconds;
  std::atomic<unsigned> running{threads};
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      Fuzzer fuzzer(seed, i);
      while (std::chrono::steady_clock::now() < end && (wanted == 0 || calls < wanted)) {
        fuzzer.step();
      }
      --running;
    });
  }
  // A call that loops for ever uses up the time of this process, one that waits for ever only that of the host, of
  // which a busy machine may take a minute from anybody.
  constexpr std::clock_t longest_loop = 60 * static_cast<std::clock_t>(CLOCKS_PER_SEC);
  constexpr std::chrono::minutes longest_wait(10);
  std::uint64_t before = 0;
  std::clock_t used = 0;
  auto since = std::chrono::steady_clock::now();
  for (; running > 0; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    std::atomic_ref(words[0]).fetch_add(1);
    const auto now = std::chrono::steady_clock::now();
    if (const std::uint64_t made = calls; made != before) {
      before = made;
      used = std::clock();
      since = now;
    }
    const bool loops = std::clock() - used > longest_loop;
    if (loops || now - since > longest_wait) {
      std::fprintf(stderr, "sim_fuzz: no call has returned for %s (seed %llu)\n",
                   loops ? "a minute of the process's own time" : "ten minutes", static_cast<unsigned long long>(seed));
      print_evidence();
      std::abort();
    }
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  std::printf("sim_fuzz: seed %llu, %u threads, %llu calls, %llu of them successful (simulated)\n",
              static_cast<unsigned long long>(seed), threads, static_cast<unsigned long long>(calls),
              static_cast<unsigned long long>(successes));
  return 0;
}
