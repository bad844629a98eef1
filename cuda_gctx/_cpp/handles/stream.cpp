#include "handles/stream.hpp"

#include <memory>
#include <string>

#include "handles/capture.hpp"
#include "handles/captures.hpp"
#include "handles/context_pool.hpp"
#include "handles/event.hpp"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"

namespace gctx {
namespace {

constexpr std::size_t number_of_meeting_stream = ~std::size_t{0};
constexpr std::size_t most_lent = 1025;  // of each priority, that of the partition itself included

const Driver& driver_of(const StreamHandle& stream) { return stream->context()->runtime().driver(); }

// The default streams mean the context that is current at each call; a box of one means its own context. A lent stream
// is no use of its lease, so that each call is one.
class StreamScope {
 public:
  explicit StreamScope(const StreamBox& stream) {
    if (stream.is_lent()) {
      use_.emplace(*stream.context());
    } else {
      stream.context()->demand_there();
    }
    if (stream.is_default()) {
      scope_.emplace(*stream.context());
    }
  }

 private:
  std::optional<CallUse> use_;
  std::optional<CurrentScope> scope_;
};

// 0 if it cannot be known now: on a stream that is capturing, the driver answers this question with an error and
// invalidates the capture (seen on 13.0; the same goes for its flags and for whether it is done).
std::uint64_t ask_id(const Driver& driver, CUstream handle) {
  unsigned long long id = 0;
  if (driver.cuStreamGetId != nullptr && !is_capturing(driver, handle)) {
    GCTX_CALL(driver, cuStreamGetId, handle, &id);
  }
  return id;
}

[[noreturn]] void fail_capturing(const char* what) {
  fail(ErrorKind::capturing,
       std::string("the stream is capturing a graph, and ") + what + " would invalidate the capture: end it first");
}

// Inside a StreamScope.
void demand_no_capture(const StreamHandle& stream, const char* what) {
  if (stream->may_capture() && is_capturing(driver_of(stream), stream->handle())) {
    fail_capturing(what);
  }
}

// What an event of another context needs to be recorded or waited for: that one may be gone.
void demand_live_with(const EventBox& event, const StreamBox& stream) {
  if (event.context() != stream.context()) {
    event.demand_live();
  }
}

void record_on(const StreamBox& stream, CUevent event) {
  const StreamScope scope(stream);
  GCTX_CALL(stream.context()->runtime().driver(), cuEventRecord, event, stream.handle());
}

void let_wait(const StreamBox& stream, CUevent event) {
  const StreamScope scope(stream);
  GCTX_CALL(stream.context()->runtime().driver(), cuStreamWaitEvent, stream.handle(), event, CU_EVENT_WAIT_DEFAULT);
}

int checked_priority(const ContextHandle& context, std::optional<int> wanted) {
  if (!wanted) {
    return 0;
  }
  const int priority = *wanted;
  const PriorityRange range = priorities(context->runtime(), context->device());
  if (priority < range.greatest || priority > range.least) {
    fail_value("stream priority " + std::to_string(priority) + " is out of range: the lowest is " +
               std::to_string(range.least) + ", the highest " + std::to_string(range.greatest));
  }
  return priority;
}

CUcontext context_of_foreign(Runtime& runtime, CUstream handle) {
  const Driver& driver = runtime.driver();
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
    if (const DriverContextHandle ours = context_pool(runtime).find(green)) {
      return ours->handle();
    }
    GCTX_CALL(driver, cuCtxFromGreenCtx, &context, green);
  }
  return context;
}

// Which somebody has to destroy.
CUstream make_raw_stream(const ContextBox& context, StreamKind kind) {
  context.demand_there();
  const Driver& driver = context.runtime().driver();
  const unsigned flags = kind.nonblocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  CUstream handle = nullptr;
  if (context.is_green() && driver.has(Feature::green_stream_create)) {
    GCTX_CALL(driver, cuGreenCtxStreamCreate, &handle, context.green_handle(), flags, kind.priority);
  } else {
    // Driver 12.4 knows no other way; a stream made while a green context is current belongs to it.
    CurrentScope scope(context);
    GCTX_CALL(driver, cuStreamCreateWithPriority, &handle, flags, kind.priority);
    try {
      scope.leave();
    } catch (...) {
      driver.note(driver.cuStreamDestroy(handle), "cuStreamDestroy");
      throw;
    }
  }
  return handle;
}

StreamHandle adopt_ordinary_stream(Runtime& runtime, CUstream handle) {
  const Driver& driver = runtime.driver();
  // One of our own is known by its handle alone, and nothing is asked.
  std::optional<std::uint64_t> id;
  const auto is_same = [&](StreamBox& box) {
    if (box.is_made_here()) {
      return box.context()->is_there() && !box.is_over();
    }
    id = id ? id : ask_id(driver, handle);
    return *id != 0 && box.id() == *id;
  };
  if (auto known = StreamBox::registry.find(runtime, handle, is_same)) {
    return known;
  }
  auto context = adopt_context(runtime, context_of_foreign(runtime, handle));
  auto made = std::make_shared<StreamBox>(ContextUse(std::move(context)), StreamBox::Kind::adopted);
  made->take(handle);
  made->id();
  return StreamBox::registry.find(runtime, handle, is_same, std::move(made));
}

}  // namespace

void StreamBox::take(CUstream handle) noexcept {
  handle_ = handle;
  if (is_owned()) {
    context()->streams().add(*this);
  }
}

StreamBox::~StreamBox() {
  if (handle_ == nullptr || is_forked()) {
    return;
  }
  registry.drop(*this);
  if (is_lent()) {
    return;
  }
  const auto end = [context = context(), events = events_] {
    if (context->is_there()) {
      events->destroy(context->runtime().driver());
    }
  };
  runtime().end_now_or_later(end);
  if (!is_owned()) {
    return;
  }
  context()->streams().remove(*this);
  if (is_shown_.load(std::memory_order_relaxed) || is_needed_by_capture()) {
    const bool is_free = is_closed_.load(std::memory_order_relaxed) || context()->kind() != ContextKind::green;
    context()->streams().expose();
    context()->streams().keep_spare(handle_, *made_as_, is_free);
    return;
  }
  destroy(handle_, &DriverTable::cuStreamDestroy, "cuStreamDestroy");
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
    fail_value("a stream of a green context must be non-blocking: keep nonblocking=True");
  }
  const StreamKind kind{nonblocking, checked_priority(context, priority)};
  auto box = std::make_shared<StreamBox>(std::move(use), StreamBox::Kind::owned, kind);
  context->demand_there();
  const CUstream spare = context->streams().take_spare(context->runtime().driver(), kind);
  box->take(spare != nullptr ? spare : make_raw_stream(*context, kind));
  if (spare != nullptr) {
    box->show();  // other code may still have its raw value
  }
  StreamBox::registry.put(*box);
  return box;
}

EventHandle create_stream_event(const StreamHandle& stream, unsigned flags) {
  return create_event(stream->context(), flags);
}

StreamHandle context_stream(const ContextHandle& context, std::optional<int> priority, std::size_t number) {
  const CallUse use(*context);
  const StreamKind kind{true, checked_priority(context, priority)};
  if (number >= most_lent) {
    fail_value("a context lends " + std::to_string(most_lent) + " streams of each priority, and not number " +
               std::to_string(number + 1) + ": create more with create_stream()");
  }
  CUstream handle = nullptr;
  try {
    handle = context->streams().lend(kind, number, [&] { return make_raw_stream(*context, kind); });
  } catch (Error& error) {
    if (context->is_partition()) {
      name_partition(error, context->name(), context->sms().given->sm_count);
    }
    throw;
  }
  auto box = std::make_shared<StreamBox>(context, kind, context->streams().events_of(handle));
  box->take(handle);
  StreamBox::registry.put(*box);
  return box;
}

CUstream meeting_stream(const ContextHandle& context) {
  const StreamKind kind{true, 0};
  return context->streams().lend(kind, number_of_meeting_stream, [&] { return make_raw_stream(*context, kind); });
}

StreamHandle adopt_stream(Runtime& runtime, CUstream handle) {
  const Driver& driver = runtime.driver();
  if (StreamBox::is_default_handle(handle)) {
    auto context = current_context(runtime);
    if (!context) {
      fail_state("a default stream belongs to the current context, and no context is current on this thread");
    }
    int priority = 0;
    if (driver.cuStreamGetPriority(handle, &priority) == CUDA_ERROR_INVALID_HANDLE) {
      // Seen with the per-thread stream while a green context is current (driver 13.0): every use of it is refused.
      fail_state("the driver has no such default stream in " + context->label() + ": use one of its own streams");
    }
    auto box = std::make_shared<StreamBox>(ContextUse(std::move(context)), StreamBox::Kind::adopted);
    box->take(handle);
    return box;
  }
  try {
    return adopt_ordinary_stream(runtime, handle);
  } catch (Error& error) {
    name_dead_handle(error, "CUstream", handle);
    throw;
  }
}

bool StreamBox::is_needed_by_capture() const noexcept {
  const Runtime& runtime = context()->runtime();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return is_owned() && may_capture() && runtime.is_usable() && context()->is_there() &&
         runtime.driver().cuStreamIsCapturing(handle_, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void demand_closable(const StreamHandle& stream) {
  if (stream->is_needed_by_capture()) {
    fail_capturing("closing it");
  }
}

int stream_priority(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  int priority = 0;
  GCTX_CALL(driver_of(stream), cuStreamGetPriority, stream->handle(), &priority);
  return priority;
}

bool stream_is_nonblocking(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  const CaptureGate::Pass pass(*stream->context());
  demand_no_capture(stream, "asking for its flags");
  unsigned flags = 0;
  GCTX_CALL(driver_of(stream), cuStreamGetFlags, stream->handle(), &flags);
  return (flags & CU_STREAM_NON_BLOCKING) != 0;
}

bool stream_is_capturing(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  return is_capturing(driver_of(stream), stream->handle());
}

bool is_same_stream(const StreamHandle& a, const StreamHandle& b) {
  if (a == b) {
    return true;
  }
  if (a->handle() != b->handle() || &a->context()->runtime() != &b->context()->runtime()) {
    return false;
  }
  if (a->is_default() || (a->is_lent() && b->is_lent())) {  // a lent stream lives as long as its context
    return a->context()->is_same_context(*b->context());
  }
  // One address, two boxes: one may be of a stream that is gone. If neither can be asked, they stand for what is there
  // now.
  const std::uint64_t one = a->id();
  const std::uint64_t other = b->id();
  return one == 0 || other == 0 || one == other;
}

bool stream_is_done(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  const CaptureGate::Pass pass(*stream->context());
  demand_no_capture(stream, "asking whether it is done");
  const Driver& driver = driver_of(stream);
  return driver.check_done(driver.cuStreamQuery(stream->handle()), "cuStreamQuery");
}

void synchronize_stream(const StreamHandle& stream) {
  const StreamScope scope(*stream);
  const EventHandle event = stream->is_default() ? nullptr : create_event(stream->context(), CU_EVENT_DISABLE_TIMING);
  {
    const CaptureGate::Pass pass(*stream->context());
    demand_no_capture(stream, "waiting for it");
    if (event) {
      GCTX_CALL(driver_of(stream), cuEventRecord, event->handle(), stream->handle());
    }
  }
  // A capture can begin on the stream from here on, so that the host waits for the event.
  if (event) {
    GCTX_CALL(driver_of(stream), cuEventSynchronize, event->handle());
  } else {
    GCTX_CALL(driver_of(stream), cuStreamSynchronize, stream->handle());
  }
}

void record_event(const StreamHandle& stream, const EventHandle& event) {
  demand_live_with(*event, *stream);
  if (stream->may_capture()) {
    event->expose();
  }
  record_on(*stream, event->handle());
}

void wait_event(const StreamHandle& stream, const EventHandle& event) {
  demand_live_with(*event, *stream);
  if (event->may_capture()) {
    stream->expose();
  }
  let_wait(*stream, event->handle());
}

void wait_stream(const StreamHandle& stream, const StreamHandle& other) {
  const auto wait = [&](CUevent event) {
    record_on(*other, event);
    if (other->may_capture()) {
      stream->expose();
    }
    let_wait(*stream, event);
  };
  const ReusableEvent<CUevent>::Use reused(other->events().waited_for);
  if (reused.is_taken()) [[likely]] {
    wait(reused.event([&] { return make_raw_event(*other->context(), CU_EVENT_DISABLE_TIMING); }));
  } else {
    wait(create_event(other->context(), CU_EVENT_DISABLE_TIMING)->handle());
  }
}

void show_to_device(const StreamHandle& stream) {
  if (!stream->context()->is_green() || (stream->may_capture() && is_capturing(driver_of(stream), stream->handle()))) {
    return;
  }
  const ReusableEvent<CUevent>::Use reused(stream->events().shown);
  if (reused.is_taken()) [[likely]] {  // else another call shows the same work
    record_on(*stream, reused.event([&] { return make_raw_event(*stream->context(), SHOWN_EVENT); }));
  }
}

}  // namespace gctx
