// A green context of ours, its place among the live ones of its device, and the primary context under it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "handles/registry.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"

namespace gctx {

class GreenCtxBox : public Registered<GreenCtxBox> {
 public:
  static constexpr Runtime::Place place = Runtime::Place::green_contexts;

  // The box is made before what it will own, so that nothing is lost if memory runs out in between. It keeps the
  // primary context.
  GreenCtxBox(Runtime& runtime, int device, std::shared_ptr<void> primary) noexcept
      : runtime_(runtime), device_(device), primary_(std::move(primary)) {}
  ~GreenCtxBox();
  GreenCtxBox(const GreenCtxBox&) = delete;
  GreenCtxBox& operator=(const GreenCtxBox&) = delete;

  void take(CUgreenCtx handle) noexcept { handle_ = handle; }
  CUgreenCtx handle() const noexcept { return handle_; }
  // The same as an ordinary context; from then on it is found by its handle.
  CUcontext context() const noexcept { return context_; }
  void take_context(CUcontext context) noexcept;

  // Its place in the list of live contexts (0: not listed); gives up the one that it had.
  void enlist_as(std::uint64_t live_entry) noexcept;

 private:
  Runtime& runtime_;
  int device_;
  std::shared_ptr<void> primary_;
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
  std::uint64_t live_entry_ = 0;
};

}  // namespace gctx
