// A driver in use: the driver itself, what is known of its devices, and the registries of the objects made on it.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver/driver.hpp"
#include "driver/process.hpp"
#include "handles/handles.hpp"
#include "handles/split_contexts.hpp"
#include "resources/split.hpp"

namespace gctx {

struct PriorityRange {
  int least = 0;
  int greatest = 0;
};

struct ContextCounts {
  std::uint64_t made = 0;
  std::uint64_t destroyed = 0;
};

class Probe;

struct LiveContext {
  std::uint64_t entry = 0;
  std::uint64_t group = 0;  // those of one group (0: of none) may share SMs: they are used one at a time
  SmResourcePtr sms;
  std::string name;
};

// Raw handle -> box. Looking up and putting in are one step each under a lock, and an entry is told from a newer object
// at the same address by asking the box (`is_same`), so that recycled addresses neither resurrect nor erase the wrong
// object.
template <typename Raw, typename Box>
class Registry {
 public:
  template <typename IsSame>
  std::shared_ptr<Box> find(Raw raw, IsSame&& is_same) const {
    std::shared_ptr<Box> found;
    {
      const std::lock_guard lock(mutex_);
      const auto it = boxes_.find(raw);
      if (it != boxes_.end()) {
        found = it->second.lock();
      }
    }
    return found && is_same(*found) ? found : nullptr;
  }

  void put(Raw raw, const std::shared_ptr<Box>& box) {
    const std::lock_guard lock(mutex_);
    boxes_[raw] = box;
  }

  // Registers `made` unless another thread was quicker; returns the box that is registered.
  template <typename IsSame>
  std::shared_ptr<Box> settle(Raw raw, std::shared_ptr<Box> made, IsSame&& is_same) {
    std::shared_ptr<Box> found;  // declared before the lock: its destructor may come back here
    const std::lock_guard lock(mutex_);
    auto& slot = boxes_[raw];
    found = slot.lock();
    if (found && is_same(*found)) {
      return found;
    }
    slot = made;
    return made;
  }

  std::vector<std::shared_ptr<Box>> all() const {
    std::vector<std::shared_ptr<Box>> found;
    const std::lock_guard lock(mutex_);
    found.reserve(boxes_.size());
    for (const auto& [raw, box] : boxes_) {
      found.push_back(box.lock());
    }
    std::erase(found, nullptr);
    return found;
  }

  // Called by a box that lives on without its object.
  void drop(Raw raw, const Box* box) noexcept {
    std::shared_ptr<Box> found;
    const std::lock_guard lock(mutex_);
    const auto it = boxes_.find(raw);
    if (it != boxes_.end()) {
      found = it->second.lock();
      if (found.get() == box) {
        boxes_.erase(it);
      }
    }
  }

  // Called by a dying box, whose own entry has expired by then.
  void drop_expired(Raw raw) noexcept {
    const std::lock_guard lock(mutex_);
    const auto it = boxes_.find(raw);
    if (it != boxes_.end() && it->second.expired()) {
      boxes_.erase(it);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<Raw, std::weak_ptr<Box>> boxes_;
};

class Runtime {
 public:
  // The active one; opens the driver that CUDA_GCTX_DRIVER names at first use. Throws in a forked child.
  static Runtime& active();
  static bool is_any_open() noexcept;  // whether `active` is quick

  // Opens another driver and makes it active until it is closed; `close` drops what this package keeps of it.
  static Runtime& open(std::string_view choice);
  static void close(Runtime& runtime);

  explicit Runtime(std::string_view choice);

  const Driver& driver() const noexcept { return driver_; }
  int device_count() const noexcept { return static_cast<int>(devices_.size()); }
  CUdevice device(int ordinal) const { return devices_[static_cast<std::size_t>(ordinal)].device; }

  // Destructors ask whether objects of this driver may still be touched. Everything else demands it, but for the way
  // out of the process, on which code that still runs may still call.
  bool is_usable() const noexcept {
    return process_state() == ProcessState::normal && !closed_.load(std::memory_order_relaxed);
  }
  void demand_usable() const {
    if (process_state() == ProcessState::forked || closed_.load(std::memory_order_relaxed)) [[unlikely]] {
      fail_unusable();
    }
  }

  SmResourcePtr device_sm(int ordinal);
  CUdevResource device_workqueue(int ordinal);
  ContextHandle primary(int ordinal);
  PriorityRange priorities(int ordinal);
  SplitContexts& split_contexts() noexcept { return split_contexts_; }

  // The probe kernel of a device, loaded at first use.
  std::shared_ptr<Probe> probe(int ordinal);

  // How many green contexts this package has made and destroyed on a device.
  ContextCounts context_counts(int ordinal) const;
  void count_made(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].made.fetch_add(1); }
  void count_destroyed(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].destroyed.fetch_add(1); }

  Registry<CUcontext, ContextBox>& contexts() noexcept { return contexts_; }
  Registry<CUstream, StreamBox>& streams() noexcept { return streams_; }

  // The list of live green contexts of a device. Comparing and entering are one step. Entry 0 is nobody's.
  std::uint64_t enlist(int ordinal, SmResourcePtr sms, const std::string& name, bool exclusive, std::uint64_t group,
                       std::string& report);
  void delist(int ordinal, std::uint64_t entry) noexcept;

 private:
  [[noreturn]] void fail_unusable() const;
  void drop_caches();

  struct DeviceState {
    CUdevice device = 0;
    std::mutex mutex;
    SmResourcePtr sm;
    ContextHandle primary;
    std::optional<PriorityRange> priorities;
    std::mutex live_mutex;
    std::vector<LiveContext> live;
    std::shared_ptr<Probe> probe;
    std::atomic<std::uint64_t> made{0};
    std::atomic<std::uint64_t> destroyed{0};
  };

  Driver driver_;
  std::vector<DeviceState> devices_;
  Registry<CUcontext, ContextBox> contexts_;
  Registry<CUstream, StreamBox> streams_;
  SplitContexts split_contexts_{*this};
  std::atomic<std::uint64_t> next_entry_{1};
  std::atomic<bool> closed_{false};
};

// Answers of a device that need no object.
std::string device_name(Runtime& runtime, int ordinal);
std::string device_pci_bus_id(Runtime& runtime, int ordinal);
CUuuid device_uuid(Runtime& runtime, int ordinal);
int device_attribute(Runtime& runtime, int ordinal, CUdevice_attribute attribute);
SmResourcePtr sm_resource_from_query(const Runtime& runtime, int ordinal, const CUdevResource& queried);

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run);

}  // namespace gctx
