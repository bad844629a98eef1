#include "handles/owned_context.hpp"

namespace gctx {

OwnedContext::~OwnedContext() {
  if (is_forked()) {
    return;
  }
  destroy_streams();
  green.reset();
}

// Asked for a handle whose context is gone, too: the driver answers CUDA_ERROR_CONTEXT_IS_DESTROYED, or the id of a
// newer one at the same address (seen on an H100 with driver 13.0, of primary contexts after a reset and of ordinary
// ones).
CUresult OwnedContext::ask_whether_there() const noexcept {
  if (green) {
    return CUDA_SUCCESS;
  }
  unsigned long long now = 0;
  const CUresult answer = runtime.driver().cuCtxGetId(handle, &now);
  const bool is_other = answer == CUDA_ERROR_INVALID_CONTEXT || (answer == CUDA_SUCCESS && now != id);
  return is_other ? CUDA_ERROR_CONTEXT_IS_DESTROYED : answer;
}

void OwnedContext::ask_id() {
  unsigned long long answer = 0;
  GCTX_CALL(runtime.driver(), cuCtxGetId, handle, &answer);
  id = answer;
}

bool OwnedContext::is_made_of(const SmResource& sms, const std::optional<CUdevResource>& wanted) const noexcept {
  const bool same_queues = workqueue.has_value() == wanted.has_value() && (!wanted || byte_equal(*workqueue, *wanted));
  return green && given && same_queues && same_sms(*given, sms);
}

void OwnedContext::destroy_streams() noexcept {
  if (streams.has_own() && runtime.is_usable() && is_there()) {
    streams.destroy_own(runtime.driver());
  }
}

}  // namespace gctx
