#include "default_streams.hpp"

#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "per_process.hpp"
#include "verification.hpp"

namespace gctx::interpose {

std::atomic<bool> watching{verifies()};

namespace {

// Set while there is a stream that the NULL stream is ordered with.
std::atomic<bool> ordering{false};

// A blocking stream, or the stream of a thread.
struct Member {
  Part* part = nullptr;
  CUevent event = nullptr;
  std::uint64_t seen = 0;  // the work of the NULL stream that the stream waits for
  bool has_work = false;   // work that the NULL stream does not wait for yet
  bool is_own = false;     // the library made the stream
};

struct Order {
  std::mutex mutex;
  std::unordered_map<CUstream, Member> members;
  std::unordered_map<const Part*, std::uint64_t> null_work;  // calls in the NULL stream of each part
  std::unordered_map<const Part*, CUevent> null_events;
  std::unordered_map<const Part*, std::vector<CUstream>> idle;  // streams of threads that have ended
  std::atomic<unsigned long> streams{0};                        // that the program created
};
const PerProcess<Order> the_order;
Order& order() { return *the_order; }

// The streams of this thread, for the threads after it.
struct ThreadStreams {
  std::unordered_map<Part*, CUstream> streams;
  ~ThreadStreams() {
    const std::lock_guard lock(order().mutex);
    for (const auto& [part, stream] : streams) {
      // A reset of the device may have ended the stream.
      if (order().members.count(stream) != 0) {
        order().idle[part].push_back(stream);
      }
    }
  }
};
thread_local ThreadStreams thread_streams;

bool is_null(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

bool is_capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Makes the context of a part current for calls about its NULL stream.
class InPart {
 public:
  explicit InPart(const Part& part) {
    const CUcontext context = part.context.load();
    CUcontext current = nullptr;
    pushed_ = real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context &&
              real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  }
  InPart(const InPart&) = delete;
  InPart& operator=(const InPart&) = delete;
  ~InPart() {
    CUcontext popped = nullptr;
    if (pushed_) {
      real.cuCtxPopCurrent_v2(&popped);
    }
  }

 private:
  bool pushed_ = false;
};

CUresult make_event(const Part& part, CUevent& event) {
  if (event != nullptr) {
    return CUDA_SUCCESS;
  }
  const InPart scope(part);
  return real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
}

// Makes a later stream wait for an earlier one.
CUresult wait_for(const Part& part, CUstream earlier, CUstream later, CUevent& event) {
  CUresult result = make_event(part, event);
  const InPart scope(part);
  if (result == CUDA_SUCCESS) {
    result = real.cuEventRecord(event, earlier);
  }
  return result == CUDA_SUCCESS ? real.cuStreamWaitEvent(later, event, 0) : result;
}

void add_member(CUstream stream, Part* part, bool is_own) {
  Order& known = order();
  Member member;
  member.part = part;
  member.is_own = is_own;
  known.members[stream] = member;
  // The NULL stream may have work from before the first member.
  ++known.null_work[part];
  ordering.store(true);
  watching.store(true);
}

}  // namespace

CUstream actual_stream(CUstream stream, bool of_thread) {
  if (stream != CU_STREAM_PER_THREAD && !(of_thread && stream == nullptr)) {
    return stream;
  }
  Part* const part = current_part();
  if (part == nullptr) {
    return CU_STREAM_PER_THREAD;
  }
  CUstream& own = thread_streams.streams[part];
  const std::lock_guard lock(order().mutex);
  if (own != nullptr && order().members.count(own) != 0) {
    return own;
  }
  auto& idle = order().idle[part];
  if (!idle.empty()) {
    own = idle.back();
    idle.pop_back();
    return own;
  }
  own = nullptr;
  if (real.cuStreamCreate(&own, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return CU_STREAM_PER_THREAD;  // the driver refuses it with an error
  }
  add_member(own, part, true);
  return own;
}

CUresult Turn::begin(CUstream stream) {
  if (verifies()) {
    verify_stream(stream);
  }
  if (!ordering.load(std::memory_order_relaxed)) {
    return CUDA_SUCCESS;
  }
  Order& known = order();
  const std::lock_guard lock(known.mutex);
  if (is_null(stream)) {
    part_ = current_part();
    if (part_ == nullptr) {
      return CUDA_SUCCESS;
    }
    for (auto& [other, member] : known.members) {
      if (member.part == part_ && member.has_work && !is_capturing(other)) {
        if (const CUresult result = wait_for(*part_, other, nullptr, member.event); result != CUDA_SUCCESS) {
          return result;
        }
        member.has_work = false;
      }
    }
    return CUDA_SUCCESS;
  }
  const auto found = known.members.find(stream);
  if (found == known.members.end()) {
    return CUDA_SUCCESS;
  }
  blocking_ = stream;
  Member& member = found->second;
  const std::uint64_t work = known.null_work[member.part];
  if (member.seen != work && !is_capturing(stream)) {
    if (const CUresult result = wait_for(*member.part, nullptr, stream, known.null_events[member.part]);
        result != CUDA_SUCCESS) {
      return result;
    }
    member.seen = work;
  }
  return CUDA_SUCCESS;
}

// Notes the work after the call: the program orders calls of other threads behind the end of this call.
void Turn::end() {
  if (part_ == nullptr && blocking_ == nullptr) {
    return;
  }
  Order& known = order();
  const std::lock_guard lock(known.mutex);
  if (part_ != nullptr) {
    ++known.null_work[part_];
  } else if (const auto found = known.members.find(blocking_); found != known.members.end()) {
    found->second.has_work = true;
  }
}

void add_stream(CUstream stream, unsigned flags) {
  ++order().streams;
  if ((flags & CU_STREAM_NON_BLOCKING) != 0) {
    return;
  }
  if (Part* const part = current_part(); part != nullptr) {
    const std::lock_guard lock(order().mutex);
    add_member(stream, part, false);
  }
}

void drop_stream(CUstream stream) {
  if (!watches()) {
    return;
  }
  forget_verified_streams();
  Order& known = order();
  const std::lock_guard lock(known.mutex);
  const auto found = known.members.find(stream);
  if (found == known.members.end()) {
    return;
  }
  Member& member = found->second;
  if (member.has_work && !is_capturing(stream)) {
    wait_for(*member.part, stream, nullptr, member.event);
    ++known.null_work[member.part];
  }
  if (member.event != nullptr) {
    real.cuEventDestroy_v2(member.event);
  }
  known.members.erase(found);
}

void forget_streams(Part& part) {
  Order& known = order();
  const std::lock_guard lock(known.mutex);
  for (auto it = known.members.begin(); it != known.members.end();) {
    if (it->second.part != &part) {
      ++it;
      continue;
    }
    if (it->second.event != nullptr) {
      real.cuEventDestroy_v2(it->second.event);
    }
    if (it->second.is_own) {
      real.cuStreamDestroy_v2(it->first);
    }
    it = known.members.erase(it);
  }
  if (const auto event = known.null_events.find(&part); event != known.null_events.end()) {
    if (event->second != nullptr) {
      real.cuEventDestroy_v2(event->second);
    }
    known.null_events.erase(event);
  }
  known.idle.erase(&part);
}

unsigned long stream_count() { return order().streams.load(); }

}  // namespace gctx::interpose

using namespace gctx::interpose;

INTERPOSE_API CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  const CUresult result = real.cuStreamCreate(phStream, Flags);
  if (result == CUDA_SUCCESS) {
    add_stream(*phStream, Flags);
  }
  return result;
}

INTERPOSE_API CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  const CUresult result = real.cuStreamCreateWithPriority(phStream, flags, priority);
  if (result == CUDA_SUCCESS) {
    add_stream(*phStream, flags);
  }
  return result;
}

INTERPOSE_API CUresult cuStreamDestroy(CUstream hStream) {
  drop_stream(hStream);
  return real.cuStreamDestroy(hStream);
}

INTERPOSE_API CUresult cuStreamDestroy_v2(CUstream hStream) {
  drop_stream(hStream);
  return real.cuStreamDestroy_v2(hStream);
}

INTERPOSE_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                                         CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  if (instantiateParams == nullptr) {
    return real.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
  }
  const CUstream given = instantiateParams->hUploadStream;
  instantiateParams->hUploadStream = actual_stream(given, true);
  const CUresult result = real.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
  instantiateParams->hUploadStream = given;
  return result;
}

#include "stream_functions.inc"
