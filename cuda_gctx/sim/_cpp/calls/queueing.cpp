// Puts work onto streams: in order behind what is there, or into the graph that a stream is capturing.
#include "calls/queueing.hpp"

#include "calls/grids.hpp"

namespace gctx::sim {
namespace {

// The order that CUDA gives a context's streams: what is on a stream runs in sequence, and the legacy default stream
// and the blocking streams wait for each other.
std::vector<WorkPtr> predecessors(const Stream& stream) {
  const Context& context = *stream.context;
  std::vector<WorkPtr> before{stream.last, context.gate};
  if (&stream == context.default_stream.get()) {
    for (const Stream* other : context.streams) {
      if ((other->flags & CU_STREAM_NON_BLOCKING) == 0) {
        before.push_back(other->last);
      }
    }
    for (const auto& [thread, other] : context.thread_streams) {
      before.push_back(other->last);
    }
  } else if ((stream.flags & CU_STREAM_NON_BLOCKING) == 0) {
    before.push_back(context.default_stream->last);
  }
  return before;
}

}  // namespace

WorkPtr work_of(Call& c, const GraphNode& node, const Context* context, int device) {
  auto work = std::make_shared<Work>();
  work->device = device;
  work->duration = node.duration;
  work->engine = node.engine;
  work->bytes = node.bytes;
  work->effect = node.effect;
  work->host = node.host;
  if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    work->grid = make_grid(c.machine, *context, node.launch);
  }
  return work;
}

WorkPtr submit(Call& c, Stream& stream, const GraphNode& node) {
  const WorkPtr work = work_of(c, node, stream.context, stream.device);
  work->after = predecessors(stream);
  work->queues = stream.queues;
  work->connection = stream.connection;
  c.machine.clock.submit(work);
  stream.last = work;
  return work;
}

CUresult enqueue(Call& c, Stream& stream, GraphNode node) {
  if (stream.capture) {
    if (!stream.capture->is_active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    node.context_handle = stream.context->handle;
    node.context_id = stream.context->id;
    node.after = stream.capture_tail;
    node.capture = stream.capture->id();
    stream.capture_tail = {{&add_node(c.machine, stream.capture->graph(), std::move(node)), {}}};
    return CUDA_SUCCESS;
  }
  submit(c, stream, node);
  return CUDA_SUCCESS;
}

CUresult wait_for(Call& c, const WorkPtr& work) {
  return c.machine.clock.finish(c.lock, work) ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

CUresult wait_for_stream(Call& c, Stream& stream) {
  if (stream.capture) {
    stream.capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  // Recorded: waiting for another stream of a context that is capturing disturbs the capture.
  if (disturbs_capture(c, stream.context)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return wait_for(c, stream.last);
}

CUresult wait_for_device(Call& c, int device) {
  std::vector<WorkPtr> pending;
  c.machine.contexts.each([&](const Context& context) {
    if (context.device != device) {
      return;
    }
    pending.push_back(context.default_stream->last);
    for (const auto& [thread, stream] : context.thread_streams) {
      pending.push_back(stream->last);
    }
  });
  c.machine.streams.each([&](const Stream& stream) {
    if (stream.device == device) {
      pending.push_back(stream.last);
    }
  });
  for (const WorkPtr& work : pending) {
    if (const CUresult result = wait_for(c, work); result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace gctx::sim
