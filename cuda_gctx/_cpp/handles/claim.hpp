// Places among the live contexts of a device: who has which SMs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// A green context that is about to be made: its SMs are claimed first, so that two threads cannot both find them free.
class NewContext {
 public:
  // Checks that the resources can be one context. `overlap_matters`: compare with the live contexts of the device.
  NewContext(Runtime& runtime, int device, std::vector<SmResourcePtr> sms, std::optional<CUdevResource> workqueue,
             std::string name, bool exclusive, bool overlap_matters);
  ~NewContext();
  NewContext(const NewContext&) = delete;
  NewContext& operator=(const NewContext&) = delete;

  // The live contexts that share SMs with it, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

  // That its workqueue is that of another context, which lives as long as this one. Throws if that is closed.
  void share_queues(const ContextHandle& source);

  ContextHandle create();

 private:
  Runtime& runtime_;
  int device_;
  std::vector<SmResourcePtr> sms_;
  std::optional<CUdevResource> workqueue_;
  std::shared_ptr<const void> queues_of_;
  std::string name_;
  SmResourcePtr given_;
  std::string overlap_report_;
  std::uint64_t live_entry_ = 0;
};

std::unique_ptr<NewContext> claim_context(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms,
                                          const std::optional<CUdevResource>& workqueue, const std::string& name,
                                          bool exclusive, bool overlap_matters);

// A place for as long as it exists or until it is released, for contexts that were made without one.
class Claim {
 public:
  // `names` go with `sms`. Claims of one group (0: of none) may share SMs. Throws if others have them and it is
  // exclusive, or `only_free` is set. `advice` ends the report of those.
  Claim(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms, const std::vector<std::string>& names,
        bool exclusive, bool only_free, std::uint64_t group, const std::string& advice);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // The live contexts that share SMs with these, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

  void release() noexcept;  // from any thread, and twice does nothing

 private:
  Runtime& runtime_;
  int device_;
  std::vector<std::uint64_t> entries_;
  std::string overlap_report_;
  std::atomic<bool> is_released_{false};
};

}  // namespace gctx
