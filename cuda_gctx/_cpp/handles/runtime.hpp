// A driver in use, whether it may be called, and what other units keep for it.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "driver/process.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class Runtime {
 public:
  // The active one; opens the driver that CUDA_GCTX_DRIVER names at first use. Throws in a forked child.
  static Runtime& active();
  static bool is_any_open() noexcept;  // whether `active` is quick

  // Opens another driver and makes it active until it is closed.
  static Runtime& open(std::string_view choice);
  // From now on its objects throw when they are used. What this package keeps of it goes before: see close_driver().
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

  // In a destructor: ends something of this driver, or keeps it for afterwards while that is set aside, with what it
  // needs then.
  template <typename End, typename... Needed>
  void end_now_or_later(End&& end, const Needed&... needed) noexcept {
    if (is_usable()) [[likely]] {
      end();
    } else if (is_set_aside() && !is_forked()) {
      try {
        keep([end, needed...] { end(); });
      } catch (...) {  // lost rather than destroyed on another machine
      }
    }
  }

  SmResourcePtr device_sm(int ordinal);
  SmResourcePtr known_device_sm(int ordinal) const noexcept;  // null if it has to be queried
  CUdevResource device_workqueue(int ordinal);

  // What a unit keeps for this driver, made at its first use. Each has its place.
  enum class Place : std::size_t { primaries, claims, context_pool, capture_gate, probes };
  template <typename Part>
  Part& part() {
    const auto place = static_cast<std::size_t>(Part::place);
    void* found = parts_[place].load(std::memory_order_acquire);
    if (found == nullptr) [[unlikely]] {
      const std::lock_guard lock(parts_mutex_);
      if (!owned_parts_[place]) {
        owned_parts_[place] = std::make_shared<Part>(*this);
      }
      found = owned_parts_[place].get();
      parts_[place].store(found, std::memory_order_release);
    }
    return *static_cast<Part*>(found);
  }

 private:
  enum class Standing : int { open, set_aside, closed };
  static constexpr std::size_t places = 5;

  struct DeviceState {
    CUdevice device = 0;
    std::mutex mutex;
    std::atomic<const SmResource*> sm{nullptr};  // never freed, like its Runtime: pointers to it count nothing
  };

  [[noreturn]] void fail_unusable() const;
  void keep(std::function<void()> end);

  Driver driver_;
  std::vector<DeviceState> devices_;
  std::atomic<Standing> standing_{Standing::open};
  std::mutex later_mutex_;
  std::vector<std::function<void()>> later_;
  std::mutex parts_mutex_;
  std::array<std::shared_ptr<void>, places> owned_parts_;
  std::array<std::atomic<void*>, places> parts_{};
};

// For calls that take a lock before they ask a runtime: in a forked child, another thread may have held it.
void demand_not_forked();

SmResourcePtr sm_resource_from_query(const Runtime& runtime, int ordinal, const CUdevResource& queried);

}  // namespace gctx
