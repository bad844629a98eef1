// The shape of graphs: their nodes and edges, asked for and changed; copies of graphs; their picture.
#include <algorithm>
#include <cstdio>
#include <string>

#include "calls/graph_nodes.hpp"

namespace software_driver {
namespace {

struct FullEdge {
  const GraphNode* from = nullptr;
  const GraphNode* to = nullptr;
  CUgraphEdgeData data{};
};

bool is_plain_edge(const CUgraphEdgeData& data) { return data.from_port == 0 && data.to_port == 0 && data.type == 0; }

// Lists as the calls return them: the number alone, or as many as there is room for, and nulls in places beyond them.
void list(const std::vector<FullEdge>& edges, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
          std::size_t* count) {
  if (from == nullptr && to == nullptr) {
    refuse_if(data != nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = edges.size();
    return;
  }
  refuse_if(*count == 0, CUDA_ERROR_INVALID_VALUE);  // recorded
  const bool lossy = data == nullptr && !std::all_of(edges.begin(), edges.end(),
                                                     [](const FullEdge& edge) { return is_plain_edge(edge.data); });
  refuse_if(lossy, CUDA_ERROR_LOSSY_QUERY);
  for (std::size_t i = 0; i < *count; ++i) {
    const FullEdge edge = i < edges.size() ? edges[i] : FullEdge{};
    if (from != nullptr) {
      from[i] = edge.from == nullptr ? nullptr : as_handle<CUgraphNode>(*edge.from);
    }
    if (to != nullptr) {
      to[i] = edge.to == nullptr ? nullptr : as_handle<CUgraphNode>(*edge.to);
    }
    if (data != nullptr) {
      data[i] = edge.data;
    }
  }
  *count = std::min(*count, edges.size());
}

std::vector<FullEdge> edges_of(const Graph& graph) {
  std::vector<FullEdge> edges;
  for (const GraphNode* node : graph.nodes) {
    for (const Edge& edge : node->after) {
      edges.push_back({edge.from, node, edge.data});
    }
  }
  return edges;
}

void list_nodes(const Graph& graph, bool (*is_meant)(const GraphNode&), CUgraphNode* out, std::size_t* count) {
  std::vector<FullEdge> found;
  for (const GraphNode* node : graph.nodes) {
    if (is_meant(*node)) {
      found.push_back({node, nullptr, {}});
    }
  }
  return list(found, out, nullptr, nullptr, count);
}

// An edge as it is named by both ends: the node that stands behind, and the edge to it.
using Named = std::pair<GraphNode*, Edge>;

std::vector<Named> read_named(Call& c, const Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
                              const CUgraphEdgeData* data, std::size_t count) {
  refuse_if(count > 0 && (from == nullptr || to == nullptr), CUDA_ERROR_INVALID_VALUE);
  std::vector<Named> named;
  for (std::size_t i = 0; i < count; ++i) {
    const Edge edge = read_edges(c, graph, from + i, data == nullptr ? nullptr : data + i, 1).front();
    GraphNode& target = find<GraphNode>(c, to[i]);
    refuse_if(target.graph != &graph || &target == edge.from, CUDA_ERROR_INVALID_VALUE);
    named.emplace_back(&target, edge);
  }
  return named;
}

bool is_there(const Named& edge) {
  return std::ranges::find(edge.first->after, edge.second) != edge.first->after.end();
}

// By their numbers.
constexpr const char* type_names[] = {"KERNEL",    "MEMCPY",     "MEMSET",       "HOST",       "GRAPH",
                                      "EMPTY",     "EVENT_WAIT", "EVENT_RECORD", "EXT_SIGNAL", "EXT_WAIT",
                                      "MEM_ALLOC", "MEM_FREE",   "BATCH_MEM_OP", "CONDITIONAL"};

void draw(const Graph& graph, std::string& out) {
  const auto node_name = [](const GraphNode& node) { return "\"node_" + std::to_string(node.id) + '"'; };
  const std::string id = std::to_string(graph.id);
  out += "subgraph cluster_" + id + " {\nlabel=\"graph_" + id + "\"\n";
  for (const GraphNode* node : graph.nodes) {
    out += node_name(*node) + " [label=\"" + std::to_string(node->number) + ' ';
    out += type_names[node->type];
    if (node->launch.code) {
      out += "\\n" + node->launch.code->name;
    }
    out += "\"]\n";
    for (const Edge& edge : node->after) {
      out += node_name(*edge.from) + " -> " + node_name(*node) + '\n';
    }
    for (const Graph* body : node->bodies) {
      draw(*body, out);
    }
  }
  out += "}\n";
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuGraphGetNodes, Call&, const Graph& graph, CUgraphNode* nodes, std::size_t* count) {
  return list_nodes(graph, [](const GraphNode&) { return true; }, nodes, count);
}
SOFTWARE_DRIVER_CALL(cuGraphGetRootNodes, Call&, const Graph& graph, CUgraphNode* nodes, std::size_t* count) {
  return list_nodes(graph, [](const GraphNode& node) { return node.after.empty(); }, nodes, count);
}
SOFTWARE_DRIVER_CALL(cuGraphGetEdges_v2, Call&, const Graph& graph, CUgraphNode* from, CUgraphNode* to,
                     CUgraphEdgeData* data, std::size_t* count) {
  refuse_if((from == nullptr) != (to == nullptr), CUDA_ERROR_INVALID_VALUE);
  return list(edges_of(graph), from, to, data, count);
}
SOFTWARE_DRIVER_CALL(cuGraphNodeGetDependencies_v2, Call&, const GraphNode& node, CUgraphNode* nodes,
                     CUgraphEdgeData* data, std::size_t* count) {
  std::vector<FullEdge> edges;
  for (const Edge& edge : node.after) {
    edges.push_back({edge.from, &node, edge.data});
  }
  return list(edges, nodes, nullptr, data, count);
}
SOFTWARE_DRIVER_CALL(cuGraphNodeGetDependentNodes_v2, Call&, const GraphNode& node, CUgraphNode* nodes,
                     CUgraphEdgeData* data, std::size_t* count) {
  std::vector<FullEdge> edges = edges_of(*node.graph);
  std::erase_if(edges, [&](const FullEdge& edge) { return edge.from != &node; });
  return list(edges, nullptr, nodes, data, count);
}
SOFTWARE_DRIVER_CALL(cuGraphAddDependencies_v2, Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
                     const CUgraphEdgeData* data, std::size_t count) {
  const std::vector<Named> edges = read_named(c, graph, from, to, data, count);
  for (auto edge = edges.begin(); edge != edges.end(); ++edge) {
    refuse_if(is_there(*edge) || std::find(edges.begin(), edge, *edge) != edge, CUDA_ERROR_INVALID_VALUE);
  }
  for (const auto& [target, edge] : edges) {
    target->after.push_back(edge);
  }
}
SOFTWARE_DRIVER_CALL(cuGraphRemoveDependencies_v2, Call& c, Graph& graph, const CUgraphNode* from,
                     const CUgraphNode* to, const CUgraphEdgeData* data, std::size_t count) {
  refuse_if(count > 0 && graph.has_memory, CUDA_ERROR_INVALID_VALUE);
  const std::vector<Named> edges = read_named(c, graph, from, to, data, count);
  refuse_if(!std::ranges::all_of(edges, is_there), CUDA_ERROR_INVALID_VALUE);
  for (const auto& [target, edge] : edges) {
    std::erase(target->after, edge);
  }
}
SOFTWARE_DRIVER_SAME(cuGraphGetEdges, cuGraphGetEdges_v2, 3)
SOFTWARE_DRIVER_SAME(cuGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2, 2)
SOFTWARE_DRIVER_SAME(cuGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes_v2, 2)
SOFTWARE_DRIVER_SAME(cuGraphAddDependencies, cuGraphAddDependencies_v2, 3)
SOFTWARE_DRIVER_SAME(cuGraphRemoveDependencies, cuGraphRemoveDependencies_v2, 3)

SOFTWARE_DRIVER_GET(cuGraphNodeGetType, &GraphNode::type, const GraphNode)
SOFTWARE_DRIVER_GET(cuGraphNodeGetContainingGraph,
                    [](const GraphNode& node) { return as_handle<CUgraph>(*node.graph); })
SOFTWARE_DRIVER_GET(cuGraphNodeGetLocalId, &GraphNode::number)
SOFTWARE_DRIVER_GET(cuGraphNodeGetToolsId, &GraphNode::id, const GraphNode)
SOFTWARE_DRIVER_GET(cuGraphGetId, &Graph::id, const Graph)

SOFTWARE_DRIVER_CALL(cuGraphDestroyNode, Call& c, GraphNode& node) {
  refuse_if(node.graph->has_memory, CUDA_ERROR_INVALID_VALUE);
  const bool captured_into =
      node.graph->capture != nullptr ||
      std::any_of(node.bodies.begin(), node.bodies.end(), [](const Graph* body) { return is_being_captured(*body); });
  refuse_if(captured_into, CUDA_ERROR_ILLEGAL_STATE);
  remove_node(c.machine, node);
}

SOFTWARE_DRIVER_CALL(cuGraphClone, Call& c, CUgraph* out, const Graph& graph) {
  refuse_if(is_being_captured(graph), CUDA_ERROR_INVALID_VALUE);
  refuse_if(has_memory_nodes(graph) || has_conditions(graph), CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(!has_room_for_copy(c, graph), CUDA_ERROR_OUT_OF_MEMORY);
  give(out, clone(c.machine, graph));
}

SOFTWARE_DRIVER_CALL(cuGraphNodeFindInClone, Call&, CUgraphNode* out, const GraphNode& node, const Graph& graph) {
  const auto found = std::ranges::find(graph.nodes, node.id, &GraphNode::copied_from);
  refuse_if(found == graph.nodes.end(), CUDA_ERROR_INVALID_VALUE);
  give(out, **found);
}

SOFTWARE_DRIVER_CALL(cuGraphDebugDotPrint, Call&, const Graph& graph, const char* path, unsigned) {
  std::string text = "digraph dot {\n";
  draw(graph, text);
  text += "}\n";
  std::FILE* file = std::fopen(path, "w");
  refuse_if(file == nullptr, CUDA_ERROR_OPERATING_SYSTEM);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  refuse_if(std::fclose(file) != 0 || !is_written, CUDA_ERROR_OPERATING_SYSTEM);
}
