// Default streams of a part. In a green context the driver orders the NULL stream and blocking streams in no way, and
// has no stream per thread. The library orders the streams by events, and gives each thread a stream of the part.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "part.hpp"
#include "real_driver.hpp"

namespace gctx::interpose {

// work: the call puts work into the stream, or waits for work.
enum class Use { work, question };

// Set while streams have to be looked at: the process made a blocking stream or a stream per thread, or verifies.
extern std::atomic<bool> watching;
inline bool watches() noexcept { return watching.load(std::memory_order_relaxed); }

// Returns whether the driver can have a stream handle as it is. `of_thread`: NULL is the stream of the thread.
inline bool is_ordinary(CUstream stream, bool of_thread) noexcept {
  return !watches() && stream != CU_STREAM_PER_THREAD && !(of_thread && stream == nullptr);
}

// The stream of the part that a handle means: the stream of this thread for CU_STREAM_PER_THREAD.
CUstream actual_stream(CUstream stream, bool of_thread);

// Waits of a call between the NULL stream and blocking streams: begin() before it, end() after it.
class Turn {
 public:
  CUresult begin(CUstream stream);
  void end();

 private:
  Part* part_ = nullptr;  // of a call in the NULL stream
  CUstream blocking_ = nullptr;
};

template <typename Call>
CUresult on_stream(CUstream stream, bool of_thread, Use use, const Call& call) {
  const CUstream actual = actual_stream(stream, of_thread);
  if (use == Use::question || !watches()) {
    return call(actual);
  }
  Turn turn;
  CUresult result = turn.begin(actual);
  if (result == CUDA_SUCCESS) {
    result = call(actual);
    turn.end();
  }
  return result;
}

// Runs a copy or a fill without a stream argument in the stream of this thread, and waits for it. `as_is`: the same
// outside of a part.
template <typename Call, typename AsIs>
CUresult in_stream_of_thread(bool waits, const Call& call, const AsIs& as_is) {
  const CUstream own = actual_stream(nullptr, true);
  if (own == CU_STREAM_PER_THREAD) {
    return as_is();
  }
  const CUresult result = on_stream(own, false, Use::work, call);
  return waits && result == CUDA_SUCCESS ? real.cuStreamSynchronize(own) : result;
}

// Runs such a call in the NULL stream, in order with the streams of all threads, where the driver has no variant with a
// stream.
template <typename Call, typename AsIs>
CUresult in_null_stream(const Call& call, const AsIs& as_is) {
  if (actual_stream(nullptr, true) == CU_STREAM_PER_THREAD) {
    return as_is();
  }
  return on_stream(nullptr, false, Use::work, call);
}

// Notes a new stream. A blocking stream of the part takes part in the order from now on.
void add_stream(CUstream stream, unsigned flags);
// Makes the NULL stream wait for a stream that the program destroys.
void drop_stream(CUstream stream);

// Destroys the streams and events that the library made in a part.
void forget_streams(Part& part);

unsigned long stream_count();

}  // namespace gctx::interpose
