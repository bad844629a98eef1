// Nodes of graphs: making them, their parameters, and changing those.
#include "calls/graph_nodes.hpp"

#include <algorithm>
#include <cstring>

#include "calls/copies.hpp"
#include "calls/graph_memory.hpp"
#include "calls/launch.hpp"
#include "calls/modules.hpp"

namespace software_driver {
namespace {

// Where a node runs: in the context that is named, or in the current one.
Context& context_for(Call& c, CUcontext handle, GraphNode& node) {
  Context& context = find_context(c, handle, true);
  node.context_handle = context.handle;
  node.context_id = context.id;
  return context;
}

void plan_kernel_node(Call& c, const CUDA_KERNEL_NODE_PARAMS_v3& kernel, GraphNode& node) {
  // Recorded on 13.0: beside a function, the context that is named is ignored. From 13.4 on, the header says how it has
  // to fit.
  if (kernel.func != nullptr && kernel.ctx != nullptr && c.version() >= 13040) {
    const Function* function = c.machine.functions.find(kernel.func);
    const std::uint64_t owner = function == nullptr ? 0 : function->module->owner;
    refuse_if(owner != 0 && owner != find_context(c, kernel.ctx, false).root_id, CUDA_ERROR_INVALID_CONTEXT);
  }
  const Context& context = context_for(c, kernel.func == nullptr ? kernel.ctx : nullptr, node);
  LaunchPlan& plan = node.launch;
  plan.grid = {kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ};
  plan.threads = {kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ};
  plan.shared_bytes = kernel.sharedMemBytes;
  const CUfunction function = kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
  refuse_if(function == nullptr, CUDA_ERROR_INVALID_VALUE);
  return plan_launch(c, context, function, plan, kernel.kernelParams, kernel.extra);
}

void plan_host_node(const CUDA_HOST_NODE_PARAMS_v2& host, Step& node) {
  refuse_if(host.fn == nullptr || host.syncMode > CU_HOST_TASK_SPINWAIT, CUDA_ERROR_INVALID_VALUE);
  node.parameters.host = host;
  node.host = [function = host.fn, user = host.userData] { function(user); };
}

void plan_batch_node(Call& c, const CUDA_MEMCPY_BATCH_NODE_PARAMS& batch, GraphNode& node) {
  refuse_if(c.version() < 13050, CUDA_ERROR_INVALID_VALUE);
  // The handle of a green context is that of its context too.
  context_for(c, batch.ctx, node);
  std::size_t failed = 0;
  return plan_batch(c, read_batch(batch), node, failed);
}

void plan_event_node(Call& c, CUevent event, Step& node) {
  find_event(c, event);
  node.parameters.eventRecord.event = event;
}

void plan_child_node(Call& c, const Graph& parent, const CUDA_CHILD_GRAPH_NODE_PARAMS& child, GraphNode& node) {
  Graph& graph = find<Graph>(c, child.graph);
  const bool moved = child.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  refuse_if(!moved && child.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CUDA_ERROR_INVALID_VALUE);
  refuse_if(is_being_captured(graph) || has_conditions(graph), CUDA_ERROR_INVALID_VALUE);
  if (!moved) {
    refuse_if(has_memory_nodes(graph), CUDA_ERROR_INVALID_VALUE);
    refuse_if(!has_room_for_copy(c, graph), CUDA_ERROR_OUT_OF_MEMORY);
    node.bodies = {&clone(c.machine, graph)};
    return;
  }
  // A graph has one owner, and is not inside itself.
  refuse_if(graph.owner != nullptr, CUDA_ERROR_INVALID_VALUE);
  for (const Graph* one = &parent; one != nullptr; one = one->owner == nullptr ? nullptr : one->owner->graph) {
    refuse_if(one == &graph, CUDA_ERROR_INVALID_VALUE);
  }
  node.bodies = {&graph};
}

void plan_free_node(Call& c, const Graph& graph, CUdeviceptr address, GraphNode& node) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end() || found->second.graphs == 0, CUDA_ERROR_INVALID_VALUE);
  bool own = false;
  for (const GraphNode* other : graph.nodes) {
    refuse_if(other->type == CU_GRAPH_NODE_TYPE_MEM_FREE && other->parameters.free.dptr == address,
              CUDA_ERROR_INVALID_VALUE);
    own = own || (other->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && other->parameters.alloc.dptr == address);
  }
  refuse_if(found->second.freed_in_graph, CUDA_ERROR_INVALID_VALUE);
  found->second.freed_in_graph = own;
  node.parameters.free.dptr = address;
}

bool fits(CUgraphConditionalNodeType type, unsigned size, int version) {
  const bool with_else_and_switch = version >= 12080;
  return (type == CU_GRAPH_COND_TYPE_IF && (size == 1 || (size == 2 && with_else_and_switch))) ||
         (type == CU_GRAPH_COND_TYPE_WHILE && size == 1) ||
         (type == CU_GRAPH_COND_TYPE_SWITCH && size > 0 && size <= 4096 && with_else_and_switch);
}

void plan_conditional_node(Call& c, const Graph& graph, CUDA_CONDITIONAL_NODE_PARAMS& conditional, GraphNode& node) {
  context_for(c, conditional.ctx, node);
  Condition* condition = c.machine.conditions.find(conditional.handle);
  refuse_if(condition == nullptr || condition->used || !fits(conditional.type, conditional.size, c.version()),
            CUDA_ERROR_INVALID_VALUE);
  // Of this graph, or of one that this is inside of.
  const Graph* one = &graph;
  while (one != condition->graph && one->owner != nullptr) {
    one = one->owner->graph;
  }
  refuse_if(one != condition->graph, CUDA_ERROR_INVALID_VALUE);
  condition->used = true;
  for (unsigned i = 0; i < conditional.size; ++i) {
    node.bodies.push_back(&add_graph(c.machine));
    node.body_handles.push_back(as_handle<CUgraph>(*node.bodies.back()));
  }
  node.parameters.conditional = conditional;
}

// The parameters that describe a node.
CUgraphNodeParams described(Call& c, GraphNode& node) {
  CUgraphNodeParams parameters = node.parameters;
  parameters.type = node.type;
  const auto context = reinterpret_cast<CUcontext>(node.context_handle);
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      LaunchPlan& plan = node.launch;
      node.argument_pointers.clear();
      for (auto& argument : plan.arguments) {
        node.argument_pointers.push_back(argument.data());
      }
      // Recorded: of a kernel, both handles.
      const Kernel* kernel = c.machine.kernels.find(plan.function);
      const Context* own = c.machine.contexts.find(node.context_handle);
      const auto& [blocks_x, blocks_y, blocks_z] = plan.grid;
      const auto& [threads_x, threads_y, threads_z] = plan.threads;
      void** arguments = node.argument_pointers.empty() ? nullptr : node.argument_pointers.data();
      parameters.kernel = {plan.function, blocks_x,          blocks_y,  blocks_z, threads_x, threads_y,
                           threads_z,     plan.shared_bytes, arguments, nullptr,  nullptr,   context};
      if (kernel != nullptr) {
        parameters.kernel.kern = as_handle<CUkernel>(*kernel);
        parameters.kernel.func = own == nullptr ? plan.function : function_on(c, *kernel, own->device);
      }
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      parameters.memcpy.copyCtx = context;
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      parameters.memset.ctx = context;
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: {
      CopyBatch& batch = node.batch;
      parameters.memcpyBatch = {
          batch.sizes.size(),      batch.targets.data(), batch.sources.data(),    batch.sizes.data(),
          batch.attributes.data(), batch.firsts.data(),  batch.attributes.size(), {context}};
      break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      parameters.graph.graph = as_handle<CUgraph>(*node.bodies[0]);
      break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      parameters.alloc.accessDescs = node.access.empty() ? nullptr : node.access.data();
      break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      parameters.conditional.phGraph_out = node.body_handles.data();
      parameters.conditional.ctx = context;
      break;
    default:
      break;
  }
  return parameters;
}

void add(Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies, const CUgraphEdgeData* data,
         std::size_t count, CUgraphNodeParams* parameters) {
  std::vector<Edge> after = read_edges(c, graph, dependencies, data, count);
  GraphNode node;
  plan_node(c, graph, *parameters, node);
  node.after = std::move(after);
  GraphNode& added = add_node(c.machine, graph, std::move(node));
  if (added.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    parameters->conditional.phGraph_out = added.body_handles.data();
  }
  if (added.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    parameters->graph.graph = as_handle<CUgraph>(*added.bodies[0]);
  }
  give(out, added);
}

// A node that does what the parameters say instead. Nodes of memory and of conditions stay as they are. Where no
// context is named, a node keeps its own.
GraphNode changed(Call& c, const GraphNode& node, CUgraphNodeParams parameters) {
  refuse_if(parameters.type != node.type, CUDA_ERROR_INVALID_VALUE);
  const auto or_own = [&](CUcontext context) {
    return context == nullptr ? reinterpret_cast<CUcontext>(node.context_handle) : context;
  };
  GraphNode planned;
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      // Recorded: it keeps its attributes.
      planned.launch = node.launch;
      planned.launch.arguments.clear();
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      parameters.memcpy.copyCtx = or_own(parameters.memcpy.copyCtx);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      parameters.memset.ctx = or_own(parameters.memset.ctx);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
      parameters.memcpyBatch.ctx = or_own(parameters.memcpyBatch.ctx);
      break;
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      break;
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
  plan_node(c, *node.graph, parameters, planned);
  return planned;
}

void set_in_graph(Call& c, GraphNode& node, const CUgraphNodeParams* parameters) {
  adopt(node, changed(c, node, *parameters));
}

void set_in_exec(Call& c, GraphExec& exec, const GraphNode& node, const CUgraphNodeParams* parameters) {
  ExecNode& copy = need(find_copy(exec.nodes, node), CUDA_ERROR_INVALID_VALUE);
  GraphNode planned = changed(c, node, *parameters);
  // Recorded: what is executable stays in its context.
  refuse_if(node.type == CU_GRAPH_NODE_TYPE_KERNEL && planned.context_id != copy.node.context_id,
            CUDA_ERROR_INVALID_VALUE);
  refuse_if(!may_become(c.version(), copy.node, planned), CUDA_ERROR_INVALID_VALUE);
  adopt(copy.node, std::move(planned));
}

// The functions of one kind of node: what they are given and answer is a handle or a structure, which stands at this
// place of the parameters of all nodes, as their beginning where those have more; and a context where the kind has one.
template <CUgraphNodeType type, class Value, std::size_t place, std::size_t context_place = 0>
struct Kind {
  using Given = std::conditional_t<std::is_class_v<Value>, const Value*, Value>;

  static CUgraphNodeParams parameters(Given given, CUcontext context) {
    CUgraphNodeParams all{};
    all.type = type;
    const void* value = &given;
    if constexpr (std::is_class_v<Value>) {
      value = given;
    }
    std::memcpy(reinterpret_cast<char*>(&all) + place, value, sizeof(Value));
    if (context_place != 0) {
      std::memcpy(reinterpret_cast<char*>(&all) + context_place, &context, sizeof context);
    }
    return all;
  }
  static void add(Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies, std::size_t count,
                  Given given, CUcontext context) {
    CUgraphNodeParams all = parameters(given, context);
    software_driver::add(c, out, graph, dependencies, nullptr, count, &all);
  }
  static void get(Call& c, GraphNode& node, Value* out) {
    refuse_if(node.type != type, CUDA_ERROR_INVALID_VALUE);
    const CUgraphNodeParams all = described(c, node);
    std::memcpy(out, reinterpret_cast<const char*>(&all) + place, sizeof(Value));
  }
  static void set(Call& c, GraphNode& node, Given given) {
    const CUgraphNodeParams all = parameters(given, nullptr);
    set_in_graph(c, node, &all);
  }
  static void set_in_exec(Call& c, GraphExec& exec, const GraphNode& node, Given given, CUcontext context) {
    const CUgraphNodeParams all = parameters(given, context);
    software_driver::set_in_exec(c, exec, node, &all);
  }
};
constexpr std::size_t copy_context = offsetof(CUgraphNodeParams, memcpy.copyCtx);
constexpr std::size_t fill_context = offsetof(CUgraphNodeParams, memset.ctx);
using OfKernel = Kind<CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, offsetof(CUgraphNodeParams, kernel)>;
using OfCopy =
    Kind<CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, offsetof(CUgraphNodeParams, memcpy.copyParams), copy_context>;
using OfFill =
    Kind<CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, offsetof(CUgraphNodeParams, memset), fill_context>;
using OfHost = Kind<CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, offsetof(CUgraphNodeParams, host)>;
using OfChild = Kind<CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, offsetof(CUgraphNodeParams, graph)>;
using OfRecord = Kind<CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, offsetof(CUgraphNodeParams, eventRecord)>;
using OfWait = Kind<CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, offsetof(CUgraphNodeParams, eventWait)>;
using OfMemory = Kind<CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, offsetof(CUgraphNodeParams, alloc)>;
using OfFree = Kind<CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, offsetof(CUgraphNodeParams, free)>;

// Attributes that a node may have, and that calls may change.
bool is_of_nodes(CUlaunchAttributeID which) {
  return which == CU_LAUNCH_ATTRIBUTE_COOPERATIVE || which == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
         which == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || changes_nothing(which);
}

// Attributes that change nothing here read as zeros.
void tell_attribute(const LaunchPlan& plan, CUlaunchAttributeID which, CUlaunchAttributeValue& value) {
  switch (which) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      value.cooperative = plan.cooperative ? 1 : 0;
      return;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      value.priority = plan.priority;
      return;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      value.deviceUpdatableKernelNode.deviceUpdatable = plan.updatable ? 1 : 0;
      return;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      if (plan.cluster > 1) {
        value.clusterDim.x = plan.clusters[0];
        value.clusterDim.y = plan.clusters[1];
        value.clusterDim.z = plan.clusters[2];
      }
      return;
    default:
      refuse_if(!changes_nothing(which), CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace

void plan_node(Call& c, Graph& graph, CUgraphNodeParams& parameters, GraphNode& node) {
  node.type = parameters.type;
  switch (parameters.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return plan_kernel_node(c, parameters.kernel, node);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      context_for(c, parameters.memcpy.copyCtx, node);
      return plan_copy(c, parameters.memcpy.copyParams, node);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      context_for(c, parameters.memset.ctx, node);
      return plan_fill(c, parameters.memset, node);
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
      return plan_batch_node(c, parameters.memcpyBatch, node);
    case CU_GRAPH_NODE_TYPE_HOST:
      return plan_host_node(parameters.host, node);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return plan_child_node(c, graph, parameters.graph, node);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return plan_event_node(c, parameters.eventWait.event, node);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return plan_event_node(c, parameters.eventRecord.event, node);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      node.parameters.alloc = parameters.alloc;
      make_graph_memory(c, node);
      parameters.alloc.dptr = node.parameters.alloc.dptr;
      return;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return plan_free_node(c, graph, parameters.free.dptr, node);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return plan_conditional_node(c, graph, parameters.conditional, node);
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

std::vector<Edge> read_edges(Call& c, const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                             std::size_t count) {
  refuse_if(nodes == nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode& node = find<GraphNode>(c, nodes[i]);
    const Edge edge{&node, data == nullptr ? CUgraphEdgeData{} : data[i]};
    const bool twice = std::ranges::find(edges, edge) != edges.end();
    refuse_if(node.graph != &graph || twice || edge.data.to_port != 0, CUDA_ERROR_INVALID_VALUE);
    refuse_if(edge.data.from_port != 0 && node.type != CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
    edges.push_back(edge);
  }
  return edges;
}

bool has_room_for_copy(Call& c, const Graph& graph) {
  constexpr std::size_t limit = 1'000'000;
  return c.machine.graph_nodes.live() + count_nodes(graph) <= limit;
}

bool may_become(int version, const Step& old, const Step& now) {
  if (old.type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const CUDA_MEMSET_NODE_PARAMS_v2& was = old.parameters.memset;
    const CUDA_MEMSET_NODE_PARAMS_v2& is = now.parameters.memset;
    const bool is_one_row = was.height <= 1 && is.height <= 1;
    const bool is_same =
        was.width == is.width && was.height == is.height && was.pitch == is.pitch && was.elementSize == is.elementSize;
    return is_one_row || (is_same && version >= 12060);
  }
  if (old.type == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH) {
    // Addresses and sizes change alone.
    const auto is_same = [](const CUmemcpyAttributes& one, const CUmemcpyAttributes& other) {
      return one.srcAccessOrder == other.srcAccessOrder && one.flags == other.flags;
    };
    return old.context_id == now.context_id && old.batch.sizes.size() == now.batch.sizes.size() &&
           old.batch.firsts == now.batch.firsts &&
           std::ranges::equal(old.batch.attributes, now.batch.attributes, is_same);
  }
  return true;
}

ExecNode* find_copy(ExecNodes& nodes, const GraphNode& node) {
  ExecNode* found = nullptr;
  each_node(nodes, [&](ExecNode& one) { found = one.node.copied_from == node.id ? &one : found; });
  return found;
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_ROW(cuGraphAddNode, add, 3)
SOFTWARE_DRIVER_ROW(cuGraphAddNode_v2, add)
SOFTWARE_DRIVER_ROW(cuGraphAddNode_v3, add)
SOFTWARE_DRIVER_ROW(cuGraphNodeSetParams, set_in_graph)
SOFTWARE_DRIVER_ROW(cuGraphNodeSetParams_v2, set_in_graph)
SOFTWARE_DRIVER_ROW(cuGraphExecNodeSetParams, set_in_exec)
SOFTWARE_DRIVER_CALL(cuGraphNodeGetParams, Call& c, GraphNode& node, CUgraphNodeParams* out) {
  *out = described(c, node);
}

SOFTWARE_DRIVER_ROW(cuGraphAddKernelNode_v2, OfKernel::add)
SOFTWARE_DRIVER_ROW(cuGraphKernelNodeGetParams_v2, OfKernel::get)
SOFTWARE_DRIVER_ROW(cuGraphKernelNodeSetParams_v2, OfKernel::set)
SOFTWARE_DRIVER_ROW(cuGraphExecKernelNodeSetParams_v2, OfKernel::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphAddMemcpyNode, OfCopy::add)
SOFTWARE_DRIVER_ROW(cuGraphMemcpyNodeGetParams, OfCopy::get)
SOFTWARE_DRIVER_ROW(cuGraphMemcpyNodeSetParams, OfCopy::set)
SOFTWARE_DRIVER_ROW(cuGraphExecMemcpyNodeSetParams, OfCopy::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphAddMemsetNode, OfFill::add)
SOFTWARE_DRIVER_ROW(cuGraphMemsetNodeGetParams, OfFill::get)
SOFTWARE_DRIVER_ROW(cuGraphMemsetNodeSetParams, OfFill::set)
SOFTWARE_DRIVER_ROW(cuGraphExecMemsetNodeSetParams, OfFill::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphAddHostNode, OfHost::add)
SOFTWARE_DRIVER_ROW(cuGraphHostNodeGetParams, OfHost::get)
SOFTWARE_DRIVER_ROW(cuGraphHostNodeSetParams, OfHost::set)
SOFTWARE_DRIVER_ROW(cuGraphExecHostNodeSetParams, OfHost::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphAddChildGraphNode, OfChild::add)
SOFTWARE_DRIVER_ROW(cuGraphChildGraphNodeGetGraph, OfChild::get)
SOFTWARE_DRIVER_ROW(cuGraphAddEventRecordNode, OfRecord::add)
SOFTWARE_DRIVER_ROW(cuGraphEventRecordNodeGetEvent, OfRecord::get)
SOFTWARE_DRIVER_ROW(cuGraphEventRecordNodeSetEvent, OfRecord::set)
SOFTWARE_DRIVER_ROW(cuGraphExecEventRecordNodeSetEvent, OfRecord::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphAddEventWaitNode, OfWait::add)
SOFTWARE_DRIVER_ROW(cuGraphEventWaitNodeGetEvent, OfWait::get)
SOFTWARE_DRIVER_ROW(cuGraphEventWaitNodeSetEvent, OfWait::set)
SOFTWARE_DRIVER_ROW(cuGraphExecEventWaitNodeSetEvent, OfWait::set_in_exec)
SOFTWARE_DRIVER_ROW(cuGraphMemAllocNodeGetParams, OfMemory::get)
SOFTWARE_DRIVER_ROW(cuGraphAddMemFreeNode, OfFree::add)
SOFTWARE_DRIVER_ROW(cuGraphMemFreeNodeGetParams, OfFree::get)

SOFTWARE_DRIVER_CALL(cuGraphAddMemAllocNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
                     std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* memory) {
  CUgraphNodeParams parameters = OfMemory::parameters(memory, nullptr);
  memory->dptr = 0;
  add(c, out, graph, dependencies, nullptr, count, &parameters);
  memory->dptr = parameters.alloc.dptr;
}
SOFTWARE_DRIVER_CALL(cuGraphAddEmptyNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
                     std::size_t count) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_EMPTY;
  add(c, out, graph, dependencies, nullptr, count, &parameters);
}

SOFTWARE_DRIVER_CALL(cuGraphKernelNodeSetAttribute, Call&, GraphNode& node, CUkernelNodeAttrID which,
                     const CUkernelNodeAttrValue* value) {
  refuse_if(node.type != CU_GRAPH_NODE_TYPE_KERNEL || !is_of_nodes(which), CUDA_ERROR_INVALID_VALUE);
  LaunchPlan changed = node.launch;
  read_attribute({which, {}, *value}, changed);
  node.launch = std::move(changed);
}

SOFTWARE_DRIVER_CALL(cuGraphKernelNodeCopyAttributes, Call&, GraphNode& to, const GraphNode& from) {
  refuse_if(to.type != CU_GRAPH_NODE_TYPE_KERNEL || from.type != CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
  to.launch.cooperative = from.launch.cooperative;
  to.launch.clusters = from.launch.clusters;
  to.launch.cluster = from.launch.cluster;
  to.launch.priority = from.launch.priority;
}

SOFTWARE_DRIVER_CALL(cuGraphKernelNodeGetAttribute, Call&, GraphNode& node, CUkernelNodeAttrID which,
                     CUkernelNodeAttrValue* out) {
  refuse_if(node.type != CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
  CUlaunchAttributeValue value{};
  tell_attribute(node.launch, which, value);
  give(out, value);
}
