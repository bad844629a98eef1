// Driver calls as a C programmer writes them, timed in C++: the baseline of the benchmarks.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver_functions.hpp"

namespace raw {

// Two green contexts of 8 SMs with a stream each, their events, and the SMs of a third context.
class RawCalls {
 public:
  RawCalls(const std::string& driver_path, int ordinal);
  ~RawCalls();
  RawCalls(const RawCalls&) = delete;
  RawCalls& operator=(const RawCalls&) = delete;

  static std::vector<std::string> names();

  // Makes the named call `count` times. Returns the nanoseconds of all calls.
  double time(std::string_view name, unsigned count);

  // Waits for the recorded events, so that a sample does not pay for the queue of the sample before it.
  void settle() const;

 private:
  struct Entry;
  static const std::array<Entry, 14> entries;

  template <class Call>
  double timed(unsigned count, Call one_call);

  double query(unsigned count);
  double split_one(unsigned count);
  double split_uneven(unsigned count);
  double context(unsigned count);
  double stream(unsigned count);
  double stream_sm_count(unsigned count);
  double push_pop(unsigned count);
  double is_current(unsigned count);
  double record_wait(unsigned count);
  double context_record_wait(unsigned count);
  double stream_is_done(unsigned count);
  double event_is_done(unsigned count);
  double priority(unsigned count);
  double elapsed(unsigned count);

  CUgreenCtx create_green(unsigned group) const;
  CUstream create_stream(unsigned position) const;
  void release() noexcept;

  const DriverFunctions driver_;
  CUdevice device_ = 0;
  CUcontext primary_ = nullptr;
  CUdevResource whole_{};
  std::array<CUdevResource, 3> groups_{};
  std::array<CUgreenCtx, 2> green_{};
  std::array<CUcontext, 2> contexts_{};
  std::array<CUstream, 2> streams_{};
  CUevent event_ = nullptr;
  std::array<CUevent, 2> timed_{};
};

// The driver calls of one switch of a pool.
class RawSwitch {
 public:
  // Handles of a stream and its context. A stream of 0 stands for the whole context.
  struct Place {
    std::uintptr_t stream = 0;
    std::uintptr_t context = 0;
  };

  // Each element of `later` waits for the element of `earlier` at the same position. `asked`: streams whose capture
  // state the switch reads.
  RawSwitch(const std::string& driver_path, std::vector<std::uintptr_t> asked, const std::vector<Place>& earlier,
            const std::vector<Place>& later);
  ~RawSwitch();
  RawSwitch(const RawSwitch&) = delete;
  RawSwitch& operator=(const RawSwitch&) = delete;

  double time() const;  // nanoseconds

 private:
  struct Step {
    Place place;
    CUevent event;
  };

  const DriverFunctions driver_;
  std::vector<std::uintptr_t> asked_;
  std::vector<Step> records_;
  std::vector<Step> waits_;
  CUcontext primary_ = nullptr;  // the switch reads its id if one of its streams waits
};

}  // namespace raw
