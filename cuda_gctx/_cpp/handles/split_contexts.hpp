// The contexts that make groups and remainders splittable: the driver splits only what a device or a context query
// returns. Each costs about a millisecond, and memory that the driver keeps when it is destroyed, so that one is kept
// for the next split of the same SMs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
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
    explicit Slot(int ordinal) noexcept : device(ordinal) {}
    const int device;
    std::mutex mutex;
    std::shared_ptr<ContextBox> context;
    std::atomic<bool> is_made{false};
    std::uint64_t last_use = 0;  // guarded by the mutex of all
  };
  using Slots = std::unordered_map<std::string, std::shared_ptr<Slot>>;

  std::shared_ptr<Slot> slot_of(const SmResource& group);

  Runtime& runtime_;
  mutable std::mutex mutex_;
  Slots slots_;
  std::uint64_t uses_ = 0;
};

inline SplitContexts& split_contexts(Runtime& runtime) { return runtime.part<SplitContexts>(); }
inline void drop_split_contexts(Runtime& runtime) { split_contexts(runtime).drop(); }

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run);

}  // namespace gctx
