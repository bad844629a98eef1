// What a context is in the driver, apart from its box: what is left of one of ours that is closed, and what a new box
// can be made of.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "handles/context_streams.hpp"
#include "handles/green_context.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class OwnedContext {
 public:
  OwnedContext(Runtime& of, int ordinal) noexcept : runtime(of), device(ordinal) {}
  ~OwnedContext();  // destroys what is ours
  OwnedContext(const OwnedContext&) = delete;
  OwnedContext& operator=(const OwnedContext&) = delete;

  // Whether the driver's object is still there. A primary context goes with a reset of its device, one of others when
  // they destroy it. A green one of ours stays: while there is one, the driver (13.0) refuses the reset.
  bool is_there() const noexcept { return ask_whether_there() != CUDA_ERROR_CONTEXT_IS_DESTROYED; }
  CUresult ask_whether_there() const noexcept;
  void ask_id();

  bool is_made_of(const SmResource& sms, const std::optional<CUdevResource>& wanted) const noexcept;
  bool has_anything() noexcept { return green || streams.has_own(); }
  void destroy_streams() noexcept;

  Runtime& runtime;
  const int device;
  CUcontext handle = nullptr;
  std::uint64_t id = 0;
  GreenCtxHandle green;  // if it is ours
  SmResourcePtr given;   // what a green one of ours was made of
  std::optional<CUdevResource> workqueue;
  std::shared_ptr<const void> queues_of;  // the use of another context, if it shares that one's queues
  ContextStreams streams;

 private:
  friend class PinnedContexts;
  std::shared_ptr<OwnedContext> next_pinned_;
};

using OwnedContextPtr = std::shared_ptr<OwnedContext>;

}  // namespace gctx
