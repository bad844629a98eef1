// Driver calls as a careful C programmer would write them, timed where they are made: what the calls of the package are
// compared with.
#pragma once

#include <cuda.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/switching.hpp"

namespace gctx {

// Two green contexts of 8 SMs with a stream each, one event, and the SMs for more contexts: what the calls work on.
// They are made, used and destroyed without the classes of this package.
class RawCalls {
 public:
  static constexpr const char* word = "set of raw calls";  // in messages

  RawCalls(Runtime& runtime, int ordinal);
  ~RawCalls();
  RawCalls(const RawCalls&) = delete;
  RawCalls& operator=(const RawCalls&) = delete;

  static std::vector<std::string> names();

  // Makes one of the calls so many times; nanoseconds for all of them.
  double time(std::string_view name, unsigned count);

  // Waits for all that was recorded, so that no sample pays for the queue that the one before it left.
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

  Runtime& runtime_;
  const Driver& driver_;
  ContextHandle primary_;
  CUdevice device_;
  CUdevResource whole_{};
  std::array<CUdevResource, 3> groups_{};
  std::array<CUgreenCtx, 2> green_{};
  std::array<CUcontext, 2> contexts_{};
  std::array<CUstream, 2> streams_{};
  CUevent event_ = nullptr;
  std::array<CUevent, 2> timed_{};
};

// The driver calls of one switch of a pool, and nothing else: what the switch is compared with.
class RawSwitch {
 public:
  static constexpr const char* word = "raw switch";  // in messages
  using Place = Switching::NewUse;                   // its context or its stream

  // Each of `later` waits for the one of `earlier` in the same position. `asked`: the streams that may capture.
  RawSwitch(std::vector<StreamHandle> asked, std::vector<Place> earlier, std::vector<Place> later);

  double time() const;  // nanoseconds

 private:
  struct Step {
    Place place;
    EventHandle event;
  };

  std::vector<StreamHandle> asked_;
  std::vector<Step> records_;
  std::vector<Step> waits_;
  ContextHandle primary_;  // asked whether it is there, where one of its streams waits
};

inline std::shared_ptr<RawSwitch> make_raw_switch(std::vector<StreamHandle>& asked,
                                                  std::vector<RawSwitch::Place>& earlier,
                                                  std::vector<RawSwitch::Place>& later) {
  return std::make_shared<RawSwitch>(std::move(asked), std::move(earlier), std::move(later));
}

inline std::shared_ptr<RawCalls> make_raw_calls(Runtime& runtime, int ordinal) {
  return std::make_shared<RawCalls>(runtime, ordinal);
}

}  // namespace gctx
