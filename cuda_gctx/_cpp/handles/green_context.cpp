#include "handles/green_context.hpp"

#include "handles/context.hpp"
#include "handles/runtime.hpp"

namespace gctx {

GreenCtxBox::~GreenCtxBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  enlist_as(0);
  Runtime& runtime = primary_->runtime();
  if (runtime.is_usable()) {
    runtime.driver().note(runtime.driver().cuGreenCtxDestroy(handle_), "cuGreenCtxDestroy");
    runtime.count_destroyed(primary_->device());
  }
}

void GreenCtxBox::enlist_as(std::uint64_t live_entry) noexcept {
  if (const std::uint64_t before = std::exchange(live_entry_, live_entry); before != 0) {
    primary_->runtime().delist(primary_->device(), before);
  }
}

}  // namespace gctx
