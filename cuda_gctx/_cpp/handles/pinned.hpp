// Contexts that a framework has seen, after everybody here has closed them. Frameworks keep bare handles in caches that
// nobody can empty, so that these live until the driver is closed, and serve the next request for the same SMs.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

struct PinnedCounts {
  std::uint64_t pinned = 0;   // green contexts of ours that a framework has seen, open or not
  std::uint64_t waiting = 0;  // of these, the ones that are closed and wait here
};

class PinnedContexts {
 public:
  // One more green context has been seen.
  void count(int device);

  // Takes what is left of a closed context. False, and `remains` stays with the caller, once `drop` was called.
  bool keep(const ContextHandle& remains);

  // One that is made of these resources, and on which nothing captures; null if there is none.
  ContextHandle take(int device, const SmResource& sms, const std::optional<CUdevResource>& workqueue);

  PinnedCounts counts(int device) const;
  std::uint64_t total() const;

  // Destroys what waits, last come first gone; from then on nothing is kept.
  void drop();

 private:
  mutable std::mutex mutex_;
  std::map<int, std::uint64_t> seen_;
  std::vector<ContextHandle> waiting_;
  bool is_dropped_ = false;
};

}  // namespace gctx
