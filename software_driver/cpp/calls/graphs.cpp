// Graphs as a whole: making, instantiating, launching, updating what was instantiated.
#include <algorithm>

#include "calls/events.hpp"
#include "calls/graph_memory.hpp"
#include "calls/graph_nodes.hpp"
#include "calls/launch.hpp"
#include "calls/queueing.hpp"
#include "machine/observer.hpp"

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

// The body of a child graph.
const ExecNodes* child_of(const ExecNode& one) {
  return one.node.type != CU_GRAPH_NODE_TYPE_CONDITIONAL && !one.bodies.empty() ? one.bodies.data() : nullptr;
}

void pass_memory(Call& c, const GraphExec& exec, const ExecNodes& nodes) {
  for (const ExecNode& one : nodes) {
    if (one.node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      allocate_at_launch(c, exec, one.node.parameters.alloc.dptr);
    } else if (one.node.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      free_at_launch(c, one.node.parameters.free.dptr);
    }
    if (const ExecNodes* body = child_of(one)) {
      pass_memory(c, exec, *body);
    }
  }
}

WorkPtr work_of(Call& c, const ExecNode& one, const Context& launched_in) {
  if (!one.enabled) {
    return work_of(c, GraphNode{}, nullptr, launched_in.device);
  }
  const GraphNode& node = one.node;
  const Context* context = node.context_id == 0 ? nullptr : c.machine.contexts.find(node.context_handle);
  return work_of(c, node, context, context != nullptr ? context->device : launched_in.device);
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

std::vector<WorkPtr> submit_nodes(Call& c, const ExecNodes& nodes, const Context& launched_in,
                                  const std::vector<WorkPtr>& begin, const WorkSource& source);

// A conditional node under way: its condition is asked when the nodes before it are done, and again after each turn of
// a loop.
class Choice {
 public:
  Choice(Machine& machine, const ExecNode& node, const Context& launched_in, const WorkSource& source)
      : machine_(machine), node_(node), context_(launched_in.handle), context_id_(launched_in.id), source_(source) {}

  // Goes on where it can. True when the node is done.
  bool is_done(Work& work) {
    while (true) {
      if (std::ranges::any_of(inside_, [](const WorkPtr& one) { return !one->done; })) {
        return false;
      }
      for (const WorkPtr& one : inside_) {
        work.inherit_failures(*one);
      }
      const bool has_run = !std::exchange(inside_, {}).empty();
      const auto& node = node_.node.parameters.conditional;
      const Condition* condition = machine_.conditions.find(node.handle);
      // Assumed: a loop ends after a turn in which no kernel that was executed has set the condition.
      const bool goes_on = node.type == CU_GRAPH_COND_TYPE_WHILE && condition != nullptr && condition->sets != sets_;
      const unsigned value = condition != nullptr ? condition->value : node_.assigned_at_launch ? node_.initial : 0;
      const ExecNodes* body = has_run && !goes_on ? nullptr : chosen(value);
      const Context* context = machine_.contexts.find(context_);
      if (body == nullptr || body->empty() || context == nullptr || context->id != context_id_) {
        return true;
      }
      sets_ = condition != nullptr ? condition->sets : 0;
      std::unique_lock<std::mutex> held;  // by the caller
      Call call{machine_, held, Fn::cuGraphLaunch, machine_.thread(), nullptr};
      inside_ = submit_nodes(call, *body, *context, {}, source_);
    }
  }

 private:
  const ExecNodes* chosen(unsigned value) const {
    const bool is_switch = node_.node.parameters.conditional.type == CU_GRAPH_COND_TYPE_SWITCH;
    const std::size_t place = is_switch ? value : value != 0 ? 0 : 1;
    const bool is_loop = node_.node.parameters.conditional.type == CU_GRAPH_COND_TYPE_WHILE;
    return place < node_.bodies.size() && !(is_loop && place != 0) ? &node_.bodies[place] : nullptr;
  }

  Machine& machine_;
  const ExecNode node_;  // the graph may be updated meanwhile
  std::uint64_t context_;
  std::uint64_t context_id_;
  WorkSource source_;
  std::uint64_t sets_ = 0;
  std::vector<WorkPtr> inside_;
};

std::vector<WorkPtr> submit_nodes(Call& c, const ExecNodes& nodes, const Context& launched_in,
                                  const std::vector<WorkPtr>& begin, const WorkSource& source) {
  std::vector<WorkPtr> works;
  for (const ExecNode& one : nodes) {
    const WorkPtr work = work_of(c, one, launched_in);
    // Recorded: waits ask for the stream, and not for where its kernels run.
    work->owner = {launched_in.id, launched_in.root_id, false};
    work->source = {work->source.context, source.stream, source.graph, source.launch, false};
    work->seen = hides_from_primary(c, launched_in) ? seen(c, one.node) : Seen::by_all;
    work->after = begin;
    for (const std::size_t before : one.after) {
      work->after.push_back(works[before]);
    }
    pass_event(c, one.node, work);
    if (const ExecNodes* body = child_of(one)) {
      const std::vector<WorkPtr> inside = submit_nodes(c, *body, launched_in, work->after, source);
      work->after.insert(work->after.end(), inside.begin(), inside.end());
    } else if (one.node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      const auto choice = std::make_shared<Choice>(c.machine, one, launched_in, source);
      work->until = [choice, self = std::weak_ptr(work)] {
        const WorkPtr kept = self.lock();
        return !kept || choice->is_done(*kept);
      };
    }
    c.machine.clock.submit(work);
    works.push_back(work);
  }
  return works;
}

// Begins a graph: conditions get the values that they have at each launch.
Effect assign_conditions(Machine& machine, const GraphExec& exec) {
  std::vector<std::pair<CUgraphConditionalHandle, unsigned>> values;
  each_node(exec.nodes, [&](const ExecNode& one) {
    if (one.node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && one.assigned_at_launch) {
      values.emplace_back(one.node.parameters.conditional.handle, one.initial);
    }
  });
  if (values.empty()) {
    return nullptr;
  }
  return [&machine, values = std::move(values)] {
    for (const auto& [handle, value] : values) {
      if (Condition* condition = machine.conditions.find(handle)) {
        condition->value = value;
      }
    }
    return Rest{};
  };
}

void replay(Call& c, GraphExec& exec, Stream& stream) {
  check_contexts(c, exec.nodes);
  pass_memory(c, exec, exec.nodes);
  // Recorded: of several graphs, the last one is hidden.
  c.machine.clock.show_to_primary(stream.last);
  GraphNode first;
  first.effect = assign_conditions(c.machine, exec);
  const WorkPtr begin = submit(c, stream, first, Seen::by_none);
  auto end = std::make_shared<Work>();
  end->seen = hides_from_primary(c, *stream.context) ? Seen::by_none : Seen::by_all;
  WorkSource source{0, stream.id, exec.graph_id, begin->sequence, false};
  observe_call("cuGraphLaunch", begin->submitted, begin->sequence);
  end->after = submit_nodes(c, exec.nodes, *stream.context, {begin, exec.last}, source);
  end->after.push_back(begin);
  source.ends_launch = true;
  end->source = source;
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
bool may_become(int version, const GraphNode& old, const GraphNode& now, CUgraphExecUpdateResult& why) {
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
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      const CUDA_CONDITIONAL_NODE_PARAMS& was = old.parameters.conditional;
      return was.type == now.parameters.conditional.type && was.size == now.parameters.conditional.size;
    }
    default:
      return software_driver::may_become(version, old, now);
  }
}

// Nodes are paired in the order of their making.
bool may_update(int version, const ExecNodes& old, const ExecNodes& now, UpdateInfo& info) {
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
    if (!may_become(version, was.node, is.node, why)) {
      return decline(info, why, &is);
    }
    for (std::size_t body = 0; body < is.bodies.size(); ++body) {
      if (!may_update(version, was.bodies[body], is.bodies[body], info)) {
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
  const bool may = may_update(c.version(), exec.nodes, nodes, info);
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
                !may_update(c.version(), copy->bodies[0], nodes, info),
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
