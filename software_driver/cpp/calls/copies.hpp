// Copies and fills as steps: of a stream, or of a graph.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// A copy in up to three dimensions, as all the calls that copy describe it.
void plan_copy(Call& call, const CUDA_MEMCPY3D& copy, GraphNode& node);
// A fill of rows of elements.
void plan_fill(Call& call, const CUDA_MEMSET_NODE_PARAMS_v2& fill, GraphNode& node);

}  // namespace software_driver
