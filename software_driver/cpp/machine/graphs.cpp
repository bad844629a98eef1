// The structure of graphs, and what keeps their memory and the program's objects.
#include "machine/graphs.hpp"

#include <algorithm>

namespace software_driver {
namespace {

// Memory that a graph allocates is there, at one address, as long as the graph or an executable copy of it is.
void count_memory(Machine& machine, const GraphNode& node, int change) {
  const bool allocates = node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  const auto found = machine.allocations.find(allocates ? node.parameters.alloc.dptr : 0);
  if (found == machine.allocations.end()) {
    return;
  }
  Allocation& allocation = found->second;
  allocation.graphs += change;
  if (allocation.graphs == 0 && !allocation.live) {
    machine.allocations.erase(found);
  }
}

void count_memory(Machine& machine, const ExecNodes& nodes, int change) {
  each_node(nodes, [&](const ExecNode& one) { count_memory(machine, one.node, change); });
}

}  // namespace

Graph& add_graph(Machine& machine) {
  auto graph = std::make_unique<Graph>();
  machine.made(*graph);
  return machine.graphs.add(std::move(graph));
}

GraphNode& add_node(Machine& machine, Graph& graph, GraphNode node) {
  auto added = std::make_unique<GraphNode>(std::move(node));
  machine.made(*added);
  added->hidden = true;
  added->graph = &graph;
  added->number = graph.made++;
  GraphNode& kept = machine.graph_nodes.add(std::move(added));
  graph.nodes.push_back(&kept);
  if (kept.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || kept.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    graph.has_memory = true;
  }
  for (Graph* body : kept.bodies) {
    body->owner = &kept;
    body->hidden = true;
  }
  count_memory(machine, kept, 1);
  return kept;
}

static void drop(Machine& machine, const GraphNode& node) {
  for (Graph* body : node.bodies) {
    drop(machine, *body);
  }
  count_memory(machine, node, -1);
  machine.graph_nodes.remove(node);
}

void remove_node(Machine& machine, GraphNode& node) {
  Graph& graph = *node.graph;
  std::erase(graph.nodes, &node);
  for (GraphNode* other : graph.nodes) {
    std::erase_if(other->after, [&](const Edge& edge) { return edge.from == &node; });
  }
  drop(machine, node);
}

void drop(Machine& machine, Graph& graph) {
  // A graph may go together with the one that it is inside of, while something is captured into it.
  if (graph.capture != nullptr) {
    end_capture(machine, *graph.capture, false);
  }
  for (const GraphNode* node : std::exchange(graph.nodes, {})) {
    drop(machine, *node);
  }
  for (const Condition* condition : graph.conditions) {
    machine.conditions.remove(*condition);
  }
  let_all_go(machine, graph.kept);
  machine.graphs.remove(graph);
}

void drop(Machine& machine, GraphExec& exec) {
  const std::shared_ptr<GraphExec> gone = machine.graph_execs.remove(exec);
  const auto finish = [&machine, gone] {
    count_memory(machine, gone->nodes, -1);
    let_all_go(machine, gone->kept);
  };
  if (!gone->last || gone->last->done) {
    return finish();
  }
  // What is under way still needs what the graph keeps.
  auto work = std::make_shared<Work>();
  work->device = gone->last->device;
  work->owner = gone->last->owner;
  work->after = {gone->last};
  work->shows = true;  // to the destructors of what was kept
  work->effect = [finish] {
    finish();
    return Rest{};
  };
  machine.clock.submit(work);
}

Graph& clone(Machine& machine, const Graph& graph) {
  Graph& copy = add_graph(machine);
  std::map<const GraphNode*, GraphNode*> counterparts;
  for (const GraphNode* original : graph.nodes) {
    GraphNode node = *original;
    node.copied_from = original->id;
    node.capture = 0;
    for (Graph*& body : node.bodies) {
      body = &clone(machine, *body);
    }
    counterparts[original] = &add_node(machine, copy, std::move(node));
  }
  for (GraphNode* node : copy.nodes) {
    for (Edge& edge : node->after) {
      edge.from = counterparts[edge.from];
    }
  }
  for (const auto& [object, count] : graph.kept) {
    keep(copy.kept, *object, count);
  }
  return copy;
}

bool freeze(Machine& machine, const Graph& graph, ExecNodes& out) {
  std::map<const GraphNode*, std::size_t> places;
  std::vector<const GraphNode*> open(graph.nodes.begin(), graph.nodes.end());
  while (!open.empty()) {
    const std::size_t before = open.size();
    std::erase_if(open, [&](const GraphNode* node) {
      const auto is_placed = [&](const Edge& edge) { return places.contains(edge.from); };
      if (!std::all_of(node->after.begin(), node->after.end(), is_placed)) {
        return false;
      }
      places[node] = out.size();
      ExecNode& one = out.emplace_back();
      one.node = *node;
      one.node.bodies.clear();
      one.node.copied_from = node->id;
      for (const Edge& edge : node->after) {
        one.after.push_back(places[edge.from]);
      }
      const bool conditional = node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
      if (const Condition* condition = machine.conditions.find(conditional ? node->parameters.conditional.handle : 0)) {
        one.initial = condition->initial;
        one.assigned_at_launch = condition->assigned_at_launch;
      }
      return true;
    });
    if (open.size() == before) {
      return false;
    }
  }
  for (const auto& [node, place] : places) {
    for (const Graph* body : node->bodies) {
      ExecNodes nodes;
      if (!freeze(machine, *body, nodes)) {
        return false;
      }
      out[place].bodies.push_back(std::move(nodes));
    }
  }
  return true;
}

void hold_memory(Machine& machine, const GraphExec& exec) { count_memory(machine, exec.nodes, 1); }

Graph* end_capture(Machine& machine, Capture& capture, bool keep_graph) {
  const bool is_own = capture.into == Capture::Into::own_graph;
  Graph& graph = capture.end();
  if (keep_graph) {
    graph.hidden = graph.hidden && !is_own;
    return &graph;
  }
  // A graph of the program keeps what was captured into it.
  if (is_own) {
    drop(machine, graph);
  }
  return nullptr;
}

void leave_capture(Machine& machine, Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) {
    return;
  }
  if (&stream == &capture->origin()) {
    end_capture(machine, *capture, false);
  } else {
    capture->leave(stream);
  }
}

void let_go(Machine& machine, UserObject& object, unsigned& references, unsigned count) {
  references -= count;
  if (object.owned > 0 || object.kept > 0) {
    return;
  }
  machine.host_threads.run([destroy = object.destroy, user = object.user] { destroy(user); });
  machine.user_objects.remove(object);
}

void let_all_go(Machine& machine, KeptObjects& kept) {
  for (const auto& [object, count] : std::exchange(kept, {})) {
    let_go(machine, *object, object->kept, count);
  }
}

}  // namespace software_driver
