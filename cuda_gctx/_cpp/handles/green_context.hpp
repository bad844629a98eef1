// A green context of ours, its claim of SMs, and the primary context under it.
#pragma once

#include <cuda.h>

#include <memory>
#include <utility>

#include "handles/live.hpp"
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

  // From now on its SMs are claimed by this (null: by nobody), and no longer by what claimed them before.
  void claim(std::shared_ptr<Claim> claim) noexcept;

 private:
  Runtime& runtime_;
  int device_;
  std::shared_ptr<void> primary_;
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
  std::shared_ptr<Claim> claim_;
};

}  // namespace gctx
