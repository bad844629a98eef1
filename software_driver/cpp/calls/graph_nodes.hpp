// What the nodes of graphs do, by the parameters that describe it.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// What a node of a graph is to do. Completes what the parameters return: the address of an allocation, the bodies of a
// condition.
void plan_node(Call& call, Graph& graph, CUgraphNodeParams& parameters, GraphNode& node);
// The node does what the other was planned to do.
inline void adopt(GraphNode& node, GraphNode planned) {
  static_cast<Step&>(node) = std::move(static_cast<Step&>(planned));
}
// The edges to a new node behind others, which must be of the same graph.
std::vector<Edge> read_edges(Call& call, const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                             std::size_t count);
// A graph that is put into itself doubles: copies end at a million nodes.
bool has_room_for_copy(Call& call, const Graph& graph);
// Returns whether an executable fill or batch of copies can do what the new one does, as headers say.
bool may_become(int version, const Step& old, const Step& now);
// The place of a node of the graph that an executable one was made of.
ExecNode* find_copy(ExecNodes& nodes, const GraphNode& node);

}  // namespace software_driver
