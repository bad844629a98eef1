// Streams: made on any context without anything being current, or adopted from others.
#include <algorithm>
#include <functional>
#include <utility>

#include "handles/runtime.hpp"

namespace gctx {
namespace {

const Driver& driver_of(const StreamHandle& stream) { return stream->context()->runtime().driver(); }

// The default streams mean the context that is current at each call; a box of one means its own context.
class StreamScope {
 public:
  explicit StreamScope(const StreamBox& stream) {
    stream.context()->runtime().demand_usable();
    if (stream.is_default()) {
      scope_.emplace(*stream.context());
    }
  }

 private:
  std::optional<CurrentScope> scope_;
};

bool is_capturing(const Driver& driver, CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult answer = driver.cuStreamIsCapturing(handle, &status);
  // What the legacy stream answers while a stream that waits for it is capturing; the capture goes on unharmed.
  if (answer == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return true;
  }
  driver.check(answer, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// 0 if it cannot be known now: on a stream that is capturing, the driver answers this question with an error and
// invalidates the capture (seen on 13.0; the same goes for its flags and for whether it is done).
std::uint64_t ask_id(const Driver& driver, CUstream handle) {
  unsigned long long id = 0;
  if (driver.cuStreamGetId != nullptr && !is_capturing(driver, handle)) {
    GCTX_CALL(driver, cuStreamGetId, handle, &id);
  }
  return id;
}

void demand_no_capture(const StreamBox& stream, const char* what) {
  if (stream_is_capturing(stream)) {
    fail_state(std::string("the stream is capturing a graph, and asking ") + what + " would invalidate the capture");
  }
}

int checked_priority(const ContextHandle& context, std::optional<int> wanted) {
  if (!wanted) {
    return 0;
  }
  const int priority = *wanted;
  const PriorityRange range = context->runtime().priorities(context->device());
  if (priority < range.greatest || priority > range.least) {
    fail_value("stream priority " + std::to_string(priority) + " is out of range: the lowest is " +
               std::to_string(range.least) + ", the highest " + std::to_string(range.greatest));
  }
  return priority;
}

CUcontext context_of_foreign(const Driver& driver, CUstream handle) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (driver.cuStreamGetCtx_v2 != nullptr) {
    GCTX_CALL(driver, cuStreamGetCtx_v2, handle, &context, &green);
  } else {
    if (driver.cuStreamGetGreenCtx != nullptr) {
      GCTX_CALL(driver, cuStreamGetGreenCtx, handle, &green);
    }
    GCTX_CALL(driver, cuStreamGetCtx, handle, &context);
  }
  if (green != nullptr) {
    GCTX_CALL(driver, cuCtxFromGreenCtx, &context, green);
  }
  return context;
}

CUstream make_stream(const ContextBox& context, unsigned flags, int priority) {
  const Driver& driver = context.runtime().driver();
  CUstream handle = nullptr;
  if (context.is_green() && driver.has(Feature::green_stream_create)) {
    GCTX_CALL(driver, cuGreenCtxStreamCreate, &handle, context.green_handle(), flags, priority);
  } else {
    // Driver 12.4 knows no other way; a stream made while a green context is current belongs to it.
    const CurrentScope scope(context);
    GCTX_CALL(driver, cuStreamCreateWithPriority, &handle, flags, priority);
  }
  return handle;
}

void destroy_stream(const Driver& driver, CUstream handle) noexcept {
  const CUresult result = driver.cuStreamDestroy(handle);
  if (result != CUDA_SUCCESS) {
    note_failure(driver.describe(result, "cuStreamDestroy").c_str());
  }
}

}  // namespace

CUstream ContextBox::kept_stream(int priority, std::size_t number) {
  const std::lock_guard lock(kept_mutex_);
  std::vector<CUstream>& streams = kept_[priority];
  while (streams.size() <= number) {
    streams.reserve(streams.size() + 1);  // so that nothing is lost if memory runs out
    streams.push_back(make_stream(*this, CU_STREAM_NON_BLOCKING, priority));
  }
  return streams[number];
}

bool ContextBox::keeps_capture() {
  runtime_.demand_usable();
  const std::lock_guard lock(kept_mutex_);
  return std::any_of(kept_.begin(), kept_.end(), [this](const auto& level) {
    return std::any_of(level.second.begin(), level.second.end(),
                       [this](CUstream stream) { return is_capturing(runtime_.driver(), stream); });
  });
}

void ContextBox::destroy_kept_streams() noexcept {
  const std::lock_guard lock(kept_mutex_);
  for (const auto& [priority, streams] : std::exchange(kept_, {})) {
    for (const CUstream stream : streams) {
      if (runtime_.is_usable()) {
        destroy_stream(runtime_.driver(), stream);
      }
    }
  }
}

StreamBox::~StreamBox() {
  if (handle_ == nullptr) {
    return;
  }
  Runtime& runtime = context()->runtime();
  if (!is_default()) {
    runtime.streams().drop_expired(handle_);
  }
  if (owned_ && runtime.is_usable()) {
    destroy_stream(runtime.driver(), handle_);
  }
}

std::uint64_t StreamBox::id() {
  std::uint64_t id = id_.load(std::memory_order_relaxed);
  if (id == 0) {
    const StreamScope scope(*this);
    id = ask_id(context()->runtime().driver(), handle_);
    id_.store(id, std::memory_order_relaxed);
  }
  return id;
}

StreamHandle create_stream(const ContextHandle& context, std::optional<int> priority, bool nonblocking) {
  ContextUse use(context);
  if (context->is_green() && !nonblocking) {
    fail_value("a stream of a green context is always non-blocking: leave nonblocking=True");
  }
  const unsigned flags = nonblocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  const int level = checked_priority(context, priority);
  auto box = std::make_shared<StreamBox>(std::move(use), true, nonblocking);
  box->take(make_stream(*context, flags, level));
  context->runtime().streams().put(box->handle(), box);
  return box;
}

StreamHandle kept_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number) {
  ContextUse use(context);
  const CUstream handle = context->kept_stream(checked_priority(context, priority), number);
  auto box = std::make_shared<StreamBox>(std::move(use), false, true);
  box->take(handle);
  return context->runtime().streams().settle(handle, std::move(box), std::mem_fn(&StreamBox::is_made_here));
}

StreamHandle adopt_stream(Runtime& runtime, CUstream handle) {
  const Driver& driver = runtime.driver();
  if (StreamBox::is_default_handle(handle)) {
    auto context = current_context(runtime);
    if (!context) {
      fail_state("a default stream belongs to the current context, and nothing is current on this thread");
    }
    int priority = 0;
    if (driver.cuStreamGetPriority(handle, &priority) == CUDA_ERROR_INVALID_HANDLE) {
      // Seen with the per-thread stream while a green context is current (driver 13.0): every use of it is refused.
      fail_state("the driver knows no such default stream in " + context->label() + ": use one of its own streams");
    }
    auto box = std::make_shared<StreamBox>(ContextUse(std::move(context)), false);
    box->take(handle);
    return box;
  }
  const std::uint64_t id = ask_id(driver, handle);
  const auto is_same = [&](StreamBox& box) { return box.is_made_here() || (id != 0 && box.id() == id); };
  if (auto known = runtime.streams().find(handle, is_same)) {
    return known;
  }
  auto context = adopt_context(runtime, context_of_foreign(driver, handle));
  auto made = std::make_shared<StreamBox>(ContextUse(std::move(context)), false);
  made->take(handle);
  made->id();
  return runtime.streams().settle(handle, std::move(made), is_same);
}

int stream_priority(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  int priority = 0;
  GCTX_CALL(driver_of(stream), cuStreamGetPriority, stream->handle(), &priority);
  return priority;
}

bool stream_is_nonblocking(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  if (const auto known = stream->nonblocking()) {
    return *known;
  }
  demand_no_capture(*stream, "for its flags");
  unsigned flags = 0;
  GCTX_CALL(driver_of(stream), cuStreamGetFlags, stream->handle(), &flags);
  return (flags & CU_STREAM_NON_BLOCKING) != 0;
}

bool stream_is_capturing(const StreamBox& stream) {
  const StreamScope scope(stream);
  return is_capturing(stream.context()->runtime().driver(), stream.handle());
}

bool is_same_stream(const StreamHandle& a, const StreamHandle& b) {
  if (a == b) {
    return true;
  }
  if (a->handle() != b->handle() || &a->context()->runtime() != &b->context()->runtime()) {
    return false;
  }
  if (a->is_default()) {
    return a->context() == b->context();
  }
  // One address, two boxes: one may be of a stream that is gone. If neither can be asked, they stand for what is there
  // now.
  const std::uint64_t one = a->id();
  const std::uint64_t other = b->id();
  return one == 0 || other == 0 || one == other;
}

bool stream_is_done(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  demand_no_capture(*stream, "whether it is done");
  const CUresult result = driver_of(stream).cuStreamQuery(stream->handle());
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  driver_of(stream).check(result, "cuStreamQuery");
  return true;
}

void synchronize_stream(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  GCTX_CALL(driver_of(stream), cuStreamSynchronize, stream->handle());
}

void record_event(const StreamHandle& stream, const EventHandle& event) {
  const StreamScope scope(*stream);
  GCTX_CALL(driver_of(stream), cuEventRecord, event->handle(), stream->handle());
}

void wait_event(const StreamHandle& stream, const EventHandle& event) {
  const StreamScope scope(*stream);
  GCTX_CALL(driver_of(stream), cuStreamWaitEvent, stream->handle(), event->handle(), CU_EVENT_WAIT_DEFAULT);
}

}  // namespace gctx
