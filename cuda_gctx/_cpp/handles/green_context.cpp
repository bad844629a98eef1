#include "handles/green_context.hpp"

#include "handles/live.hpp"

namespace gctx {

GreenCtxBox::~GreenCtxBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  enlist_as(0);
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

void GreenCtxBox::enlist_as(std::uint64_t live_entry) noexcept {
  if (const std::uint64_t before = std::exchange(live_entry_, live_entry); before != 0) {
    live_contexts(runtime_).delist(device_, before);
  }
}

}  // namespace gctx
