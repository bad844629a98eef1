// Events: of a stream, and of a whole context.
#include "calls/events.hpp"

#include <algorithm>

#include "calls/queueing.hpp"

namespace software_driver {
namespace {

void forget_record(Event& event) {
  event.record.reset();
  event.capture.reset();
  event.captured.clear();
}

// A node of the graph that the stream is capturing: of an event that others record, or wait for.
void capture_external(Call& c, const Event& event, Stream& stream, CUgraphNodeType type) {
  refuse_if(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);  // recorded
  GraphNode node;
  node.type = type;
  node.parameters.eventRecord.event = as_handle<CUevent>(event);
  return enqueue(c, stream, std::move(node));
}

void record_event(Call& c, Event& event, Stream& stream, unsigned flags) {
  if (flags == CU_EVENT_RECORD_EXTERNAL) {
    return capture_external(c, event, stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  }
  refuse_if(event.root_id != stream.context->root_id, CUDA_ERROR_INVALID_HANDLE);
  may_queue(stream);
  forget_record(event);
  if (stream.capture) {
    event.capture = stream.capture;
    event.captured = stream.capture_tail;
    return;
  }
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  node.effect = mark_recorded(event);
  event.record = submit(c, stream, node, is_silent(event) ? Seen::by_none : Seen::by_all);
}

void wait_for_event(Call& c, Stream& stream, Event& event, unsigned flags) {
  if (flags == CU_EVENT_WAIT_EXTERNAL) {
    return capture_external(c, event, stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  }
  if (event.capture) {
    // Recorded: when the capture is over, the event is an invalid value.
    refuse_if(event.capture->state() == Capture::State::over, CUDA_ERROR_INVALID_VALUE);
    refuse_if(!event.capture->is_active(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    refuse_if(stream.capture && stream.capture != event.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    Capture::join(event.capture, stream);
    return extend(stream.capture_tail, event.captured);
  }
  const WorkPtr record = awaited(c, event);
  if (!record || (record->done && record->failures.empty())) {
    return;
  }
  auto work = std::make_shared<Work>();
  work->after = {stream.last, stream.context->gate, record};
  put(c, stream, work);
}

void record_context(Call& c, Context& context, Event& event) {
  refuse_if(event.root_id != context.root_id, CUDA_ERROR_INVALID_HANDLE);
  auto work = std::make_shared<Work>();
  work->device = context.device;
  work->owner = {context.id, context.root_id, false};
  work->after = outstanding_of(c.machine, context);
  work->gathers = true;
  std::erase_if(work->after,
                [&](const WorkPtr& one) { return one->seen == Seen::by_waits && one->owner.context != context.id; });
  work->seen = is_silent(event) && hides_from_primary(c, context) ? Seen::by_none : Seen::by_all;
  work->effect = mark_recorded(event);
  c.machine.clock.submit(work);
  forget_record(event);
  event.record = work;
}

void wait_context(Call& c, Context& context, Event& event) {
  const WorkPtr record = awaited(c, event);
  if (!record || (record->done && record->failures.empty())) {
    return;
  }
  const auto hold_up = [&](Context& one) {
    auto gate = std::make_shared<Work>();
    gate->device = one.device;
    gate->owner = {one.id, one.root_id, false};
    gate->after = {one.gate, record};
    c.machine.clock.submit(gate);
    one.gate = gate;
  };
  hold_up(context);
  // A primary context's green contexts too.
  c.machine.contexts.each([&](Context& other) {
    if (context.kind == ContextKind::primary && other.is_green() && other.root_id == context.id) {
      hold_up(other);
    }
  });
}

void tell_elapsed(Call& c, float* milliseconds, CUevent first, CUevent last) {
  const Event* start = &find_event(c, first);
  const Event* end = &find_event(c, last);
  refuse_if(((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0, CUDA_ERROR_INVALID_HANDLE);
  refuse_if(start->device != end->device || !start->record || !end->record, CUDA_ERROR_INVALID_HANDLE);
  if (!start->record->done || !end->record->done) {
    c.machine.clock.catch_up(c.lock, c.thread.time);
    // Looked up again: the lock may have been open meanwhile.
    start = &find_event(c, first);
    end = &find_event(c, last);
    refuse_if(!start->record || !end->record, CUDA_ERROR_INVALID_HANDLE);
    refuse_if(!start->record->done || !end->record->done, CUDA_ERROR_NOT_READY);
  }
  const std::string* const guessed = guess_between(start->record->guesses, end->record->guesses);
  refuse_if(guessed != nullptr && c.machine.unknown.refuses_time(*guessed, info(c.function).symbol),
            CUDA_ERROR_NOT_SUPPORTED);
  const auto from = static_cast<double>(start->record->ended);
  const auto to = static_cast<double>(end->record->ended);
  *milliseconds = static_cast<float>((to - from) / 1e6);
}

}  // namespace

Event& add_event(Call& c, unsigned flags) {
  Context& context = *c.current;
  Event& event = c.add(c.machine.events);
  event.device = context.device;
  event.context = &context;
  event.root_id = context.root_id;
  event.flags = flags;
  context.events.insert(&event);
  return event;
}

bool is_silent(const Event& event) {
  return (event.flags & (CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)) == CU_EVENT_DISABLE_TIMING;
}

Effect mark_recorded(Event& event) {
  if (!event.shared) {
    return nullptr;
  }
  return [shared = event.shared, number = ++event.shared->counts->recorded] {
    auto& done = shared->counts->done;
    for (std::uint64_t before = done; before < number && !done.compare_exchange_weak(before, number);) {
    }
    return Rest{};
  };
}

WorkPtr awaited(Call& c, const Event& event) {
  const auto shared = event.shared;
  const std::uint64_t number = shared ? shared->counts->recorded.load() : 0;
  if (!shared || shared->is_done(number)) {
    return shared ? nullptr : event.record;
  }
  auto work = std::make_shared<Work>();
  work->device = event.device;
  work->until = [shared, number] { return shared->is_done(number); };
  c.machine.clock.submit(work);
  return work;
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuEventCreate, Call& c, CUevent* out, unsigned flags) {
  Event& event = add_event(c, flags);
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    event.shared = std::make_shared<SharedRecord>(std::make_shared<File>(page_bytes));
  }
  give(out, event);
}

SOFTWARE_DRIVER_CALL(cuEventDestroy_v2, Call& c, Event& event) {
  if (event.context != nullptr) {
    event.context->events.erase(&event);
  }
  c.machine.events.remove(event);
}

SOFTWARE_DRIVER_QUERY(cuEventQuery, Call& c, Event& event) {
  const WorkPtr work = event.record;
  const auto shared = event.shared;
  const auto is_done = [&] { return shared ? shared->is_done(shared->counts->recorded) : !work || work->done; };
  if (!is_done()) {
    c.machine.clock.poll(c.lock, c.thread.time, work);
  }
  refuse_if(!is_done(), CUDA_ERROR_NOT_READY);
  report_failures(c, {work});
  return CUDA_SUCCESS;
}

SOFTWARE_DRIVER_CALL(cuEventSynchronize, Call& c, Event& event) {
  return synchronize(c, event.root_id, 0, {awaited(c, event)});
}

SOFTWARE_DRIVER_ROW(cuEventRecord, record_event)
SOFTWARE_DRIVER_ROW(cuEventRecordWithFlags, record_event)
SOFTWARE_DRIVER_ROW(cuEventElapsedTime, tell_elapsed)
SOFTWARE_DRIVER_ROW(cuEventElapsedTime_v2, tell_elapsed)
SOFTWARE_DRIVER_ROW(cuStreamWaitEvent, wait_for_event)
SOFTWARE_DRIVER_ROW(cuCtxRecordEvent, record_context)
SOFTWARE_DRIVER_ROW(cuGreenCtxRecordEvent, record_context)
SOFTWARE_DRIVER_ROW(cuCtxWaitEvent, wait_context)
SOFTWARE_DRIVER_ROW(cuGreenCtxWaitEvent, wait_context)
