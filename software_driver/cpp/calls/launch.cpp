// Launching kernels, and how many blocks and clusters of one fit on a set of SMs.
#include "calls/launch.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "calls/kernels.hpp"
#include "calls/modules.hpp"
#include "calls/queueing.hpp"
#include "machine/observer.hpp"

namespace software_driver {
namespace {

constexpr unsigned max_block_threads = 1024;
constexpr unsigned warp = 32;
constexpr std::array<unsigned, 3> max_block{1024, 1024, 64};
constexpr std::array<unsigned, 3> max_grid{0x7fffffff, 65535, 65535};
// Beyond this number no chip comes; and beyond the portable one, a kernel must say that it may be larger.
constexpr unsigned largest_cluster = 64;
constexpr unsigned portable_cluster = 8;
// Recorded: the count of active clusters takes no more than so many of their blocks on one SM.
constexpr unsigned max_cluster_blocks_per_sm = 8;

unsigned blocks_per_sm(const Machine& machine, const KernelCode& code, unsigned threads, std::size_t shared_bytes) {
  if (threads == 0) {
    return 0;
  }
  return Sms::capacity(machine.chip->profile(), needs_of(machine, code, threads, shared_bytes));
}

void copy_arguments(Call& c, LaunchPlan& plan, void** arguments, void** extra) {
  const auto registered = c.machine.kernels_by_name.find(plan.code->name);
  const bool by_registration = registered != c.machine.kernels_by_name.end() && registered->second.arguments_known;
  const std::vector<std::size_t>& sizes =
      by_registration ? registered->second.argument_sizes : plan.code->argument_sizes;
  if (sizes.empty()) {
    return;
  }
  if (arguments != nullptr) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      refuse_if(arguments[i] == nullptr, CUDA_ERROR_INVALID_VALUE);
      const auto* bytes = static_cast<const unsigned char*>(arguments[i]);
      plan.arguments.emplace_back(bytes, bytes + sizes[i]);
    }
    return;
  }
  // The other way to pass them: one buffer, found in a list of keys and values.
  const unsigned char* buffer = nullptr;
  std::size_t length = 0;
  for (std::size_t i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const unsigned char*>(extra[i + 1]);
    }
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      std::memcpy(&length, extra[i + 1], sizeof length);
    }
  }
  // The image knows where each is; a registration knows sizes alone.
  std::size_t offset = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t alignment = std::min<std::size_t>(sizes[i], 8);
    offset = by_registration ? (offset + alignment - 1) / alignment * alignment : plan.code->argument_offsets[i];
    refuse_if(buffer == nullptr || offset + sizes[i] > length, CUDA_ERROR_INVALID_VALUE);
    plan.arguments.emplace_back(buffer + offset, buffer + offset + sizes[i]);
    offset += sizes[i];
  }
}

// What the hardware allows in any context.
void check(const Machine& machine, const LaunchPlan& plan) {
  const std::uint64_t threads = product(plan.threads);
  const std::uint64_t blocks = product(plan.grid);
  refuse_if(threads == 0 || threads > max_block_threads || blocks == 0, CUDA_ERROR_INVALID_VALUE);
  for (std::size_t i = 0; i < 3; ++i) {
    refuse_if(plan.threads[i] > max_block[i] || plan.grid[i] > max_grid[i], CUDA_ERROR_INVALID_VALUE);
  }
  const auto allowed =
      static_cast<unsigned>(kernel_attribute(machine, *plan.code, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
  refuse_if(plan.shared_bytes > allowed, CUDA_ERROR_INVALID_VALUE);
  const unsigned resident = blocks_per_sm(machine, *plan.code, static_cast<unsigned>(threads), plan.shared_bytes);
  refuse_if(resident == 0, CUDA_ERROR_INVALID_VALUE);
  if (plan.cluster > 1) {
    for (std::size_t i = 0; i < 3; ++i) {
      refuse_if(plan.grid[i] % plan.clusters[i] != 0, CUDA_ERROR_INVALID_CLUSTER_SIZE);
    }
    const bool any_size =
        kernel_attribute(machine, *plan.code, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
    refuse_if(plan.cluster > portable_cluster && !any_size, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  }
}

void launch(Call& c, CUfunction handle, Stream& stream, LaunchPlan plan, void** arguments, void** extra) {
  plan_launch(c, *stream.context, handle, plan, arguments, extra);
  check_room(c.machine, *stream.context, plan);
  refuse_if(plan.updatable && !stream.capture, CUDA_ERROR_INVALID_VALUE);
  plan.priority = std::min(plan.priority, stream.priority);
  // Recorded: the edge of a capture says so. What runs at once waits for what is in front of it.
  for (Edge& edge : stream.capture_tail) {
    if (plan.programmatic && edge.from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
      edge.data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
      edge.data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    }
  }
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_KERNEL;
  node.launch = std::move(plan);
  enqueue(c, stream, std::move(node));
  if (!stream.capture) {
    observe_call(info(c.function).symbol, stream.last->submitted, stream.last->sequence);
  }
}

LaunchPlan read_config(const CUlaunchConfig* config) {
  refuse_if(config->attrs == nullptr && config->numAttrs > 0, CUDA_ERROR_INVALID_VALUE);
  LaunchPlan plan;
  plan.grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
  plan.threads = {config->blockDimX, config->blockDimY, config->blockDimZ};
  plan.shared_bytes = config->sharedMemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    read_attribute(config->attrs[i], plan);
  }
  return plan;
}

LaunchPlan read_clusters(const CUlaunchConfig* config) {
  refuse_if(config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0, CUDA_ERROR_INVALID_VALUE);
  return read_config(config);
}

// Occupancy follows the stream of the configuration, or the current context.
const Context& occupancy_context(Call& c, const CUlaunchConfig* config) {
  return config->hStream != nullptr ? *find_stream(c, config->hStream).context : current_context(c);
}

void occupancy(Call& c, int* out, const KernelCode& code, int threads, std::size_t shared_bytes) {
  const bool fits = threads <= static_cast<int>(max_block_threads);
  const auto count = static_cast<unsigned>(threads);
  give(out, fits ? static_cast<int>(blocks_per_sm(c.machine, code, count, shared_bytes)) : 0);
}

void potential_block_size(Call& c, int* min_grid, int* block, const KernelCode& code, CUoccupancyB2DSize shared_of,
                          std::size_t shared_bytes, int limit) {
  const unsigned largest = limit == 0 ? max_block_threads : std::min(static_cast<unsigned>(limit), max_block_threads);
  unsigned best_block = 0;
  unsigned best_resident = 0;
  for (unsigned threads = largest / warp * warp; threads > 0; threads -= warp) {
    const std::size_t shared = shared_of != nullptr ? shared_of(static_cast<int>(threads)) : shared_bytes;
    const unsigned resident = blocks_per_sm(c.machine, code, threads, shared);
    if (resident * threads > best_resident * best_block) {
      best_block = threads;
      best_resident = resident;
    }
  }
  *block = static_cast<int>(best_block);
  *min_grid = static_cast<int>(best_resident * c.current->sms.count());
}

}  // namespace

void read_attribute(const CUlaunchAttribute& attribute, LaunchPlan& plan) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      plan.cooperative = attribute.value.cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      plan.programmatic = attribute.value.programmaticStreamSerializationAllowed != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      plan.updatable = attribute.value.deviceUpdatableKernelNode.deviceUpdatable != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      plan.priority = std::clamp(attribute.value.priority, -5, 0);
      break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      plan.clusters = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
      refuse_if(std::max({plan.clusters[0], plan.clusters[1], plan.clusters[2]}) > largest_cluster,
                CUDA_ERROR_INVALID_VALUE);
      for (unsigned& blocks : plan.clusters) {
        blocks = std::max(blocks, 1u);
      }
      plan.cluster = static_cast<unsigned>(product(plan.clusters));
      break;
    default:
      refuse_if(attribute.id != CU_LAUNCH_ATTRIBUTE_IGNORE && !changes_nothing(attribute.id), CUDA_ERROR_NOT_SUPPORTED);
  }
}

bool changes_nothing(CUlaunchAttributeID which) {
  constexpr CUlaunchAttributeID all[] = {CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
                                         CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                         CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                         CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP};
  return std::ranges::find(all, which) != std::end(all);
}

void plan_launch(Call& c, const Context& context, CUfunction function, LaunchPlan& plan, void** arguments,
                 void** extra) {
  plan.code = find_code(c, function);
  // A function is of the context that its module was loaded in; a kernel of a library is of every context.
  const Function* found = c.machine.functions.find(function);
  refuse_if(found != nullptr && found->module->owner != 0 && found->module->owner != context.root_id,
            CUDA_ERROR_INVALID_HANDLE);
  plan.function = function;
  // Recorded: the function of a kernel is that kernel.
  if (found != nullptr && found->module->library != nullptr) {
    plan.function = as_handle<CUfunction>(*found->module->library->kernels.at(plan.code->name));
  }
  check(c.machine, plan);
  copy_arguments(c, plan, arguments, extra);
}

void check_room(const Machine& machine, const Context& context, const LaunchPlan& plan) {
  refuse_if(plan.cluster > 1 && plan.cluster > machine.chip->max_cluster_size(context.sms, context.traits.bond),
            CUDA_ERROR_INVALID_CLUSTER_SIZE);
  // Recorded: a cooperative grid is checked against the partition, by its real SMs.
  const auto threads = static_cast<unsigned>(product(plan.threads));
  const unsigned resident = blocks_per_sm(machine, *plan.code, threads, plan.shared_bytes);
  refuse_if(plan.cooperative && product(plan.grid) > std::uint64_t{resident} * context.sms.count(),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

}  // namespace software_driver

using namespace software_driver;

template <bool cooperative>
static void launch_grid(Call& c, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream& stream,
                        void** arguments, void** extra) {
  LaunchPlan plan;
  plan.grid = {grid_x, grid_y, grid_z};
  plan.threads = {block_x, block_y, block_z};
  plan.shared_bytes = shared_bytes;
  plan.cooperative = cooperative;
  return launch(c, function, stream, std::move(plan), arguments, extra);
}

SOFTWARE_DRIVER_ROW(cuLaunchKernel, launch_grid<false>)
SOFTWARE_DRIVER_ROW(cuLaunchCooperativeKernel, launch_grid<true>)

SOFTWARE_DRIVER_CALL(cuLaunchKernelEx, Call& c, const CUlaunchConfig* config, CUfunction function, void** arguments,
                     void** extra) {
  LaunchPlan plan = read_config(config);
  launch(c, function, find_stream(c, config->hStream), std::move(plan), arguments, extra);
}

SOFTWARE_DRIVER_ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor, occupancy)
SOFTWARE_DRIVER_ROW(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, occupancy)
SOFTWARE_DRIVER_ROW(cuOccupancyMaxPotentialBlockSize, potential_block_size)
SOFTWARE_DRIVER_ROW(cuOccupancyMaxPotentialBlockSizeWithFlags, potential_block_size)

SOFTWARE_DRIVER_CALL(cuOccupancyAvailableDynamicSMemPerBlock, Call& c, std::size_t* out, const KernelCode& code,
                     int blocks, int threads) {
  const auto allowed =
      static_cast<std::size_t>(kernel_attribute(c.machine, code, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
  const std::size_t share = c.machine.chip->profile().shared_bytes_per_sm / static_cast<std::size_t>(blocks);
  const std::size_t fixed = needs_of(c.machine, code, static_cast<unsigned>(threads), 0).shared_bytes;
  give(out, std::min(allowed, share > fixed ? share - fixed : std::size_t{0}));
}

SOFTWARE_DRIVER_CALL(cuOccupancyMaxPotentialClusterSize, Call& c, int* out, const KernelCode& code,
                     const CUlaunchConfig* config) {
  read_clusters(config);
  const Context& context = occupancy_context(c, config);
  const unsigned size = c.machine.chip->max_cluster_size(context.sms, context.traits.bond);
  // More than 8 blocks only where the kernel says that it is not portable (documented).
  const bool large = kernel_attribute(c.machine, code, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
  give(out, static_cast<int>(large ? size : std::min(size, portable_cluster)));
}

SOFTWARE_DRIVER_CALL(cuOccupancyMaxActiveClusters, Call& c, int* out, const KernelCode& code,
                     const CUlaunchConfig* config) {
  const LaunchPlan plan = read_clusters(config);
  const Context& context = occupancy_context(c, config);
  const unsigned per_sm =
      blocks_per_sm(c.machine, code, static_cast<unsigned>(product(plan.threads)), plan.shared_bytes);
  const unsigned resident = std::min(per_sm, max_cluster_blocks_per_sm);
  give(out,
       static_cast<int>(c.machine.chip->max_active_clusters(context.sms, plan.cluster, resident, context.traits.bond)));
}
