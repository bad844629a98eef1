// What a context is in the driver, apart from its box: what is left of one of ours that is closed, and what a new box
// can be made of. Whoever lets go of it last ends it, now or when its work has ended.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "handles/context_streams.hpp"
#include "handles/green_context.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class OwnedContext {
 public:
  static std::shared_ptr<OwnedContext> make(Runtime& runtime, int ordinal);
  ~OwnedContext();  // destroys what is ours
  OwnedContext(const OwnedContext&) = delete;
  OwnedContext& operator=(const OwnedContext&) = delete;

  // Whether the driver's object is still there. A primary context goes with a reset of its device, one of others when
  // they destroy it. A green one of ours stays: while there is one, the driver (13.0) refuses the reset.
  bool is_there() const noexcept { return ask_whether_there() != CUDA_ERROR_CONTEXT_IS_DESTROYED; }
  CUresult ask_whether_there() const noexcept;

  bool is_made_of(const SmResource& sms, const std::optional<CUdevResource>& wanted) const noexcept;
  bool has_anything() noexcept { return green || streams.has_own(); }
  // Whether all work of a green one of ours is done; false, too, if the driver cannot be asked.
  bool is_done() const noexcept;
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
  friend class EndingContexts;
  OwnedContext(Runtime& of, int ordinal) noexcept : runtime(of), device(ordinal) {}

  std::shared_ptr<OwnedContext> next_pinned_;
  std::unique_ptr<OwnedContext> next_ending_;
};

using OwnedContextPtr = std::shared_ptr<OwnedContext>;

// Green contexts of ours that nobody uses any more, and that have work to do. Waits of the primary context, which are
// those of other libraries for all work of the device, have missed a copy of a green context that was destroyed (seen
// on an H200 with driver 13.0; an H100 waited for kernels). So none is destroyed before its work has ended.
class EndingContexts {
 public:
  using Owned = std::unique_ptr<OwnedContext>;
  static constexpr Runtime::Place place = Runtime::Place::ending;
  explicit EndingContexts(const Runtime& runtime) noexcept : runtime_(runtime) {}

  // Destroys what is left of a context, now or when its work has ended. Waits for nothing, and needs no memory.
  void end(Owned context) noexcept;
  // Destroys those whose work has ended: some of them, the oldest first.
  void collect() noexcept;
  // Until the work of those of a device has ended.
  void wait(int device, CUcontext primary);
  void close() noexcept;  // the same of all

 private:
  static constexpr int most_asked = 4;  // of those that go on, for one that is made or ends

  template <typename Is>
  Owned* find(Is&& is_meant);  // its place in the list, or the end
  static Owned take(Owned& at) noexcept;

  const Runtime& runtime_;
  std::mutex mutex_;
  Owned first_;  // the oldest
};

inline EndingContexts& ending_contexts(Runtime& runtime) { return runtime.part<EndingContexts>(); }

}  // namespace gctx
