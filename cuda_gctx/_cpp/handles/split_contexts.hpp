// The contexts that make groups and remainders splittable: the driver splits only what a device or a context query
// returns. Each costs about a millisecond, and memory that the driver keeps when it is destroyed, so that one is kept
// for the next split of the same SMs.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "handles/runtime.hpp"
#include "handles/types.hpp"
#include "resources/outcome.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class SplitContexts {
 public:
  // Beyond this number the one that was used longest ago is destroyed.
  static constexpr std::size_t limit = 32;

  static constexpr Runtime::Place place = Runtime::Place::split_contexts;
  explicit SplitContexts(Runtime& runtime) noexcept : runtime_(runtime) {}

  // A splittable form of a group: what a context over it answers.
  SmResourcePtr splittable(const SmResourcePtr& group);

  std::size_t count(int device) const;
  void drop();

 private:
  // One context, or its place while it is being made: only those who want the same SMs wait for it.
  struct Slot {
    Slot(int ordinal, std::string bytes) noexcept : device(ordinal), key(std::move(bytes)) {}
    const int device;
    const std::string key;
    std::mutex mutex;
    std::shared_ptr<ContextBox> context;
    std::atomic<bool> is_made{false};
  };
  using Slots = std::list<std::shared_ptr<Slot>>;

  std::shared_ptr<Slot> slot_of(const SmResource& group);

  Runtime& runtime_;
  mutable std::mutex mutex_;
  Slots slots_;  // in the order of their last use
};

inline SplitContexts& split_contexts(Runtime& runtime) { return runtime.part<SplitContexts>(); }

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run);

}  // namespace gctx
