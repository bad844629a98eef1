// Memory of graphs.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// Makes the memory of an allocation node, which has its address from then on.
void make_graph_memory(Call& call, Step& node);
// At the call that launches a graph.
void allocate_at_launch(Call& call, const GraphExec& exec, CUdeviceptr address);
void free_at_launch(Call& call, CUdeviceptr address);

}  // namespace software_driver
