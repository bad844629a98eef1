// Copies and fills as steps: of a stream, or of a graph.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// A copy in up to three dimensions, as all the calls that copy describe it.
void plan_copy(Call& call, const CUDA_MEMCPY3D& copy, GraphNode& node);
// Copies between addresses, in any order. `failed` gets the number of a copy that cannot be.
void plan_batch(Call& call, CopyBatch batch, GraphNode& node, std::size_t& failed);
// The batch that a call or a node describes by its arrays. Refuses arrays that do not fit together.
CopyBatch read_batch(const CUDA_MEMCPY_BATCH_NODE_PARAMS& batch);
// A fill of rows of elements.
void plan_fill(Call& call, const CUDA_MEMSET_NODE_PARAMS_v2& fill, GraphNode& node);

}  // namespace software_driver
