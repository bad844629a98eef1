// Events: of a stream, and of a whole context.
#include <algorithm>

#include "calls/queueing.hpp"

namespace gctx::sim {
namespace {

template <Fn function, class Body>
CUresult with_event(CUevent handle, Body&& body) noexcept {
  return call_with<function>([&](Call& c, CUresult& result) { return find_event(c, handle, result); }, body);
}

void forget_record(Event& event) {
  event.record.reset();
  event.capture.reset();
  event.captured.clear();
}

CUresult record(Call& c, Event& event, Stream& stream) {
  if (event.root_id != stream.context->root_id) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  forget_record(event);
  if (stream.capture) {
    if (!stream.capture->is_active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    event.capture = stream.capture;
    event.captured = stream.capture_tail;
    return CUDA_SUCCESS;
  }
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  event.record = submit(c, stream, node);
  return CUDA_SUCCESS;
}

CUresult wait(Call& c, Stream& stream, Event& event) {
  if (event.capture) {
    // Waiting for an event of a capture draws the stream into it. Recorded: when the capture is over, the event is an
    // invalid value. What follows for a default stream, which cannot be captured, is assumed.
    if (event.capture->state() == Capture::State::over) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!event.capture->is_active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream.capture && stream.capture != event.capture) {
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (&stream == stream.context->default_stream.get()) {
      event.capture->invalidate();
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    Capture::join(event.capture, stream);
    for (const Edge& edge : event.captured) {
      auto& tail = stream.capture_tail;
      if (std::find(tail.begin(), tail.end(), edge) == tail.end()) {
        tail.push_back(edge);
      }
    }
    return CUDA_SUCCESS;
  }
  if (stream.capture) {
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!event.record || event.record->done) {
    return CUDA_SUCCESS;
  }
  auto work = std::make_shared<Work>();
  work->after = {stream.last, stream.context->gate, event.record};
  put(c, stream, work);
  return CUDA_SUCCESS;
}

// The context, and for a primary context its green contexts too.
std::vector<Context*> with_green_contexts(Machine& machine, Context& context) {
  std::vector<Context*> all{&context};
  if (context.kind == ContextKind::primary) {
    machine.contexts.each([&](Context& other) {
      if (other.kind == ContextKind::green && other.root_id == context.id) {
        all.push_back(&other);
      }
    });
  }
  return all;
}

// Whole-context calls and captures exclude each other: the captures are invalidated. Recorded: those of a primary
// context do not mind the captures of its green contexts.
bool is_capturing(const Context& context) {
  bool any = false;
  for (const Stream* stream : context.streams) {
    if (!stream->capture) {
      continue;
    }
    stream->capture->invalidate();
    any = true;
  }
  return any;
}

CUresult record_context(Call& c, Context& context, Event& event) {
  if (event.root_id != context.root_id) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (is_capturing(context)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  auto work = std::make_shared<Work>();
  work->device = context.device;
  work->owner = {context.id, context.root_id, false};
  work->after = outstanding_of(c.machine, context);
  c.machine.clock.submit(work);
  forget_record(event);
  event.record = work;
  return CUDA_SUCCESS;
}

CUresult wait_context(Call& c, Context& context, Event& event) {
  if (is_capturing(context)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (event.capture) {
    event.capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!event.record || event.record->done) {
    return CUDA_SUCCESS;
  }
  for (Context* one : with_green_contexts(c.machine, context)) {
    auto gate = std::make_shared<Work>();
    gate->device = one->device;
    gate->owner = {one->id, one->root_id, false};
    gate->after = {one->gate, event.record};
    c.machine.clock.submit(gate);
    one->gate = gate;
  }
  return CUDA_SUCCESS;
}

CUresult elapsed(Call& c, CUevent first, CUevent last, float* milliseconds) {
  CUresult result = CUDA_SUCCESS;
  const Event* start = find_event(c, first, result);
  const Event* end = start == nullptr ? nullptr : find_event(c, last, result);
  if (end == nullptr) {
    return result;
  }
  if (milliseconds == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (start->device != end->device || !start->record || !end->record) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->record->done || !end->record->done) {
    c.machine.clock.pass(polling_step_ns);
    c.machine.clock.catch_up(c.lock);
    // Looked up again: the lock may have been open meanwhile.
    start = find_event(c, first, result);
    end = start == nullptr ? nullptr : find_event(c, last, result);
    if (end == nullptr) {
      return result;
    }
    if (!start->record || !end->record) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!start->record->done || !end->record->done) {
      return CUDA_ERROR_NOT_READY;
    }
  }
  const auto from = static_cast<double>(start->record->ended);
  const auto to = static_cast<double>(end->record->ended);
  *milliseconds = static_cast<float>((to - from) / 1e6);
  return CUDA_SUCCESS;
}

template <Fn function>
CUresult record_on(CUevent handle, CUstream stream_handle, unsigned flags) {
  return call<function>([&](Call& c) {
    if (flags > CU_EVENT_RECORD_EXTERNAL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    Event* event = find_event(c, handle, result);
    Stream* stream = event == nullptr ? nullptr : find_stream(c, stream_handle, result);
    return stream == nullptr ? result : record(c, *event, *stream);
  });
}

template <Fn function, class Find, class Do>
CUresult on_whole_context(CUevent handle, Find&& find, Do&& action) {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = find(c, result);
    Event* event = context == nullptr ? nullptr : find_event(c, handle, result);
    return event == nullptr ? result : action(c, *context, *event);
  });
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuEventCreate(CUevent* out, unsigned flags) {
  return call<Fn::cuEventCreate>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = current_context(c, result);
    if (context == nullptr) {
      return result;
    }
    // Events between processes are not modelled.
    // Seen on an H200: only events without times go to other processes, which is not modelled.
    if ((flags & CU_EVENT_INTERPROCESS) != 0) {
      return (flags & CU_EVENT_DISABLE_TIMING) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    if (out == nullptr || flags > (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_unique<Event>();
    c.machine.made(*made);
    made->device = context->device;
    made->context = context;
    made->root_id = context->root_id;
    made->flags = flags;
    Event& event = c.machine.events.add(std::move(made));
    context->events.insert(&event);
    return give(out, as_handle<CUevent>(event));
  });
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
  return with_event<Fn::cuEventDestroy_v2>(handle, [&](Call& c, Event& event) {
    if (event.context != nullptr) {
      event.context->events.erase(&event);
    }
    c.machine.events.remove(event);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return record_on<Fn::cuEventRecord>(event, stream, 0);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return record_on<Fn::cuEventRecordWithFlags>(event, stream, flags);
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
  return with_event<Fn::cuEventQuery>(handle, [&](Call& c, Event& event) {
    if (event.capture) {
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    const WorkPtr work = event.record;
    if (!work || work->done) {
      return CUDA_SUCCESS;
    }
    c.machine.clock.pass(polling_step_ns);
    c.machine.clock.catch_up(c.lock);
    return work->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  return with_event<Fn::cuEventSynchronize>(handle, [&](Call& c, Event& event) {
    return event.capture ? CUDA_ERROR_CAPTURED_EVENT : wait_for(c, event.record);
  });
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call<Fn::cuEventElapsedTime>([&](Call& c) { return elapsed(c, start, end, milliseconds); });
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return call<Fn::cuEventElapsedTime_v2>([&](Call& c) { return elapsed(c, start, end, milliseconds); });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  return call<Fn::cuStreamWaitEvent>([&](Call& c) {
    if (flags > CU_EVENT_WAIT_EXTERNAL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    Stream* stream = find_stream(c, stream_handle, result);
    Event* event = stream == nullptr ? nullptr : find_event(c, handle, result);
    return event == nullptr ? result : wait(c, *stream, *event);
  });
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext handle, CUevent event) {
  return on_whole_context<Fn::cuCtxRecordEvent>(
      event, [&](Call& c, CUresult& result) { return find_context(c, handle, result); }, record_context);
}

CUresult CUDAAPI cuCtxWaitEvent(CUcontext handle, CUevent event) {
  return on_whole_context<Fn::cuCtxWaitEvent>(
      event, [&](Call& c, CUresult& result) { return find_context(c, handle, result); }, wait_context);
}

CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  return on_whole_context<Fn::cuGreenCtxRecordEvent>(
      event, [&](Call& c, CUresult& result) { return find_green(c, handle, result); }, record_context);
}

CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  return on_whole_context<Fn::cuGreenCtxWaitEvent>(
      event, [&](Call& c, CUresult& result) { return find_green(c, handle, result); }, wait_context);
}

}  // extern "C"
