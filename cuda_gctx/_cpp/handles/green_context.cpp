#include "handles/green_context.hpp"

#include "handles/context.hpp"
#include "handles/runtime.hpp"

namespace gctx {

GreenCtxBox::~GreenCtxBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  Runtime& runtime = primary_->runtime();
  const int device = primary_->device();
  if (live_entry_ != 0) {
    runtime.delist(device, live_entry_);
  }
  if (runtime.is_usable()) {
    runtime.driver().note(runtime.driver().cuGreenCtxDestroy(handle_), "cuGreenCtxDestroy");
    runtime.count_destroyed(device);
  }
}

}  // namespace gctx
