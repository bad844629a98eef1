// A green context of ours, its place among the live ones of its device, and the primary context under it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <utility>

#include "handles/types.hpp"

namespace gctx {

class GreenCtxBox {
 public:
  explicit GreenCtxBox(ContextHandle primary) noexcept : primary_(std::move(primary)) {}
  GreenCtxBox(GreenCtxBox&& other) noexcept
      : primary_(std::move(other.primary_)),
        handle_(std::exchange(other.handle_, nullptr)),
        live_entry_(std::exchange(other.live_entry_, 0)) {}
  ~GreenCtxBox();
  GreenCtxBox& operator=(GreenCtxBox&&) = delete;

  // Takes over what was made, and its place in the list of live contexts (0: not listed).
  void take(CUgreenCtx handle, std::uint64_t live_entry) noexcept {
    handle_ = handle;
    live_entry_ = live_entry;
  }

  // Gives up its place in that list for another one.
  void enlist_as(std::uint64_t live_entry) noexcept;

 private:
  ContextHandle primary_;
  CUgreenCtx handle_ = nullptr;
  std::uint64_t live_entry_ = 0;
};

}  // namespace gctx
