// Puts work onto streams: in order behind what is there, or into the graph that a stream is capturing.
#include "calls/queueing.hpp"

#include <algorithm>
#include <utility>

#include "calls/grids.hpp"
#include "machine/observer.hpp"

namespace software_driver {
namespace {

// Tells whether the stream and the legacy default stream of its context wait for each other. Recorded
// (`default_streams`): no stream of a green context does, whatever its flags say.
bool is_blocking(const Stream& stream) {
  const Context& context = *stream.context;
  return !context.is_green() && &stream != context.default_stream.get() && (stream.flags & CU_STREAM_NON_BLOCKING) == 0;
}

// Lists the work that a stream waits for: its own, and where it is blocking or the legacy default stream, work of the
// other kind in its context.
std::vector<WorkPtr> predecessors(Machine& machine, const Stream& stream) {
  const Context& context = *stream.context;
  std::vector<WorkPtr> before;
  if (&stream == context.default_stream.get()) {
    before = machine.clock.outstanding(
        [&](const Work& work) { return work.owner.is_blocking && work.owner.context == context.id; });
  } else if (is_blocking(stream)) {
    before.push_back(context.default_stream->last);
  }
  before.push_back(stream.last);
  before.push_back(context.gate);
  return before;
}

// Returns whether a kernel may write memory that the host reads without a call.
bool has_host_memory(const Machine& machine) {
  return std::ranges::any_of(machine.allocations, [](const auto& entry) {
    return entry.second.managed || entry.second.type != CU_MEMORYTYPE_DEVICE;
  });
}

}  // namespace

WorkPtr work_of(Call& c, const GraphNode& node, const Context* context, int device) {
  auto work = std::make_shared<Work>();
  work->device = device;
  if (context != nullptr) {
    work->owner = {context->id, context->root_id, false};
    work->source.context = context->id;
  }
  static_cast<Task&>(*work) = node;
  if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    work->grid = make_grid(c, *context, node.launch);
    work->marks = marks_of(c.machine, *context, node.launch, *work->grid);
    work->shows = work->grid->execution && has_host_memory(c.machine);
  }
  return work;
}

WorkPtr submit(Call& c, Stream& stream, const GraphNode& node, Seen seen) {
  const WorkPtr work = work_of(c, node, stream.context, stream.device);
  work->seen = hides_from_primary(c, *stream.context) ? seen : Seen::by_all;
  work->after = predecessors(c.machine, stream);
  put(c, stream, work);
  return work;
}

void put(Call& c, Stream& stream, const WorkPtr& work) {
  const Context& context = *stream.context;
  work->device = stream.device;
  work->owner = {context.id, context.root_id, is_blocking(stream)};
  work->source.stream = stream.id;
  work->queues = stream.queues;
  work->connection = stream.connection;
  c.machine.clock.submit(work);
  stream.last = work;
}

void may_queue(const Stream& stream) {
  const Context& context = *stream.context;
  if (&stream != context.default_stream.get() || context.is_green()) {
    return;
  }
  for (const Stream* other : context.streams) {
    if (is_blocking(*other) && other->capture && other->capture->is_active()) {
      other->capture->invalidate();
      refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
  }
}

void enqueue(Call& c, Stream& stream, GraphNode node) {
  may_queue(stream);
  if (stream.capture) {
    node.context_handle = stream.context->handle;
    node.context_id = stream.context->id;
    node.after = stream.capture_tail;
    node.capture = stream.capture->id;
    stream.capture_tail = {{&add_node(c.machine, stream.capture->graph(), std::move(node)), {}}};
    return;
  }
  submit(c, stream, node);
}

void finish(Call& c, const std::vector<WorkPtr>& works) {
  for (const WorkPtr& work : works) {
    refuse_if(!c.machine.clock.finish(c.lock, c.thread.time, work), CUDA_ERROR_NOT_PERMITTED);
  }
}

void report_failures(Call& c, const std::vector<WorkPtr>& works) {
  FailurePtr first;
  for (const WorkPtr& work : works) {
    for (const FailurePtr& failure : work ? work->failures : std::vector<FailurePtr>{}) {
      if (!std::exchange(failure->is_reported, true)) {
        say_failure(info(c.function).symbol, *failure);
        first = first ? first : failure;
      }
    }
  }
  refuse_if(first != nullptr, first ? first->code : CUDA_SUCCESS);
}

void wait_for(Call& c, const WorkPtr& work) { return wait_for(c, std::vector{work}); }

void wait_for(Call& c, const std::vector<WorkPtr>& works) {
  finish(c, works);
  report_failures(c, works);
}

void synchronize(Call& c, std::uint64_t context, std::uint64_t stream, const std::vector<WorkPtr>& works) {
  softwareDriverActivity activity{};
  activity.kind = softwareDriverWaitActivity;
  activity.context = context;
  activity.stream = stream;
  activity.started = c.machine.clock.now(c.thread.time);
  activity.name = "";
  finish(c, works);
  activity.ended = c.machine.clock.now(c.thread.time);
  observe(activity);
  report_failures(c, works);
}

bool hides_from_primary(const Call& c, const Context& context) { return context.is_green() && c.version() <= 13000; }

std::vector<WorkPtr> outstanding_of(Machine& machine, const Context& context) {
  return machine.clock.outstanding_of(context.id);
}

void wait_for_device(Call& c, int device) {
  return finish(c, c.machine.clock.outstanding([&](const Work& work) { return work.device == device; }));
}

}  // namespace software_driver
