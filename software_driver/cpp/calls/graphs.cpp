// Graphs as a whole: making, instantiating, launching, updating what was instantiated.
#include <algorithm>

#include "calls/events.hpp"
#include "calls/graph_memory.hpp"
#include "calls/graph_nodes.hpp"
#include "calls/launch.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
namespace {

bool has_allowed_nodes(const Graph& graph, bool in_condition) {
  constexpr CUgraphNodeType of_conditions[] = {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_EMPTY,
                                               CU_GRAPH_NODE_TYPE_GRAPH,  CU_GRAPH_NODE_TYPE_MEMSET,
                                               CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_CONDITIONAL};
  return std::ranges::all_of(graph.nodes, [&](const GraphNode* node) {
    const bool inside = in_condition || node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    return (!in_condition || std::ranges::find(of_conditions, node->type) != std::end(of_conditions)) &&
           std::ranges::all_of(node->bodies, [&](const Graph* body) { return has_allowed_nodes(*body, inside); });
  });
}

// Recorded of clusters: what has no room in its context is found here. A card takes a cooperative grid that is too
// large, and never ends it.
void check_room(Call& c, const ExecNodes& nodes) {
  each_node(nodes, [&](const ExecNode& one) {
    const Context* context = c.machine.contexts.find(one.node.context_handle);
    if (one.node.type == CU_GRAPH_NODE_TYPE_KERNEL && context != nullptr) {
      check_room(c.machine, *context, one.node.launch);
    }
  });
}

void instantiate(Call& c, CUgraphExec* out, const Graph& graph, unsigned long long flags) {
  // Kernels do not launch anything here.
  refuse_if((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0, CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(!has_allowed_nodes(graph, false), CUDA_ERROR_NOT_SUPPORTED);
  auto exec = std::make_unique<GraphExec>();
  exec->has_memory = has_memory_nodes(graph);
  exec->graph_id = graph.id;
  if (exec->has_memory) {
    bool another = false;
    c.machine.graph_execs.each([&](const GraphExec& other) { another = another || other.graph_id == graph.id; });
    refuse_if(another, CUDA_ERROR_INVALID_VALUE);
  }
  refuse_if(!freeze(c.machine, graph, exec->nodes), CUDA_ERROR_INVALID_VALUE);
  check_room(c, exec->nodes);
  c.made(*exec);
  exec->flags = flags;
  for (const auto& [object, count] : graph.kept) {
    keep(exec->kept, *object, count);
  }
  hold_memory(c.machine, *exec);
  give(out, c.machine.graph_execs.add(std::move(exec)));
}

// Recorded: a node runs in the context it was captured in, whichever stream replays it.
void check_contexts(Call& c, const ExecNodes& nodes) {
  each_node(nodes, [&](const ExecNode& one) {
    const Context* context = c.machine.contexts.find(one.node.context_handle);
    if (one.node.context_id != 0 && (context == nullptr || context->id != one.node.context_id)) {
      c.note(Misuse::use_after_destroy, one.node.context_handle,
             "the context that a graph was captured in is destroyed");
      refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
  });
}

// Which of the bodies of a node run. Assumed: kernels are not executed and so never set a condition; a loop whose
// condition holds at the launch ends after one turn.
const ExecNodes* body_to_run(const ExecNode& one) {
  if (one.bodies.empty()) {
    return nullptr;
  }
  if (one.node.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return one.bodies.data();
  }
  std::size_t place = one.assigned_at_launch ? one.initial : 0;
  if (one.node.parameters.conditional.type != CU_GRAPH_COND_TYPE_SWITCH) {
    place = place != 0 ? 0 : 1;
  }
  return place < one.bodies.size() ? &one.bodies[place] : nullptr;
}

void pass_memory(Call& c, const GraphExec& exec, const ExecNodes& nodes) {
  for (const ExecNode& one : nodes) {
    if (one.node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      allocate_at_launch(c, exec, one.node.parameters.alloc.dptr);
    } else if (one.node.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      free_at_launch(c, one.node.parameters.free.dptr);
    }
    if (const ExecNodes* body = body_to_run(one)) {
      pass_memory(c, exec, *body);
    }
  }
}

WorkPtr work_of(Call& c, const ExecNode& one, const Stream& stream) {
  if (!one.enabled) {
    return work_of(c, GraphNode{}, nullptr, stream.device);
  }
  const GraphNode& node = one.node;
  const Context* context = node.context_id == 0 ? nullptr : c.machine.contexts.find(node.context_handle);
  return work_of(c, node, context, context != nullptr ? context->device : stream.device);
}

// An event may be destroyed before a graph that names it is launched: then nothing is recorded and nothing waits.
void pass_event(Call& c, const GraphNode& node, const WorkPtr& work) {
  const bool named = node.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || node.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  Event* event = named ? c.machine.events.find(node.parameters.eventRecord.event) : nullptr;
  if (event == nullptr) {
    return;
  }
  if (node.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
    if (const WorkPtr record = awaited(c, *event)) {
      work->after.push_back(record);
    }
    return;
  }
  event->capture.reset();
  event->captured.clear();
  event->record = work;
  work->effect = mark_recorded(*event);
}

// Recorded of kernels, copies, fills and events; assumed of the others. What is seen shows what stands before it, too.
Seen seen(Call& c, const GraphNode& node) {
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
      return Seen::by_all;
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST:
      return Seen::by_waits;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
      const Event* event = c.machine.events.find(node.parameters.eventRecord.event);
      return event == nullptr || is_silent(*event) ? Seen::by_none : Seen::by_waits;
    }
    default:
      return Seen::by_none;
  }
}

std::vector<WorkPtr> submit_nodes(Call& c, const ExecNodes& nodes, const Stream& stream,
                                  const std::vector<WorkPtr>& begin) {
  std::vector<WorkPtr> works;
  for (const ExecNode& one : nodes) {
    const WorkPtr work = work_of(c, one, stream);
    // Recorded: waits ask for the stream, and not for where its kernels run.
    work->owner = {stream.context->id, stream.context->root_id, false};
    work->seen = hides_from_primary(c, *stream.context) ? seen(c, one.node) : Seen::by_all;
    work->after = begin;
    for (const std::size_t before : one.after) {
      work->after.push_back(works[before]);
    }
    pass_event(c, one.node, work);
    if (const ExecNodes* body = body_to_run(one)) {
      const std::vector<WorkPtr> inside = submit_nodes(c, *body, stream, work->after);
      work->after.insert(work->after.end(), inside.begin(), inside.end());
    }
    c.machine.clock.submit(work);
    works.push_back(work);
  }
  return works;
}

void replay(Call& c, GraphExec& exec, Stream& stream) {
  check_contexts(c, exec.nodes);
  pass_memory(c, exec, exec.nodes);
  // Recorded: of several graphs, the last one is hidden.
  c.machine.clock.show_to_primary(stream.last);
  const WorkPtr begin = submit(c, stream, GraphNode{}, Seen::by_none);
  auto end = std::make_shared<Work>();
  end->seen = hides_from_primary(c, *stream.context) ? Seen::by_none : Seen::by_all;
  end->after = submit_nodes(c, exec.nodes, stream, {begin, exec.last});
  end->after.push_back(begin);
  put(c, stream, end);
  exec.last = end;
}

using UpdateInfo = CUgraphExecUpdateResultInfo;

bool decline(UpdateInfo& info, CUgraphExecUpdateResult why, const ExecNode* node) {
  info.result = why;
  info.errorNode = node == nullptr ? nullptr : as_handle<CUgraphNode>(node->node);
  return false;
}

// Whether a node that was instantiated can do what the new one does.
bool may_become(const GraphNode& old, const GraphNode& now, CUgraphExecUpdateResult& why) {
  why = CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
  if (old.type == CU_GRAPH_NODE_TYPE_KERNEL && old.context_id != now.context_id) {
    return false;
  }
  why = CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
  if (old.launch.cooperative != now.launch.cooperative) {
    return false;
  }
  why = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  switch (old.type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const CUDA_MEMCPY3D& was = old.parameters.memcpy.copyParams;
      const CUDA_MEMCPY3D& is = now.parameters.memcpy.copyParams;
      return was.srcMemoryType == is.srcMemoryType && was.dstMemoryType == is.dstMemoryType;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
      return software_driver::may_become(old, now);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& was = old.parameters.memset;
      const CUDA_MEMSET_NODE_PARAMS_v2& is = now.parameters.memset;
      return (was.height <= 1 && is.height <= 1) || (was.width == is.width && was.height == is.height &&
                                                     was.pitch == is.pitch && was.elementSize == is.elementSize);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      const CUDA_CONDITIONAL_NODE_PARAMS& was = old.parameters.conditional;
      return was.type == now.parameters.conditional.type && was.size == now.parameters.conditional.size;
    }
    default:
      return true;
  }
}

// Nodes are paired in the order of their making.
bool may_update(const ExecNodes& old, const ExecNodes& now, UpdateInfo& info) {
  if (old.size() != now.size()) {
    return decline(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  }
  for (std::size_t i = 0; i < now.size(); ++i) {
    const ExecNode& was = old[i];
    const ExecNode& is = now[i];
    if (was.node.type != is.node.type) {
      return decline(info, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, &is);
    }
    if (was.after != is.after) {
      return decline(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &is);
    }
    CUgraphExecUpdateResult why{};
    if (!may_become(was.node, is.node, why)) {
      return decline(info, why, &is);
    }
    for (std::size_t body = 0; body < is.bodies.size(); ++body) {
      if (!may_update(was.bodies[body], is.bodies[body], info)) {
        return false;
      }
    }
  }
  return true;
}

void update(ExecNodes& old, ExecNodes& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    for (std::size_t body = 0; body < now[i].bodies.size(); ++body) {
      update(old[i].bodies[body], now[i].bodies[body]);
    }
    old[i].initial = now[i].initial;
    old[i].assigned_at_launch = now[i].assigned_at_launch;
    // Memory stays where it was instantiated.
    if (old[i].node.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && old[i].node.type != CU_GRAPH_NODE_TYPE_MEM_FREE) {
      adopt(old[i].node, std::move(now[i].node));
    }
  }
}

void update_exec(Call& c, CUgraphExec exec_handle, CUgraph graph_handle, UpdateInfo* out) {
  UpdateInfo info{CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
  give(out, info);
  GraphExec& exec = find<GraphExec>(c, exec_handle);
  const Graph& graph = find<Graph>(c, graph_handle);
  ExecNodes nodes;
  refuse_if(!freeze(c.machine, graph, nodes), CUDA_ERROR_INVALID_VALUE);
  const bool may = may_update(exec.nodes, nodes, info);
  if (may) {
    info.result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    update(exec.nodes, nodes);
    KeptObjects before = std::exchange(exec.kept, {});
    for (const auto& [object, count] : graph.kept) {
      keep(exec.kept, *object, count);
    }
    let_all_go(c.machine, before);
  }
  give(out, info);
  refuse_if(!may, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

void update_child(Call& c, GraphExec& exec, const GraphNode& node, const Graph& graph) {
  ExecNode* copy = find_copy(exec.nodes, node);
  ExecNodes nodes;
  UpdateInfo info{};
  refuse_if(copy == nullptr || node.type != CU_GRAPH_NODE_TYPE_GRAPH || !freeze(c.machine, graph, nodes) ||
                !may_update(copy->bodies[0], nodes, info),
            CUDA_ERROR_INVALID_VALUE);
  update(copy->bodies[0], nodes);
}

// The copy of a node that can be switched off.
ExecNode& find_switchable(GraphExec& exec, const GraphNode& node) {
  const bool can_be = node.type == CU_GRAPH_NODE_TYPE_KERNEL || node.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                      node.type == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH || node.type == CU_GRAPH_NODE_TYPE_MEMSET;
  return need(can_be ? find_copy(exec.nodes, node) : nullptr, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuGraphCreate, Call& c, CUgraph* out) { give(out, add_graph(c.machine)); }

SOFTWARE_DRIVER_CALL(cuGraphDestroy, Call& c, Graph& graph) {
  refuse_if(is_being_captured(graph), CUDA_ERROR_ILLEGAL_STATE);
  refuse_if(graph.owner != nullptr, CUDA_ERROR_INVALID_VALUE);
  drop(c.machine, graph);
}

SOFTWARE_DRIVER_CALL(cuGraphConditionalHandleCreate, Call& c, CUgraphConditionalHandle* out, Graph& graph,
                     const Context&, unsigned initial, unsigned flags) {
  Condition& condition = c.add(c.machine.conditions);
  condition.graph = &graph;
  condition.initial = initial;
  condition.assigned_at_launch = flags != 0;
  graph.conditions.push_back(&condition);
  give(out, condition);
}

SOFTWARE_DRIVER_CALL(cuGraphInstantiateWithParams, Call& c, CUgraphExec* out, const Graph& graph,
                     CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  params->hErrNode_out = nullptr;
  params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  refuse_if(!allows(Fn::cuGraphInstantiateWithFlags, 2, params->flags), CUDA_ERROR_INVALID_VALUE);
  instantiate(c, out, graph, params->flags);
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
}

SOFTWARE_DRIVER_CALL(cuGraphNodeSetEnabled, Call&, GraphExec& exec, const GraphNode& node, unsigned enabled) {
  find_switchable(exec, node).enabled = enabled != 0;
}

SOFTWARE_DRIVER_CALL(cuGraphNodeGetEnabled, Call&, GraphExec& exec, const GraphNode& node, unsigned* enabled) {
  give(enabled, find_switchable(exec, node).enabled ? 1U : 0U);
}

SOFTWARE_DRIVER_CALL(cuGraphExecDestroy, Call& c, GraphExec& exec) { drop(c.machine, exec); }
SOFTWARE_DRIVER_CALL(cuGraphUpload, Call&, const GraphExec&, const Stream&) {}
SOFTWARE_DRIVER_ROW(cuGraphLaunch, replay)
SOFTWARE_DRIVER_ROW(cuGraphInstantiateWithFlags, instantiate)
SOFTWARE_DRIVER_ROW(cuGraphExecUpdate_v2, update_exec)
SOFTWARE_DRIVER_ROW(cuGraphExecChildGraphNodeSetParams, update_child)
SOFTWARE_DRIVER_GET(cuGraphExecGetFlags, &GraphExec::flags)
SOFTWARE_DRIVER_GET(cuGraphExecGetId, &GraphExec::id, const GraphExec)
