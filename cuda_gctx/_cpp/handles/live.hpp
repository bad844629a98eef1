// The live green contexts of each device: who has claimed which SMs.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "handles/runtime.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// Of the green contexts of this package on a device.
struct ContextCounts {
  std::uint64_t made = 0;
  std::uint64_t destroyed = 0;
  std::uint64_t pinned = 0;   // a framework has seen them, open or not
  std::uint64_t waiting = 0;  // of these, the ones that are closed and kept
  std::uint64_t split = 0;    // that splits needed
};

inline std::string label_of_context(const std::string& name) {
  return name.empty() ? "an unnamed context" : "context '" + name + "'";
}

class Claim;

class LiveContexts {
 public:
  static constexpr Runtime::Place place = Runtime::Place::live;
  explicit LiveContexts(const Runtime& runtime) : devices_(static_cast<std::size_t>(runtime.device_count())) {}

  // Of each, whether no live context is known to have its SMs, or may: true or false.
  std::vector<int> are_free(int ordinal, const std::vector<SmResourcePtr>& sms);

  ContextCounts counts(int ordinal) const;  // made and destroyed
  void count_made(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].made.fetch_add(1); }
  void count_destroyed(int ordinal) noexcept { devices_[static_cast<std::size_t>(ordinal)].destroyed.fetch_add(1); }

 private:
  friend class Claim;
  struct Device {
    std::mutex mutex;
    std::vector<const Claim*> live;
    std::atomic<std::uint64_t> made{0};
    std::atomic<std::uint64_t> destroyed{0};
  };

  std::vector<Device> devices_;
};

inline LiveContexts& live_contexts(Runtime& runtime) { return runtime.part<LiveContexts>(); }

// Some SMs of a device, for as long as it exists or until it is released.
class Claim {
 public:
  // `names` go with `sms`. Comparing them with all other claims and making this one are one step; they are not compared
  // with each other. Claims of one group (0: of none) may share SMs: they are used one at a time. Throws if others have
  // the SMs and it is to be exclusive, or `only_free` is set. `advice` ends the report of those.
  Claim(Runtime& runtime, int device, std::vector<SmResourcePtr> sms, std::vector<std::string> names, bool exclusive,
        bool only_free, std::uint64_t group, const std::string& advice);
  ~Claim() { release(); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // The live contexts that share SMs with these, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

  void note_closed() noexcept;  // by its user, and kept alive by a stream or event
  void release() noexcept;      // from any thread, and twice does nothing

 private:
  friend class LiveContexts;

  LiveContexts::Device& device_;
  const std::vector<SmResourcePtr> sms_;
  const std::vector<std::string> names_;
  const bool exclusive_;
  const std::uint64_t group_;
  bool closed_ = false;
  std::string overlap_report_;
};

}  // namespace gctx
