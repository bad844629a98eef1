// The live green contexts of each device: who has which SMs.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "handles/runtime.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

struct ContextCounts {
  std::uint64_t made = 0;
  std::uint64_t destroyed = 0;
};

inline std::string label_of_context(const std::string& name) {
  return name.empty() ? "an unnamed context" : "context '" + name + "'";
}

class LiveContexts {
 public:
  static constexpr Runtime::Place place = Runtime::Place::live;
  explicit LiveContexts(const Runtime& runtime) : devices_(static_cast<std::size_t>(runtime.device_count())) {}

  // Entry 0 is nobody's. Comparing several with the list and entering them are one step; they are not compared with
  // each other. `report` names those that share SMs or may, and ends with the advice; it is empty if there are none.
  // Throws it if one of them is to be exclusive, or `only_free` is set.
  std::vector<std::uint64_t> enlist(int ordinal, const std::vector<SmResourcePtr>& sms,
                                    const std::vector<std::string>& names, bool exclusive, bool only_free,
                                    std::uint64_t group, const std::string& advice, std::string& report);
  // Of each, whether no live context is known to have its SMs, or may: true or false.
  std::vector<int> are_free(int ordinal, const std::vector<SmResourcePtr>& sms);
  void note_closed(int ordinal, std::uint64_t entry) noexcept;
  void delist(int ordinal, std::uint64_t entry) noexcept;

  // How many green contexts this package has made and destroyed on a device.
  ContextCounts counts(int ordinal) const;
  void count_made(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].made.fetch_add(1); }
  void count_destroyed(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].destroyed.fetch_add(1); }

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::uint64_t group = 0;  // those of one group (0: of none) may share SMs: they are used one at a time
    bool exclusive = false;
    bool closed = false;  // closed by its user, and kept alive by a stream or event
    SmResourcePtr sms;
    std::string name;
  };
  struct Device {
    std::mutex mutex;
    std::vector<Entry> live;
    std::atomic<std::uint64_t> made{0};
    std::atomic<std::uint64_t> destroyed{0};
  };

  std::vector<Device> devices_;
  std::atomic<std::uint64_t> next_entry_{1};
};

inline LiveContexts& live_contexts(Runtime& runtime) { return runtime.part<LiveContexts>(); }

}  // namespace gctx
