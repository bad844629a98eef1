#include "handles/green_context.hpp"

namespace gctx {

GreenCtxBox::~GreenCtxBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  claim(nullptr);
  registry_of<GreenCtxBox>(runtime_).drop(*this);  // before the driver can give the address to a new one
  if (runtime_.is_usable()) {
    runtime_.driver().note(runtime_.driver().cuGreenCtxDestroy(handle_), "cuGreenCtxDestroy");
    live_contexts(runtime_).count_destroyed(device_);
  }
}

void GreenCtxBox::take_context(CUcontext context) noexcept {
  context_ = context;
  registry_of<GreenCtxBox>(runtime_).put(*this);
}

void GreenCtxBox::claim(std::shared_ptr<Claim> claim) noexcept {
  claim_.swap(claim);
  if (claim) {
    claim->release();
  }
}

}  // namespace gctx
