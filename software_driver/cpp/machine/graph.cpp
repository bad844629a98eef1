// What can be said of a graph without the machine that it belongs to.
#include "machine/graph.hpp"

#include <algorithm>

namespace software_driver {
namespace {

template <class Test>
bool any_graph(const Graph& graph, Test&& test) {
  if (test(graph)) {
    return true;
  }
  return std::ranges::any_of(graph.nodes, [&](const GraphNode* node) {
    return std::ranges::any_of(node->bodies, [&](const Graph* body) { return any_graph(*body, test); });
  });
}

}  // namespace

bool is_being_captured(const Graph& graph) {
  return any_graph(graph, [](const Graph& one) { return one.capture != nullptr; });
}

bool has_memory_nodes(const Graph& graph) {
  return any_graph(graph, [](const Graph& one) { return one.has_memory; });
}

std::size_t count_nodes(const Graph& graph) {
  std::size_t count = graph.nodes.size();
  for (const GraphNode* node : graph.nodes) {
    for (const Graph* body : node->bodies) {
      count += count_nodes(*body);
    }
  }
  return count;
}

bool has_conditions(const Graph& graph) {
  return any_graph(graph, [](const Graph& one) { return !one.conditions.empty(); });
}

void extend(std::vector<Edge>& edges, const std::vector<Edge>& more) {
  for (const Edge& edge : more) {
    if (std::ranges::find(edges, edge) == edges.end()) {
      edges.push_back(edge);
    }
  }
}

void keep(KeptObjects& kept, UserObject& object, unsigned count) {
  kept[&object] += count;
  object.kept += count;
}

}  // namespace software_driver
