// Contexts that a framework has seen, after everybody here has closed them. Frameworks keep bare handles in caches that
// nobody can empty, so that these live until the driver is closed or the program drops them, and serve the next request
// for the same SMs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "handles/owned_context.hpp"

namespace gctx {

struct PinnedCounts {
  std::uint64_t pinned = 0;   // green contexts of ours that a framework has seen, open or not
  std::uint64_t waiting = 0;  // of these, the ones that are closed and wait here
};

class PinnedContexts {
 public:
  static constexpr Runtime::Place place = Runtime::Place::pinned;
  explicit PinnedContexts(const Runtime& runtime) : seen_(static_cast<std::size_t>(runtime.device_count())) {}

  // So many contexts of a device a framework may see; of all drivers.
  static constexpr std::uint64_t default_limit = 512;
  static std::uint64_t limit() noexcept { return limit_.load(); }
  static void set_limit(std::uint64_t limit) noexcept { limit_.store(limit); }

  // One more green context is seen. Throws, and it is not, where that would be more than the limit.
  void demand_and_count(int device);
  void count(int device) noexcept;

  // Takes what is left of a closed context, and needs no memory for it. False once the driver is being closed.
  bool keep(const OwnedContextPtr& remains) noexcept;

  // One that is made of these resources, and on which nothing captures; null if there is none.
  OwnedContextPtr take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue);

  PinnedCounts counts(int device) const;

  void drop();   // destroys what waits: frameworks must not use it any more
  void close();  // the same, and from then on nothing is kept

 private:
  static std::atomic<std::uint64_t> limit_;

  mutable std::mutex mutex_;
  std::vector<std::uint64_t> seen_;  // by device
  OwnedContextPtr first_;            // what came last goes first
  bool is_closed_ = false;
};

inline PinnedContexts& pinned_contexts(Runtime& runtime) { return runtime.part<PinnedContexts>(); }
inline void drop_pinned(Runtime& runtime) { pinned_contexts(runtime).drop(); }

}  // namespace gctx
