// Driver calls as a careful C programmer would write them, timed where they are made: what the calls of the package are
// compared with.
#pragma once

#include <cuda.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "handles/context.hpp"

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

inline std::shared_ptr<RawCalls> make_raw_calls(Runtime& runtime, int ordinal) {
  return std::make_shared<RawCalls>(runtime, ordinal);
}

}  // namespace gctx
