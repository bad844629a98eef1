// The graphs of a machine: adding and removing, copying, putting in order, and the ends of captures into them.
#pragma once

#include "machine/capture.hpp"
#include "machine/machine.hpp"

namespace software_driver {

Graph& add_graph(Machine& machine);
// Takes over the node.
GraphNode& add_node(Machine& machine, Graph& graph, GraphNode node);
void remove_node(Machine& machine, GraphNode& node);
// With its nodes, and the graphs that they own.
void drop(Machine& machine, Graph& graph);
void drop(Machine& machine, GraphExec& exec);
// A graph like this one, child graphs included.
Graph& clone(Machine& machine, const Graph& graph);
// Copies of the nodes in an order that their edges allow. False when they form a circle.
bool freeze(Machine& machine, const Graph& graph, ExecNodes& out);
// What a new executable graph allocates stays until it is dropped.
void hold_memory(Machine& machine, const GraphExec& exec);

// The graph is handed over or, if nobody wants it, dropped.
Graph* end_capture(Machine& machine, Capture& capture, bool keep_graph);
// The stream is destroyed. A capture without the stream that it began on can never be ended: it is over, and its
// own graph is dropped.
void leave_capture(Machine& machine, Stream& stream);

// References of a graph to objects of the program.
void let_go(Machine& machine, UserObject& object, unsigned& references, unsigned count);
void let_all_go(Machine& machine, KeptObjects& kept);

}  // namespace software_driver
