// A driver in use: the driver itself, what is known of its devices, and the registries of the objects made on it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "driver/process.hpp"
#include "handles/context.hpp"
#include "handles/pinned.hpp"
#include "handles/registry.hpp"
#include "handles/split_contexts.hpp"
#include "handles/stream.hpp"
#include "handles/types.hpp"
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
  bool exclusive = false;
  bool closed = false;  // closed by its user, and kept alive by a stream or event
  SmResourcePtr sms;
  std::string name;
};

class Runtime {
 public:
  // The active one; opens the driver that CUDA_GCTX_DRIVER names at first use. Throws in a forked child.
  static Runtime& active();
  static bool is_any_open() noexcept;  // whether `active` is quick

  // Opens another driver and makes it active until it is closed; `close` drops what this package keeps of it.
  static Runtime& open(std::string_view choice);
  static void close(Runtime& runtime);

  // Sets the active driver aside, if one is open, until `resume`: its objects throw when they are used, and what is
  // dropped meanwhile is destroyed afterwards. So that another machine can take the place of this one.
  static void set_aside_active() noexcept;
  static void resume() noexcept;

  explicit Runtime(std::string_view choice);

  const Driver& driver() const noexcept { return driver_; }
  int device_count() const noexcept { return static_cast<int>(devices_.size()); }
  CUdevice device(int ordinal) const { return devices_[static_cast<std::size_t>(ordinal)].device; }

  // Destructors ask whether objects of this driver may still be touched. Everything else demands it, but for the way
  // out of the process, on which code that still runs may still call.
  bool is_usable() const noexcept {
    return process_state() == ProcessState::normal && standing_.load(std::memory_order_relaxed) == Standing::open;
  }
  void demand_usable() const {
    if (is_forked() || standing_.load(std::memory_order_relaxed) != Standing::open) [[unlikely]] {
      fail_unusable();
    }
  }
  bool is_set_aside() const noexcept { return standing_.load(std::memory_order_relaxed) == Standing::set_aside; }

  // In a destructor: while the driver is set aside, keeps what `remains` moves out of the dying object, to be destroyed
  // afterwards. False if it is not set aside.
  template <typename Remains>
  bool keep_for_later(Remains&& remains) noexcept {
    if (!is_set_aside()) [[likely]] {
      return false;
    }
    try {
      keep(remains());
    } catch (...) {  // lost rather than destroyed on another machine
    }
    return true;
  }

  SmResourcePtr device_sm(int ordinal);
  SmResourcePtr known_device_sm(int ordinal);  // null if it has to be queried, or waited for
  CUdevResource device_workqueue(int ordinal);
  ContextHandle primary(int ordinal);
  PriorityRange priorities(int ordinal);
  SplitContexts& split_contexts() noexcept { return split_contexts_; }
  PinnedContexts& pinned() noexcept { return pinned_; }

  // The probe kernel of a device, loaded at first use.
  std::shared_ptr<Probe> probe(int ordinal);

  // How many green contexts this package has made and destroyed on a device.
  ContextCounts context_counts(int ordinal) const;
  void count_made(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].made.fetch_add(1); }
  void count_destroyed(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].destroyed.fetch_add(1); }

  Registry<CUcontext, ContextBox>& contexts() noexcept { return contexts_; }
  Registry<CUstream, StreamBox>& streams() noexcept { return streams_; }

  // The list of live green contexts of a device. Entry 0 is nobody's. Comparing several with the list and entering them
  // are one step; they are not compared with each other. `report` names those that share SMs or may, and ends with the
  // advice; it is empty if there are none. Throws it if one of them is to be exclusive, or `only_free` is set.
  std::vector<std::uint64_t> enlist(int ordinal, const std::vector<SmResourcePtr>& sms,
                                    const std::vector<std::string>& names, bool exclusive, bool only_free,
                                    std::uint64_t group, const std::string& advice, std::string& report);
  // Of each, whether no live context is known to have its SMs, or may: true or false.
  std::vector<int> are_free(int ordinal, const std::vector<SmResourcePtr>& sms);
  void note_closed(int ordinal, std::uint64_t entry) noexcept;
  void delist(int ordinal, std::uint64_t entry) noexcept;

 private:
  enum class Standing : int { open, set_aside, closed };

  [[noreturn]] void fail_unusable() const;
  void drop_caches();
  void keep(std::shared_ptr<void> remains);

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
  PinnedContexts pinned_;
  std::atomic<std::uint64_t> next_entry_{1};
  std::atomic<Standing> standing_{Standing::open};
  std::mutex later_mutex_;
  std::vector<std::shared_ptr<void>> later_;
};

inline void ContextBox::demand_usable() const { runtime_.demand_usable(); }

SmResourcePtr sm_resource_from_query(const Runtime& runtime, int ordinal, const CUdevResource& queried);

SplitResult split_resource(Runtime& runtime, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                           bool dry_run);

}  // namespace gctx
