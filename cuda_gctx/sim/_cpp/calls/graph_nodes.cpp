// Nodes of graphs: making them, their parameters, and changing those.
#include "calls/graph_nodes.hpp"

#include <algorithm>
#include <cstring>

#include "calls/copies.hpp"
#include "calls/graph_memory.hpp"
#include "calls/launch.hpp"
#include "calls/modules.hpp"

namespace gctx::sim {
namespace {

// Where a node runs: in the context that is named, or in the current one.
Context& context_for(Call& c, CUcontext handle, GraphNode& node) {
  Context& context = find_context(c, handle, true);
  node.context_handle = context.handle;
  node.context_id = context.id;
  return context;
}

void plan_kernel_node(Call& c, const CUDA_KERNEL_NODE_PARAMS_v3& kernel, GraphNode& node) {
  // Recorded: beside a function, the context that is named is ignored.
  const Context& context = context_for(c, kernel.func == nullptr ? kernel.ctx : nullptr, node);
  LaunchPlan& plan = node.launch;
  plan.grid = {kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ};
  plan.threads = {kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ};
  plan.shared_bytes = kernel.sharedMemBytes;
  const CUfunction function = kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
  refuse_if(function == nullptr, CUDA_ERROR_INVALID_VALUE);
  return plan_launch(c, context, function, plan, kernel.kernelParams, kernel.extra);
}

void plan_host_node(const CUDA_HOST_NODE_PARAMS_v2& host, GraphNode& node) {
  refuse_if(host.fn == nullptr || host.syncMode > CU_HOST_TASK_SPINWAIT, CUDA_ERROR_INVALID_VALUE);
  node.parameters = host;
  node.host = [function = host.fn, user = host.userData] { function(user); };
}

void plan_event_node(Call& c, CUevent event, GraphNode& node) {
  find_event(c, event);
  node.parameters = EventNode{event};
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
    const auto* freed = std::get_if<FreeNode>(&other->parameters);
    const auto* allocated = std::get_if<AllocNode>(&other->parameters);
    refuse_if(freed != nullptr && freed->address == address, CUDA_ERROR_INVALID_VALUE);
    own = own || (allocated != nullptr && allocated->parameters.dptr == address);
  }
  refuse_if(found->second.freed_in_graph, CUDA_ERROR_INVALID_VALUE);
  found->second.freed_in_graph = own;
  node.parameters = FreeNode{address};
}

bool fits(CUgraphConditionalNodeType type, unsigned size, int version) {
  constexpr int with_else_and_switch = 12080;
  switch (type) {
    case CU_GRAPH_COND_TYPE_IF:
      return size == 1 || (size == 2 && version >= with_else_and_switch);
    case CU_GRAPH_COND_TYPE_WHILE:
      return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return size > 0 && size <= 4096 && version >= with_else_and_switch;
    default:
      return false;
  }
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
  ConditionalNode made{conditional.handle, conditional.type, {}};
  for (unsigned i = 0; i < conditional.size; ++i) {
    node.bodies.push_back(&add_graph(c.machine));
    made.bodies.push_back(as_handle<CUgraph>(*node.bodies.back()));
  }
  node.parameters = std::move(made);
}

void add(Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies, const CUgraphEdgeData* data,
         std::size_t count, CUgraphNodeParams& parameters) {
  std::vector<Edge> after;
  read_edges(c, graph, dependencies, data, count, after);
  GraphNode node;
  plan_node(c, graph, parameters, node);
  node.after = std::move(after);
  GraphNode& added = add_node(c.machine, graph, std::move(node));
  if (auto* conditional = std::get_if<ConditionalNode>(&added.parameters)) {
    parameters.conditional.phGraph_out = conditional->bodies.data();
  }
  if (added.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    parameters.graph.graph = as_handle<CUgraph>(*added.bodies[0]);
  }
  give(out, as_handle<CUgraphNode>(added));
}

// The calls that add one type of node are the same call with other parameters.
void add(Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies, std::size_t count,
         CUgraphNodeParams parameters) {
  return add(c, out, graph, dependencies, nullptr, count, parameters);
}

CUDA_KERNEL_NODE_PARAMS_v3 newest(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  return {kernel.func,         kernel.gridDimX,  kernel.gridDimY,  kernel.gridDimZ,
          kernel.blockDimX,    kernel.blockDimY, kernel.blockDimZ, kernel.sharedMemBytes,
          kernel.kernelParams, kernel.extra,     kernel.kern,      kernel.ctx};
}

CUDA_MEMSET_NODE_PARAMS_v2 newest(const CUDA_MEMSET_NODE_PARAMS& fill, CUcontext context) {
  return {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height, context};
}

// Nodes of memory and of conditions stay as they are. Where no context is named, a node keeps its own.
void set(Call& c, GraphNode& node, CUgraphNodeParams& parameters, GraphNode& planned) {
  refuse_if(parameters.type != node.type, CUDA_ERROR_INVALID_VALUE);
  const auto or_own = [&](CUcontext& context) {
    if (context == nullptr) {
      context = reinterpret_cast<CUcontext>(node.context_handle);
    }
  };
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      // Recorded: it keeps its attributes.
      planned.launch.cooperative = node.launch.cooperative;
      planned.launch.clusters = node.launch.clusters;
      planned.launch.cluster = node.launch.cluster;
      planned.launch.priority = node.launch.priority;
      planned.launch.updatable = node.launch.updatable;
      return plan_node(c, *node.graph, parameters, planned);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      or_own(parameters.memcpy.copyCtx);
      return plan_node(c, *node.graph, parameters, planned);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      or_own(parameters.memset.ctx);
      return plan_node(c, *node.graph, parameters, planned);
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return plan_node(c, *node.graph, parameters, planned);
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

void set_in_graph(Call& c, GraphNode& node, CUgraphNodeParams parameters) {
  GraphNode planned;
  set(c, node, parameters, planned);
  adopt(node, std::move(planned));
}

void set_in_exec(Call& c, GraphExec& exec, GraphNode& node, CUgraphNodeParams parameters) {
  ExecNode* copy = find_copy(exec.nodes, node);
  refuse_if(copy == nullptr, CUDA_ERROR_INVALID_VALUE);
  GraphNode planned;
  set(c, node, parameters, planned);
  // Recorded: what is executable stays in its context.
  refuse_if(node.type == CU_GRAPH_NODE_TYPE_KERNEL && planned.context_id != copy->node.context_id,
            CUDA_ERROR_INVALID_VALUE);
  adopt(copy->node, std::move(planned));
}

// The parameters that describe a node.
void describe(Call& c, GraphNode& node, CUgraphNodeParams& parameters) {
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
      parameters.kernel = {kernel == nullptr || own == nullptr ? plan.function : function_on(c, *kernel, own->device),
                           plan.grid[0],
                           plan.grid[1],
                           plan.grid[2],
                           plan.threads[0],
                           plan.threads[1],
                           plan.threads[2],
                           plan.shared_bytes,
                           node.argument_pointers.empty() ? nullptr : node.argument_pointers.data(),
                           nullptr,
                           kernel == nullptr ? nullptr : reinterpret_cast<CUkernel>(plan.function),
                           context};
      return;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      parameters.memcpy.copyCtx = context;
      parameters.memcpy.copyParams = std::get<CUDA_MEMCPY3D>(node.parameters);
      return;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      parameters.memset = newest(std::get<CUDA_MEMSET_NODE_PARAMS>(node.parameters), context);
      return;
    case CU_GRAPH_NODE_TYPE_HOST:
      parameters.host = std::get<CUDA_HOST_NODE_PARAMS_v2>(node.parameters);
      return;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      parameters.graph.graph = as_handle<CUgraph>(*node.bodies[0]);
      return;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      parameters.eventWait.event = std::get<EventNode>(node.parameters).event;
      return;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      parameters.eventRecord.event = std::get<EventNode>(node.parameters).event;
      return;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      const auto& made = std::get<AllocNode>(node.parameters);
      parameters.alloc = made.parameters;
      parameters.alloc.accessDescs = made.access.empty() ? nullptr : made.access.data();
      return;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      parameters.free.dptr = std::get<FreeNode>(node.parameters).address;
      return;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      auto& conditional = std::get<ConditionalNode>(node.parameters);
      parameters.conditional = {conditional.condition, conditional.type,
                                static_cast<unsigned>(conditional.bodies.size()), conditional.bodies.data(), context};
      return;
    }
    default:
      return;
  }
}

template <class Take>
void get_typed(Call& c, GraphNode& node, CUgraphNodeType type, Take&& take) {
  CUgraphNodeParams parameters{};
  refuse_if(node.type != type, CUDA_ERROR_INVALID_VALUE);
  describe(c, node, parameters);
  return take(parameters);
}

CUgraphNodeParams of_type(CUgraphNodeType type) {
  CUgraphNodeParams parameters{};
  parameters.type = type;
  return parameters;
}
CUgraphNodeParams of_kernel(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_KERNEL);
  parameters.kernel = newest(kernel);
  return parameters;
}
CUgraphNodeParams of_copy(const CUDA_MEMCPY3D& copy, CUcontext context) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_MEMCPY);
  parameters.memcpy.copyCtx = context;
  parameters.memcpy.copyParams = copy;
  return parameters;
}
CUgraphNodeParams of_fill(const CUDA_MEMSET_NODE_PARAMS& fill, CUcontext context) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_MEMSET);
  parameters.memset = newest(fill, context);
  return parameters;
}
CUgraphNodeParams of_host(const CUDA_HOST_NODE_PARAMS& host) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_HOST);
  parameters.host.fn = host.fn;
  parameters.host.userData = host.userData;
  return parameters;
}
CUgraphNodeParams of_record(CUevent event) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  parameters.eventRecord.event = event;
  return parameters;
}
CUgraphNodeParams of_wait(CUevent event) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  parameters.eventWait.event = event;
  return parameters;
}

// Attributes that change nothing here read as zeros.
void read_attribute(const LaunchPlan& plan, CUlaunchAttributeID which, CUlaunchAttributeValue& value) {
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
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return;
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
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
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& fill = parameters.memset;
      context_for(c, fill.ctx, node);
      return plan_fill(c, {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height}, node);
    }
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
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      AllocNode made{parameters.alloc, {}};
      make_graph_memory(c, made);
      parameters.alloc.dptr = made.parameters.dptr;
      node.parameters = std::move(made);
      return;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return plan_free_node(c, graph, parameters.free.dptr, node);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return plan_conditional_node(c, graph, parameters.conditional, node);
    default:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
  }
}

void adopt(GraphNode& node, GraphNode planned) {
  node.context_handle = planned.context_handle;
  node.context_id = planned.context_id;
  node.launch = std::move(planned.launch);
  node.parameters = std::move(planned.parameters);
  node.effect = std::move(planned.effect);
  node.marks = std::move(planned.marks);
  node.until = std::move(planned.until);
  node.shows = planned.shows;
  node.host = std::move(planned.host);
  node.duration = planned.duration;
  node.engine = planned.engine;
  node.bytes = planned.bytes;
}

void read_edges(Call& c, const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data, std::size_t count,
                std::vector<Edge>& edges) {
  refuse_if(nodes == nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode& node = find<GraphNode>(c, nodes[i]);
    const Edge edge{&node, data == nullptr ? CUgraphEdgeData{} : data[i]};
    const bool twice = std::find(edges.begin(), edges.end(), edge) != edges.end();
    refuse_if(node.graph != &graph || twice || edge.data.to_port != 0, CUDA_ERROR_INVALID_VALUE);
    refuse_if(edge.data.from_port != 0 && node.type != CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
    edges.push_back(edge);
  }
}

bool has_room_for_copy(Call& c, const Graph& graph) {
  constexpr std::size_t limit = 1'000'000;
  return c.machine.graph_nodes.live() + count_nodes(graph) <= limit;
}

ExecNode* find_copy(ExecNodes& nodes, const GraphNode& node) {
  for (ExecNode& one : nodes) {
    if (one.node.copied_from == node.id) {
      return &one;
    }
    for (ExecNodes& body : one.bodies) {
      if (ExecNode* found = find_copy(body, node)) {
        return found;
      }
    }
  }
  return nullptr;
}

}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuGraphAddNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUgraphNodeParams* parameters) {
  return add(c, out, graph, dependencies, nullptr, count, *parameters);
}
GCTX_SIM_CALL(cuGraphAddNode_v2, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              const CUgraphEdgeData* data, std::size_t count, CUgraphNodeParams* parameters) {
  return add(c, out, graph, dependencies, data, count, *parameters);
}
GCTX_SIM_SAME(cuGraphAddNode_v3, cuGraphAddNode_v2)

GCTX_SIM_CALL(cuGraphAddKernelNode_v2, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, const CUDA_KERNEL_NODE_PARAMS* kernel) {
  return add(c, out, graph, dependencies, count, of_kernel(*kernel));
}
GCTX_SIM_CALL(cuGraphAddMemcpyNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, const CUDA_MEMCPY3D* copy, CUcontext context) {
  return add(c, out, graph, dependencies, count, of_copy(*copy, context));
}
GCTX_SIM_CALL(cuGraphAddMemsetNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  return add(c, out, graph, dependencies, count, of_fill(*fill, context));
}
GCTX_SIM_CALL(cuGraphAddHostNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, const CUDA_HOST_NODE_PARAMS* host) {
  return add(c, out, graph, dependencies, count, of_host(*host));
}
GCTX_SIM_CALL(cuGraphAddChildGraphNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUgraph child) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_GRAPH);
  parameters.graph.graph = child;
  return add(c, out, graph, dependencies, count, parameters);
}
GCTX_SIM_CALL(cuGraphAddEmptyNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count) {
  return add(c, out, graph, dependencies, count, of_type(CU_GRAPH_NODE_TYPE_EMPTY));
}
GCTX_SIM_CALL(cuGraphAddEventRecordNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUevent event) {
  return add(c, out, graph, dependencies, count, of_record(event));
}
GCTX_SIM_CALL(cuGraphAddEventWaitNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUevent event) {
  return add(c, out, graph, dependencies, count, of_wait(event));
}
GCTX_SIM_CALL(cuGraphAddMemAllocNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* memory) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  parameters.alloc = {memory->poolProps, memory->accessDescs, memory->accessDescCount, memory->bytesize, 0};
  memory->dptr = 0;
  add(c, out, graph, dependencies, nullptr, count, parameters);
  memory->dptr = parameters.alloc.dptr;
}
GCTX_SIM_CALL(cuGraphAddMemFreeNode, Call& c, CUgraphNode* out, Graph& graph, const CUgraphNode* dependencies,
              std::size_t count, CUdeviceptr address) {
  CUgraphNodeParams parameters = of_type(CU_GRAPH_NODE_TYPE_MEM_FREE);
  parameters.free.dptr = address;
  return add(c, out, graph, dependencies, count, parameters);
}

GCTX_SIM_CALL(cuGraphNodeGetParams, Call& c, GraphNode& node, CUgraphNodeParams* out) {
  *out = {};
  return describe(c, node, *out);
}
GCTX_SIM_CALL(cuGraphKernelNodeGetParams_v2, Call& c, GraphNode& node, CUDA_KERNEL_NODE_PARAMS* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_KERNEL, [&](const CUgraphNodeParams& parameters) {
    const CUDA_KERNEL_NODE_PARAMS_v3& k = parameters.kernel;
    return give(out, CUDA_KERNEL_NODE_PARAMS{k.func, k.gridDimX, k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY,
                                             k.blockDimZ, k.sharedMemBytes, k.kernelParams, k.extra, k.kern, k.ctx});
  });
}
GCTX_SIM_CALL(cuGraphKernelNodeGetAttribute, Call&, GraphNode& node, CUkernelNodeAttrID which,
              CUkernelNodeAttrValue* out) {
  refuse_if(node.type != CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
  CUlaunchAttributeValue value{};
  read_attribute(node.launch, which, value);
  give(out, value);
}
GCTX_SIM_CALL(cuGraphMemcpyNodeGetParams, Call& c, GraphNode& node, CUDA_MEMCPY3D* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_MEMCPY,
                   [&](const CUgraphNodeParams& parameters) { give(out, parameters.memcpy.copyParams); });
}
GCTX_SIM_CALL(cuGraphMemsetNodeGetParams, Call& c, GraphNode& node, CUDA_MEMSET_NODE_PARAMS* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_MEMSET, [&](const CUgraphNodeParams& parameters) {
    const CUDA_MEMSET_NODE_PARAMS_v2& fill = parameters.memset;
    return give(out,
                CUDA_MEMSET_NODE_PARAMS{fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height});
  });
}
GCTX_SIM_CALL(cuGraphHostNodeGetParams, Call& c, GraphNode& node, CUDA_HOST_NODE_PARAMS* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_HOST, [&](const CUgraphNodeParams& parameters) {
    return give(out, CUDA_HOST_NODE_PARAMS{parameters.host.fn, parameters.host.userData});
  });
}
GCTX_SIM_CALL(cuGraphChildGraphNodeGetGraph, Call& c, GraphNode& node, CUgraph* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_GRAPH,
                   [&](const CUgraphNodeParams& parameters) { give(out, parameters.graph.graph); });
}
GCTX_SIM_CALL(cuGraphEventRecordNodeGetEvent, Call& c, GraphNode& node, CUevent* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                   [&](const CUgraphNodeParams& parameters) { give(out, parameters.eventRecord.event); });
}
GCTX_SIM_CALL(cuGraphEventWaitNodeGetEvent, Call& c, GraphNode& node, CUevent* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                   [&](const CUgraphNodeParams& parameters) { give(out, parameters.eventWait.event); });
}
GCTX_SIM_CALL(cuGraphMemAllocNodeGetParams, Call& c, GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](const CUgraphNodeParams& parameters) {
    const CUDA_MEM_ALLOC_NODE_PARAMS_v2& memory = parameters.alloc;
    return give(out, CUDA_MEM_ALLOC_NODE_PARAMS{memory.poolProps, memory.accessDescs, memory.accessDescCount,
                                                memory.bytesize, memory.dptr});
  });
}
GCTX_SIM_CALL(cuGraphMemFreeNodeGetParams, Call& c, GraphNode& node, CUdeviceptr* out) {
  return get_typed(c, node, CU_GRAPH_NODE_TYPE_MEM_FREE,
                   [&](const CUgraphNodeParams& parameters) { give(out, parameters.free.dptr); });
}

GCTX_SIM_CALL(cuGraphNodeSetParams, Call& c, GraphNode& node, CUgraphNodeParams* parameters) {
  return set_in_graph(c, node, *parameters);
}
GCTX_SIM_SAME(cuGraphNodeSetParams_v2, cuGraphNodeSetParams)
GCTX_SIM_CALL(cuGraphKernelNodeSetParams_v2, Call& c, GraphNode& node, const CUDA_KERNEL_NODE_PARAMS* kernel) {
  return set_in_graph(c, node, of_kernel(*kernel));
}
GCTX_SIM_CALL(cuGraphMemcpyNodeSetParams, Call& c, GraphNode& node, const CUDA_MEMCPY3D* copy) {
  return set_in_graph(c, node, of_copy(*copy, nullptr));
}
GCTX_SIM_CALL(cuGraphMemsetNodeSetParams, Call& c, GraphNode& node, const CUDA_MEMSET_NODE_PARAMS* fill) {
  return set_in_graph(c, node, of_fill(*fill, nullptr));
}
GCTX_SIM_CALL(cuGraphHostNodeSetParams, Call& c, GraphNode& node, const CUDA_HOST_NODE_PARAMS* host) {
  return set_in_graph(c, node, of_host(*host));
}
GCTX_SIM_CALL(cuGraphEventRecordNodeSetEvent, Call& c, GraphNode& node, CUevent event) {
  return set_in_graph(c, node, of_record(event));
}
GCTX_SIM_CALL(cuGraphEventWaitNodeSetEvent, Call& c, GraphNode& node, CUevent event) {
  return set_in_graph(c, node, of_wait(event));
}

GCTX_SIM_CALL(cuGraphExecNodeSetParams, Call& c, GraphExec& exec, GraphNode& node, CUgraphNodeParams* parameters) {
  return set_in_exec(c, exec, node, *parameters);
}
GCTX_SIM_CALL(cuGraphExecKernelNodeSetParams_v2, Call& c, GraphExec& exec, GraphNode& node,
              const CUDA_KERNEL_NODE_PARAMS* kernel) {
  return set_in_exec(c, exec, node, of_kernel(*kernel));
}
GCTX_SIM_CALL(cuGraphExecMemcpyNodeSetParams, Call& c, GraphExec& exec, GraphNode& node, const CUDA_MEMCPY3D* copy,
              CUcontext context) {
  return set_in_exec(c, exec, node, of_copy(*copy, context));
}
GCTX_SIM_CALL(cuGraphExecMemsetNodeSetParams, Call& c, GraphExec& exec, GraphNode& node,
              const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  return set_in_exec(c, exec, node, of_fill(*fill, context));
}
GCTX_SIM_CALL(cuGraphExecHostNodeSetParams, Call& c, GraphExec& exec, GraphNode& node,
              const CUDA_HOST_NODE_PARAMS* host) {
  return set_in_exec(c, exec, node, of_host(*host));
}
GCTX_SIM_CALL(cuGraphExecEventRecordNodeSetEvent, Call& c, GraphExec& exec, GraphNode& node, CUevent event) {
  return set_in_exec(c, exec, node, of_record(event));
}
GCTX_SIM_CALL(cuGraphExecEventWaitNodeSetEvent, Call& c, GraphExec& exec, GraphNode& node, CUevent event) {
  return set_in_exec(c, exec, node, of_wait(event));
}
