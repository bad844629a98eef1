// Streams: making, asking, waiting, destroying.
#include "calls/streams.hpp"

#include "calls/queueing.hpp"

namespace gctx::sim {

void add_default_streams(Machine& machine, Context& context) {
  // Recorded: that of a green context says that it is non-blocking.
  const unsigned flags = context.is_green() ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  context.default_stream = machine.make_stream(context, flags, 0);
  context.default_stream->hidden = true;
}

void add_stream(Call& c, Context& context, unsigned flags, int priority, CUstream* out) {
  Stream& stream = c.machine.streams.add(c.machine.make_stream(context, flags, priority));
  context.streams.insert(&stream);
  give(out, as_handle<CUstream>(stream));
}

namespace {

// How the thread waits for functions makes no difference here.
void launch_host_function(Call& c, Stream& stream, CUhostFn function, void* user, unsigned mode) {
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_HOST;
  node.host = [function, user] { function(user); };
  CUDA_HOST_NODE_PARAMS_v2 parameters{};
  parameters.fn = function;
  parameters.userData = user;
  parameters.syncMode = mode;
  node.parameters = parameters;
  return enqueue(c, stream, std::move(node));
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuStreamCreate, Call& c, CUstream* out, unsigned flags) {
  // Recorded: under a green context a blocking stream is made here, which cuGreenCtxStreamCreate refuses.
  return add_stream(c, *c.current, flags, 0, out);
}

GCTX_SIM_CALL(cuStreamCreateWithPriority, Call& c, CUstream* out, unsigned flags, int priority) {
  return add_stream(c, *c.current, flags, priority, out);
}

GCTX_SIM_CALL(cuStreamDestroy_v2, Call& c, Stream& stream) {
  if (stream.handle == 0) {  // one of those that are always there
    refuse(CUDA_ERROR_INVALID_HANDLE);
  }
  // Recorded: a stream that was forked into a capture and joined again may go; the capture ends well.
  leave_capture(c.machine, stream);
  // Work in flight goes on: the queue keeps what it needs.
  if (stream.context != nullptr) {
    stream.context->streams.erase(&stream);
  }
  c.machine.streams.remove(stream);
}

GCTX_SIM_CALL(cuStreamGetPriority, Call&, Stream& stream, int* priority) { give(priority, stream.priority); }

GCTX_SIM_CALL(cuStreamGetDevice, Call&, Stream& stream, CUdevice* device) { give(device, stream.device); }

GCTX_SIM_CALL(cuStreamGetFlags, Call&, const Stream& stream, unsigned* flags) { give(flags, stream.flags); }

GCTX_SIM_CALL(cuStreamGetId, Call&, const Stream& stream, unsigned long long* id) {
  give(id, static_cast<unsigned long long>(stream.id));
}

GCTX_SIM_CALL(cuStreamGetCtx, Call&, Stream& stream, CUcontext* out) {
  give(out, as_handle<CUcontext>(*stream.context));
}

// For a stream of a green context: the primary and the green context.
GCTX_SIM_CALL(cuStreamGetCtx_v2, Call& c, Stream& stream, CUcontext* context, CUgreenCtx* green) {
  const Context& own = *stream.context;
  const Device& device = c.machine.devices[static_cast<std::size_t>(own.device)];
  give(context, as_handle<CUcontext>(own.is_green() ? *device.primary : own));
  give(green, own.is_green() ? as_handle<CUgreenCtx>(own) : nullptr);
}

GCTX_SIM_CALL(cuStreamGetGreenCtx, Call&, Stream& stream, CUgreenCtx* out) {
  const Context& context = *stream.context;
  give(out, context.is_green() ? as_handle<CUgreenCtx>(context) : nullptr);
}

GCTX_SIM_QUERY(cuStreamQuery, Call& c, Stream& stream) {
  const WorkPtr last = stream.last;
  if (!last || last->done) {
    return CUDA_SUCCESS;
  }
  c.machine.clock.pass(polling_step_ns);
  c.machine.clock.catch_up(c.lock);
  return last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

GCTX_SIM_CALL(cuStreamSynchronize, Call& c, Stream& stream) { return wait_for(c, stream.last); }

GCTX_SIM_CALL(cuLaunchHostFunc, Call& c, Stream& stream, CUhostFn function, void* user) {
  return launch_host_function(c, stream, function, user, CU_HOST_TASK_BLOCKING);
}

GCTX_SIM_CALL(cuLaunchHostFunc_v2, Call& c, Stream& stream, CUhostFn function, void* user, unsigned mode) {
  return launch_host_function(c, stream, function, user, mode);
}

GCTX_SIM_CALL(cuStreamAddCallback, Call& c, Stream& stream, CUstreamCallback function, void* user, unsigned) {
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_HOST;
  node.host = [function, user, handle = reinterpret_cast<CUstream>(c.arguments[0])] {
    function(handle, CUDA_SUCCESS, user);
  };
  return enqueue(c, stream, std::move(node));
}
