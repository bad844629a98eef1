#include "handles/closing.hpp"

#include "handles/context.hpp"
#include "handles/current.hpp"
#include "handles/pinned.hpp"
#include "handles/probe.hpp"
#include "handles/split_contexts.hpp"

namespace gctx {

void close_driver(Runtime& runtime) {
  if (is_forked()) {
    return;
  }
  ThreadEntries::here().forget(runtime);
  split_contexts(runtime).drop();
  pinned_contexts(runtime).close();
  ending_contexts(runtime).close();
  probes_of(runtime).drop();
  contexts_of(runtime).drop_primaries();
  Runtime::close(runtime);
}

}  // namespace gctx
