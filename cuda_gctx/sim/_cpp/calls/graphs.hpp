// Graphs by their handles, and what their nodes do by the parameters that describe it.
#pragma once

#include "calls/entry.hpp"

namespace gctx::sim {

Graph* find_graph(Call& call, CUgraph handle, CUresult& result);
GraphNode* find_node(Call& call, CUgraphNode handle, CUresult& result);
GraphExec* find_exec(Call& call, CUgraphExec handle, CUresult& result);

// What a node of a graph is to do. Completes what the parameters return: the address of an allocation, the bodies of a
// condition.
CUresult plan_node(Call& call, Graph& graph, CUgraphNodeParams& parameters, GraphNode& node);
// The node does what the other was planned to do.
void adopt(GraphNode& node, GraphNode planned);
// The parameters that describe a node.
CUresult describe(Call& call, GraphNode& node, CUgraphNodeParams& parameters);
// A new node behind others, which must be of the same graph.
CUresult read_edges(Call& call, const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                    std::size_t count, std::vector<Edge>& edges);

// A graph that is put into itself doubles: copies end at a million nodes.
bool has_room_for_copy(Call& call, const Graph& graph);

// The place of a node of the graph that an executable one was made of.
ExecNode* find_copy(ExecNodes& nodes, const GraphNode& node);

// Memory of graphs, at the call that launches them.
CUresult allocate_at_launch(Call& call, const GraphExec& exec, CUdeviceptr address);
CUresult free_at_launch(Call& call, CUdeviceptr address);
// Makes the memory of an allocation node, which has its address from then on.
CUresult make_graph_memory(Call& call, AllocNode& node);
// The program frees memory that a graph allocated.
void free_graph_memory(Machine& machine, Allocation& allocation);

}  // namespace gctx::sim
