#include "handles/closing.hpp"

#include "handles/context.hpp"
#include "handles/current.hpp"
#include "handles/probe.hpp"
#include "handles/split_contexts.hpp"

namespace gctx {

ContextCounts context_counts(Runtime& runtime, int device) {
  ContextCounts counts = live_contexts(runtime).counts(device);
  retired_contexts(runtime).add_to(counts, device);
  counts.split = split_contexts(runtime).count(device);
  return counts;
}

void drop_kept(Runtime& runtime, bool also_pinned) {
  split_contexts(runtime).drop();
  if (also_pinned) {
    retired_contexts(runtime).drop_pinned();
  }
}

void close_driver(Runtime& runtime) {
  if (is_forked()) {
    return;
  }
  ThreadEntries::here().forget(runtime);
  split_contexts(runtime).drop();
  retired_contexts(runtime).close();
  probes_of(runtime).drop();
  drop_primaries(runtime);
  Runtime::close(runtime);
}

}  // namespace gctx
