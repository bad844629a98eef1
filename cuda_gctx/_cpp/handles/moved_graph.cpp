#include "handles/moved_graph.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "handles/opening.hpp"
#include "handles/probe.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

using Cluster = std::array<unsigned, 3>;

unsigned blocks_of(const Cluster& cluster) { return cluster[0] * cluster[1] * cluster[2]; }

std::vector<CUgraphNode> nodes_of(const Driver& driver, CUgraph graph) {
  std::size_t count = 0;
  GCTX_CALL(driver, cuGraphGetNodes, graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  GCTX_CALL(driver, cuGraphGetNodes, graph, nodes.data(), &count);
  return nodes;
}

CUgraphNodeType type_of(const Driver& driver, CUgraphNode node) {
  CUgraphNodeType type{};
  GCTX_CALL(driver, cuGraphNodeGetType, node, &type);
  return type;
}

CUgraph child_of(const Driver& driver, CUgraphNode node) {
  CUgraph child = nullptr;
  GCTX_CALL(driver, cuGraphChildGraphNodeGetGraph, node, &child);
  return child;
}

CUDA_KERNEL_NODE_PARAMS kernel_of(const Driver& driver, CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  GCTX_CALL(driver, cuGraphKernelNodeGetParams, node, &kernel);
  return kernel;
}

CUlaunchAttributeValue attribute_of(const Driver& driver, CUgraphNode node, CUlaunchAttributeID which) {
  CUlaunchAttributeValue value{};
  GCTX_CALL(driver, cuGraphKernelNodeGetAttribute, node, which, &value);
  return value;
}

std::string name_of(const Driver& driver, const CUDA_KERNEL_NODE_PARAMS& kernel) {
  const char* name = nullptr;
  const CUresult result =
      kernel.kern != nullptr ? driver.cuKernelGetName(&name, kernel.kern) : driver.cuFuncGetName(&name, kernel.func);
  return result == CUDA_SUCCESS && name != nullptr ? name : "without a name";
}

void set_kernel(const Driver& driver, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& kernel) {
  CUgraphNodeParams set{};
  set.type = CU_GRAPH_NODE_TYPE_KERNEL;
  // Where the function is set, the driver takes the current context and ignores the one that is named.
  set.kernel = {kernel.kern != nullptr ? nullptr : kernel.func,
                kernel.gridDimX,
                kernel.gridDimY,
                kernel.gridDimZ,
                kernel.blockDimX,
                kernel.blockDimY,
                kernel.blockDimZ,
                kernel.sharedMemBytes,
                kernel.kernelParams,
                kernel.extra,
                kernel.kern,
                kernel.ctx};
  GCTX_CALL(driver, cuGraphNodeSetParams, node, &set);
}

bool is_updatable(const Driver& driver, CUgraphNode node) {
  return attribute_of(driver, node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
             .deviceUpdatableKernelNode.deviceUpdatable != 0;
}

[[noreturn]] void refuse(const char* reason) { fail_value(std::string("the graph cannot be moved: ") + reason); }

constexpr const char* updated_elsewhere =
    "it has a kernel node that kernels can update, and they would update the original: capture it in each partition";

// Why the driver does not copy a graph; null if nothing in it is known to stand against it.
const char* reason_against_copy(const Driver& driver, CUgraph graph) {
  for (CUgraphNode node : nodes_of(driver, graph)) {
    switch (type_of(driver, node)) {
      case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return "it allocates or frees memory, and the driver does not copy such graphs: allocate before the capture";
      case CU_GRAPH_NODE_TYPE_GRAPH:
        if (const char* reason = reason_against_copy(driver, child_of(driver, node))) {
          return reason;
        }
        break;
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return "it has a conditional node, and the driver does not copy such graphs: capture it in each partition";
      case CU_GRAPH_NODE_TYPE_KERNEL:
        if (is_updatable(driver, node)) {
          return updated_elsewhere;
        }
        break;
      default:
        break;
    }
  }
  return nullptr;
}

// Moves the nodes of a copy of a graph to a context, which is current.
class Mover {
 public:
  explicit Mover(ContextBox& to) : driver_(to.runtime().driver()), to_(to) {}

  void move(CUgraph graph) {
    for (CUgraphNode node : nodes_of(driver_, graph)) {
      switch (const CUgraphNodeType type = type_of(driver_, node)) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
          move_kernel(node);
          break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
          move_copy(node);
          break;
        case CU_GRAPH_NODE_TYPE_MEMSET:
          move_fill(node);
          break;
        case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
          move_batch(node);
          break;
        case CU_GRAPH_NODE_TYPE_GRAPH:
          move(child_of(driver_, node));
          break;
        case CU_GRAPH_NODE_TYPE_HOST:
        case CU_GRAPH_NODE_TYPE_EMPTY:
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
        case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
          break;  // uses no SM
        default:
          fail_value("the graph has a node of type " + std::to_string(static_cast<int>(type)) +
                     ", which may use SMs: capture it in " + to_.label());
      }
    }
  }

 private:
  void move_kernel(CUgraphNode node) {
    if (is_updatable(driver_, node)) {
      refuse(updated_elsewhere);
    }
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(driver_, node);
    demand_room(node, kernel);
    kernel.ctx = to_.handle();
    set_kernel(driver_, node, kernel);
    // What holds for one node holds for all whose kernel has the same handles.
    bool& is_known = is_moved_[kernel.kern != nullptr ? 1 : 0];
    if (!std::exchange(is_known, true) && kernel_of(driver_, node).ctx != to_.handle()) {
      fail_state("the driver did not move kernel " + name_of(driver_, kernel) + " to " + to_.label() +
                 ": capture the graph there");
    }
  }

  void move_copy(CUgraphNode node) {
    CUgraphNodeParams moved{};
    moved.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    GCTX_CALL(driver_, cuGraphMemcpyNodeGetParams, node, &moved.memcpy.copyParams);
    moved.memcpy.copyCtx = to_.handle();
    GCTX_CALL(driver_, cuGraphNodeSetParams, node, &moved);
  }

  void move_fill(CUgraphNode node) {
    CUDA_MEMSET_NODE_PARAMS fill{};
    GCTX_CALL(driver_, cuGraphMemsetNodeGetParams, node, &fill);
    CUgraphNodeParams moved{};
    moved.type = CU_GRAPH_NODE_TYPE_MEMSET;
    moved.memset = {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height, to_.handle()};
    GCTX_CALL(driver_, cuGraphNodeSetParams, node, &moved);
  }

  // Copies of a batch. Drivers from 13.5 on have such nodes.
  void move_batch(CUgraphNode node) {
    CUgraphNodeParams moved{};
    GCTX_CALL(driver_, cuGraphNodeGetParams, node, &moved);
    moved.memcpyBatch.ctx = to_.handle();
    GCTX_CALL(driver_, cuGraphNodeSetParams, node, &moved);
  }

  // A launch that was made for more SMs than the context has.
  void demand_room(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& kernel) {
    const auto cooperative = attribute_of(driver_, node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative;
    const auto dimension = attribute_of(driver_, node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim;
    const Cluster cluster = dimension.x > 0 ? Cluster{dimension.x, dimension.y, dimension.z} : own_cluster(kernel);
    if (cooperative == 0 && blocks_of(cluster) <= 1) {
      return;
    }
    const Room& room = room_of(kernel, cluster);
    if (room.clusters == 0) {
      fail_value("kernel " + name_of(driver_, kernel) + " runs in clusters of " + std::to_string(blocks_of(cluster)) +
                 " blocks, and " + to_.label() + " (" + std::to_string(sm_count()) + " SMs) has room for " +
                 std::to_string(room.largest_cluster) +
                 " at most: give it a larger partition, or one whose SMs are co-scheduled");
    }
    const std::uint64_t blocks = std::uint64_t{kernel.gridDimX} * kernel.gridDimY * kernel.gridDimZ;
    if (cooperative != 0 && blocks > room.blocks) {
      fail_value("kernel " + name_of(driver_, kernel) + " is a cooperative launch of " + std::to_string(blocks) +
                 " blocks, and " + to_.label() + " (" + std::to_string(sm_count()) + " SMs) runs " +
                 std::to_string(room.blocks) + " of them at once: capture it in the partition");
    }
  }

  struct Room {
    std::uint64_t blocks = 0;  // that run at once
    unsigned clusters = 0;
    unsigned largest_cluster = 0;
  };

  static CUfunction function_of(const CUDA_KERNEL_NODE_PARAMS& kernel) noexcept {
    return kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
  }

  // The cluster that a kernel was compiled for.
  Cluster own_cluster(const CUDA_KERNEL_NODE_PARAMS& kernel) {
    const auto [found, is_new] = own_clusters_.try_emplace(function_of(kernel), Cluster{1, 1, 1});
    if (is_new) {
      constexpr std::array which{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                                 CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
      for (std::size_t i = 0; i < which.size(); ++i) {
        int value = 0;
        GCTX_CALL(driver_, cuFuncGetAttribute, &value, which[i], found->first);
        found->second[i] = static_cast<unsigned>(std::max(value, 1));
      }
    }
    return found->second;
  }

  const Room& room_of(const CUDA_KERNEL_NODE_PARAMS& kernel, const Cluster& cluster) {
    const unsigned threads = kernel.blockDimX * kernel.blockDimY * kernel.blockDimZ;
    const auto [found, is_new] =
        rooms_.try_emplace(std::tuple{function_of(kernel), threads, kernel.sharedMemBytes, cluster});
    Room& room = found->second;
    if (!is_new) {
      return room;
    }
    const CUfunction function = function_of(kernel);
    if (blocks_of(cluster) <= 1) {
      int blocks = 0;
      GCTX_CALL(driver_, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, function, static_cast<int>(threads),
                kernel.sharedMemBytes);
      room = {std::uint64_t{static_cast<unsigned>(blocks)} * sm_count(), 1, 1};
      return room;
    }
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = cluster[0];
    attribute.value.clusterDim.y = cluster[1];
    attribute.value.clusterDim.z = cluster[2];
    CUlaunchConfig config{};
    config.gridDimX = cluster[0];
    config.gridDimY = cluster[1];
    config.gridDimZ = cluster[2];
    config.blockDimX = kernel.blockDimX;
    config.blockDimY = kernel.blockDimY;
    config.blockDimZ = kernel.blockDimZ;
    config.sharedMemBytes = kernel.sharedMemBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    GCTX_CALL(driver_, cuOccupancyMaxActiveClusters, &clusters, function, &config);
    int largest = 0;
    config.numAttrs = 0;
    GCTX_CALL(driver_, cuOccupancyMaxPotentialClusterSize, &largest, function, &config);
    room = {std::uint64_t{static_cast<unsigned>(clusters)} * blocks_of(cluster), static_cast<unsigned>(clusters),
            static_cast<unsigned>(largest)};
    return room;
  }

  unsigned sm_count() const { return queried_sms(to_.in_driver())->sm_count; }

  const Driver& driver_;
  ContextBox& to_;
  std::array<bool, 2> is_moved_{};
  std::unordered_map<CUfunction, Cluster> own_clusters_;
  std::map<std::tuple<CUfunction, unsigned, unsigned, Cluster>, Room> rooms_;
};

// Puts the probe in the place of the kernels of a graph, and takes out what is no kernel.
class Prober {
 public:
  // `blocks`: that the probe has for each kernel.
  Prober(const Driver& driver, CUkernel probe, unsigned blocks, std::uint64_t spin_ns)
      : driver_(driver), probe_(probe), blocks_(blocks), spin_ns_(spin_ns) {}

  std::vector<CUDA_KERNEL_NODE_PARAMS> kernels(CUgraph graph) const {
    std::vector<CUDA_KERNEL_NODE_PARAMS> found;
    visit(graph, [&](CUgraphNode node) { found.push_back(kernel_of(driver_, node)); }, [](CUgraphNode) {});
    return found;
  }

  // `blocks_at_once`: of a cooperative launch.
  void replace(CUgraph graph, const Stamps& stamps, unsigned blocks_at_once) const {
    std::size_t number = 0;
    visit(
        graph, [&](CUgraphNode node) { replace(node, stamps.address(number++ * blocks_), blocks_at_once); },
        [&](CUgraphNode node) { GCTX_CALL(driver_, cuGraphDestroyNode, node); });
  }

 private:
  template <typename Kernel, typename Other>
  void visit(CUgraph graph, Kernel&& kernel, Other&& other) const {
    for (CUgraphNode node : nodes_of(driver_, graph)) {
      switch (type_of(driver_, node)) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
          kernel(node);
          break;
        case CU_GRAPH_NODE_TYPE_GRAPH:
          visit(child_of(driver_, node), kernel, other);
          break;
        default:
          other(node);
      }
    }
  }

  void replace(CUgraphNode node, CUdeviceptr out, unsigned blocks_at_once) const {
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(driver_, node);
    // The node keeps its attributes.
    const auto cluster = attribute_of(driver_, node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim;
    const unsigned x = std::max(cluster.x, 1U);
    const unsigned layers = std::max(cluster.y, 1U) * std::max(cluster.z, 1U);
    unsigned blocks = blocks_;
    if (attribute_of(driver_, node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative != 0) {
      blocks = std::min(blocks, blocks_at_once / layers);
    }
    unsigned capacity = std::max(blocks / x, 1U) * x;
    std::uint64_t spin_ns = spin_ns_;
    void* arguments[] = {&out, &capacity, &spin_ns};
    kernel.gridDimX = capacity;
    kernel.gridDimY = std::max(cluster.y, 1U);
    kernel.gridDimZ = std::max(cluster.z, 1U);
    kernel.blockDimX = probe_threads;
    kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.sharedMemBytes = 0;
    kernel.kernelParams = arguments;
    kernel.extra = nullptr;
    kernel.kern = probe_;
    set_kernel(driver_, node, kernel);
  }

  const Driver& driver_;
  CUkernel probe_;
  unsigned blocks_;
  std::uint64_t spin_ns_;
};

// What a probe of a graph works with, until it has finished.
struct Probing {
  std::shared_ptr<GraphBox> graph;
  std::shared_ptr<GraphExecBox> exec;
  std::shared_ptr<Stamps> stamps;
  StreamHandle stream;
};

GraphHandle clone(const GraphHandle& graph, ContextHandle context) {
  const Driver& driver = graph->context()->runtime().driver();
  auto copy = std::make_shared<GraphBox>(std::move(context), true, graph->order());
  const std::lock_guard lock(graph->mutex());
  CUgraph handle = nullptr;
  const CUresult result = driver.cuGraphClone(&handle, graph->handle());
  if (result != CUDA_SUCCESS) {
    if (const char* reason = reason_against_copy(driver, graph->handle())) {
      refuse(reason);
    }
    driver.check(result, "cuGraphClone");
  }
  copy->take(handle);
  return copy;
}

}  // namespace

GraphExecHandle move_graph(const GraphHandle& graph, const ContextHandle& context, bool ordered) {
  Runtime& runtime = context->runtime();
  if (&runtime != &graph->context()->runtime() || context->device() != graph->context()->device()) {
    fail_value("the graph was captured on device " + std::to_string(graph->context()->device()) + ", and " +
               context->label() + " is one of device " + std::to_string(context->device()) +
               ": a graph can only be moved within its device");
  }
  context->demand_there();
  ContextUse use(context);
  CurrentScope scope(*context);
  GraphHandle copy = clone(graph, context);
  Mover(*context).move(copy->handle());
  scope.leave();
  auto exec = std::make_shared<GraphExecBox>(std::move(use), copy, ordered ? graph->order() : nullptr);
  instantiate_into(*exec, *copy);
  exec->keep_original(graph);
  return exec;
}

std::vector<KernelSms> probe_graph(const GraphExecHandle& exec, const StreamHandle& stream, std::uint64_t spin_ns,
                                   std::uint64_t timeout_ns) {
  const ContextHandle& context = exec->context();
  context->demand_there();
  Runtime& runtime = context->runtime();
  const Driver& driver = runtime.driver();
  const std::shared_ptr<Probe> probe = probes_of(runtime).of(context->device());
  const LaunchShape shape{probe->function(), probe_threads, 0};
  const unsigned per_sm = std::max(blocks_per_sm(context, shape), 1U);
  // So many that blocks would be seen on every SM of the device, if they could get there.
  const unsigned blocks = per_sm * runtime.device_sm(context->device())->sm_count;
  auto probing = std::make_shared<Probing>();
  probing->graph = clone(exec->graph(), context);
  probing->exec = std::make_shared<GraphExecBox>(ContextUse(context), probing->graph, nullptr);
  probing->stream = create_stream(context, std::nullopt, true);
  const Prober prober(driver, reinterpret_cast<CUkernel>(probe->function()), blocks, spin_ns);
  const std::vector<CUDA_KERNEL_NODE_PARAMS> kernels = prober.kernels(probing->graph->handle());
  if (kernels.empty()) {
    return {};
  }
  probing->stamps = make_stamps(stream, kernels.size() * blocks);
  std::vector<KernelSms> seen;
  for (const CUDA_KERNEL_NODE_PARAMS& kernel : kernels) {
    const ContextHandle of_kernel = kernel.ctx != nullptr ? adopt_context(runtime, kernel.ctx) : context;
    seen.push_back({name_of(driver, kernel), of_kernel->id(), {}});
  }
  CurrentScope scope(*context);
  prober.replace(probing->graph->handle(), *probing->stamps, per_sm * sm_resource(context)->sm_count);
  scope.leave();
  instantiate_into(*probing->exec, *probing->graph);
  launch(probing->exec, probing->stream);
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (!stream_is_done(probing->stream)) {
    if (std::chrono::steady_clock::now() > end) {
      probes_of(runtime).keep(probing);
      fail_state("the probe of the graph did not finish within " + std::to_string(timeout_ns / 1'000'000) +
                 " ms: other work occupies the SMs of " + context->label());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const std::vector<ProbeBlock> written = probing->stamps->read();
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i].end_ns != 0) {
      seen[i / blocks].sm_ids.push_back(static_cast<unsigned>(written[i].sm));
    }
  }
  for (KernelSms& one : seen) {
    std::sort(one.sm_ids.begin(), one.sm_ids.end());
    one.sm_ids.erase(std::unique(one.sm_ids.begin(), one.sm_ids.end()), one.sm_ids.end());
  }
  return seen;
}

}  // namespace gctx
