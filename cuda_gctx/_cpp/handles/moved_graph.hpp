// Graphs that were captured in one context and run in another: a copy of the graph, whose kernels are moved there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "handles/graph.hpp"

namespace gctx {

// The executable graph of a copy whose kernels, fills and copies run in `context`. The graph stays as it is. Throws if
// a node cannot run there: what the driver cannot copy, and launches that are too large for the context.
GraphExecHandle move_graph(const GraphHandle& graph, const ContextHandle& context, bool ordered);

// Where the probe ran in the place of a kernel of a graph.
struct KernelSms {
  std::string name;
  std::uint64_t context = 0;     // the id of the context of the kernel
  std::vector<unsigned> sm_ids;  // sorted
};

// Runs a copy of a graph in which each kernel is the probe, in the context that the node has, and nothing else is
// done. `stream` is one of the primary context, for its own use. Throws if that takes longer than `timeout_ns`.
std::vector<KernelSms> probe_graph(const GraphExecHandle& exec, const StreamHandle& stream, std::uint64_t spin_ns,
                                   std::uint64_t timeout_ns);

}  // namespace gctx
