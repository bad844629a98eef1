// The shape of graphs: their nodes and edges, asked for and changed; copies of graphs; their picture.
#include <algorithm>
#include <cstdio>
#include <string>

#include "calls/graph_nodes.hpp"

namespace gctx::sim {
namespace {

struct FullEdge {
  const GraphNode* from = nullptr;
  const GraphNode* to = nullptr;
  CUgraphEdgeData data{};
};

bool is_plain(const CUgraphEdgeData& data) { return data.from_port == 0 && data.to_port == 0 && data.type == 0; }

// Lists as the calls return them: the number alone, or as many as there is room for, and nulls in places beyond them.
void list(const std::vector<FullEdge>& edges, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
          std::size_t* count) {
  if (from == nullptr && to == nullptr) {
    refuse_if(data != nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = edges.size();
    return;
  }
  refuse_if(*count == 0, CUDA_ERROR_INVALID_VALUE);  // recorded
  const bool lossy = data == nullptr &&
                     !std::all_of(edges.begin(), edges.end(), [](const FullEdge& edge) { return is_plain(edge.data); });
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

template <class Test>
std::vector<FullEdge> nodes_of(const Graph& graph, Test&& test) {
  std::vector<FullEdge> found;
  for (const GraphNode* node : graph.nodes) {
    if (test(*node)) {
      found.push_back({node, nullptr, {}});
    }
  }
  return found;
}

void get_edges(const Graph& graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, std::size_t* count) {
  refuse_if((from == nullptr) != (to == nullptr), CUDA_ERROR_INVALID_VALUE);
  return list(edges_of(graph), from, to, data, count);
}

void get_dependencies(const GraphNode& node, CUgraphNode* out, CUgraphEdgeData* data, std::size_t* count) {
  std::vector<FullEdge> edges;
  for (const Edge& edge : node.after) {
    edges.push_back({edge.from, &node, edge.data});
  }
  return list(edges, out, nullptr, data, count);
}

void get_dependents(const GraphNode& node, CUgraphNode* out, CUgraphEdgeData* data, std::size_t* count) {
  std::vector<FullEdge> edges = edges_of(*node.graph);
  std::erase_if(edges, [&](const FullEdge& edge) { return edge.from != &node; });
  return list(edges, nullptr, out, data, count);
}

void read(Call& c, const Graph& graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData* data, Edge& edge,
          GraphNode*& target) {
  std::vector<Edge> edges;
  read_edges(c, graph, &from, data, 1, edges);
  edge = edges[0];
  target = &find<GraphNode>(c, to);
  refuse_if(target->graph != &graph || target == edge.from, CUDA_ERROR_INVALID_VALUE);
}

void add_edges(Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
               std::size_t count) {
  refuse_if(count > 0 && (from == nullptr || to == nullptr), CUDA_ERROR_INVALID_VALUE);
  std::vector<std::pair<GraphNode*, Edge>> added;
  for (std::size_t i = 0; i < count; ++i) {
    Edge edge;
    GraphNode* target = nullptr;
    read(c, graph, from[i], to[i], data == nullptr ? nullptr : data + i, edge, target);
    const std::pair<GraphNode*, Edge> whole{target, edge};
    const bool there = std::find(target->after.begin(), target->after.end(), edge) != target->after.end() ||
                       std::find(added.begin(), added.end(), whole) != added.end();
    refuse_if(there, CUDA_ERROR_INVALID_VALUE);
    added.push_back(whole);
  }
  for (const auto& [target, edge] : added) {
    target->after.push_back(edge);
  }
}

void remove_edges(Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                  std::size_t count) {
  refuse_if(count > 0 && (from == nullptr || to == nullptr || graph.has_memory), CUDA_ERROR_INVALID_VALUE);
  std::vector<std::pair<GraphNode*, Edge>> removed;
  for (std::size_t i = 0; i < count; ++i) {
    Edge edge;
    GraphNode* target = nullptr;
    read(c, graph, from[i], to[i], data == nullptr ? nullptr : data + i, edge, target);
    refuse_if(std::find(target->after.begin(), target->after.end(), edge) == target->after.end(),
              CUDA_ERROR_INVALID_VALUE);
    removed.emplace_back(target, edge);
  }
  for (const auto& [target, edge] : removed) {
    std::erase(target->after, edge);
  }
}

const char* type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "CONDITIONAL";
    default:
      return "EMPTY";
  }
}

void draw(const Graph& graph, std::string& out) {
  const auto node_name = [](const GraphNode& node) { return "\"node_" + std::to_string(node.id) + '"'; };
  const std::string id = std::to_string(graph.id);
  out += "subgraph cluster_" + id + " {\nlabel=\"graph_" + id + "\"\n";
  for (const GraphNode* node : graph.nodes) {
    out += node_name(*node) + " [label=\"" + std::to_string(node->number) + ' ';
    out += type_name(node->type);
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
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuGraphGetNodes, Call&, const Graph& graph, CUgraphNode* nodes, std::size_t* count) {
  return list(nodes_of(graph, [](const GraphNode&) { return true; }), nodes, nullptr, nullptr, count);
}
GCTX_SIM_CALL(cuGraphGetRootNodes, Call&, const Graph& graph, CUgraphNode* nodes, std::size_t* count) {
  return list(nodes_of(graph, [](const GraphNode& node) { return node.after.empty(); }), nodes, nullptr, nullptr,
              count);
}
GCTX_SIM_CALL(cuGraphGetEdges, Call&, const Graph& graph, CUgraphNode* from, CUgraphNode* to, std::size_t* count) {
  return get_edges(graph, from, to, nullptr, count);
}
GCTX_SIM_CALL(cuGraphGetEdges_v2, Call&, const Graph& graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
              std::size_t* count) {
  return get_edges(graph, from, to, data, count);
}
GCTX_SIM_CALL(cuGraphNodeGetDependencies, Call&, const GraphNode& node, CUgraphNode* nodes, std::size_t* count) {
  return get_dependencies(node, nodes, nullptr, count);
}
GCTX_SIM_CALL(cuGraphNodeGetDependencies_v2, Call&, const GraphNode& node, CUgraphNode* nodes, CUgraphEdgeData* data,
              std::size_t* count) {
  return get_dependencies(node, nodes, data, count);
}
GCTX_SIM_CALL(cuGraphNodeGetDependentNodes, Call&, const GraphNode& node, CUgraphNode* nodes, std::size_t* count) {
  return get_dependents(node, nodes, nullptr, count);
}
GCTX_SIM_CALL(cuGraphNodeGetDependentNodes_v2, Call&, const GraphNode& node, CUgraphNode* nodes, CUgraphEdgeData* data,
              std::size_t* count) {
  return get_dependents(node, nodes, data, count);
}
GCTX_SIM_CALL(cuGraphAddDependencies, Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
              std::size_t count) {
  return add_edges(c, graph, from, to, nullptr, count);
}
GCTX_SIM_CALL(cuGraphAddDependencies_v2, Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
              const CUgraphEdgeData* data, std::size_t count) {
  return add_edges(c, graph, from, to, data, count);
}
GCTX_SIM_CALL(cuGraphRemoveDependencies, Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
              std::size_t count) {
  return remove_edges(c, graph, from, to, nullptr, count);
}
GCTX_SIM_CALL(cuGraphRemoveDependencies_v2, Call& c, Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
              const CUgraphEdgeData* data, std::size_t count) {
  return remove_edges(c, graph, from, to, data, count);
}

GCTX_SIM_CALL(cuGraphNodeGetType, Call&, const GraphNode& node, CUgraphNodeType* type) { give(type, node.type); }
GCTX_SIM_CALL(cuGraphNodeGetContainingGraph, Call&, const GraphNode& node, CUgraph* out) {
  give(out, as_handle<CUgraph>(*node.graph));
}
GCTX_SIM_CALL(cuGraphNodeGetLocalId, Call&, const GraphNode& node, unsigned* id) { give(id, node.number); }
GCTX_SIM_CALL(cuGraphNodeGetToolsId, Call&, const GraphNode& node, unsigned long long* id) {
  give(id, static_cast<unsigned long long>(node.id));
}
GCTX_SIM_CALL(cuGraphGetId, Call&, const Graph& graph, unsigned* id) { give(id, static_cast<unsigned>(graph.id)); }

GCTX_SIM_CALL(cuGraphDestroyNode, Call& c, GraphNode& node) {
  refuse_if(node.graph->has_memory, CUDA_ERROR_INVALID_VALUE);
  const bool captured_into =
      node.graph->capture != nullptr ||
      std::any_of(node.bodies.begin(), node.bodies.end(), [](const Graph* body) { return is_being_captured(*body); });
  refuse_if(captured_into, CUDA_ERROR_ILLEGAL_STATE);
  remove_node(c.machine, node);
}

GCTX_SIM_CALL(cuGraphClone, Call& c, CUgraph* out, const Graph& graph) {
  refuse_if(is_being_captured(graph), CUDA_ERROR_INVALID_VALUE);
  refuse_if(has_memory_nodes(graph) || has_conditions(graph), CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(!has_room_for_copy(c, graph), CUDA_ERROR_OUT_OF_MEMORY);
  give(out, as_handle<CUgraph>(clone(c.machine, graph)));
}

GCTX_SIM_CALL(cuGraphNodeFindInClone, Call&, CUgraphNode* out, const GraphNode& node, const Graph& graph) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const GraphNode* copy) { return copy->copied_from == node.id; });
  refuse_if(found == graph.nodes.end(), CUDA_ERROR_INVALID_VALUE);
  give(out, as_handle<CUgraphNode>(**found));
}

GCTX_SIM_CALL(cuGraphDebugDotPrint, Call&, const Graph& graph, const char* path, unsigned) {
  std::string text = "digraph dot {\n";
  draw(graph, text);
  text += "}\n";
  std::FILE* file = std::fopen(path, "w");
  refuse_if(file == nullptr, CUDA_ERROR_OPERATING_SYSTEM);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  refuse_if(std::fclose(file) != 0 || !is_written, CUDA_ERROR_OPERATING_SYSTEM);
}
