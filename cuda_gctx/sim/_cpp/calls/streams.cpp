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

CUresult add_stream(Call& c, Context& context, unsigned flags, int priority, CUstream* out) {
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Stream& stream = c.machine.streams.add(c.machine.make_stream(context, flags, priority));
  context.streams.insert(&stream);
  return give(out, as_handle<CUstream>(stream));
}

namespace {

template <Fn function>
CUresult create(CUstream* out, unsigned flags, int priority) {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = current_context(c, result);
    if (context == nullptr) {
      return result;
    }
    // Recorded: under a green context a blocking stream is made here, which cuGreenCtxStreamCreate refuses.
    return add_stream(c, *context, flags, priority, out);
  });
}

// How the thread waits for functions makes no difference here.
template <Fn which>
CUresult launch_host_function(CUstream handle, CUhostFn function, void* user, unsigned mode) {
  return with_stream<which>(handle, [&](Call& c, Stream& stream) {
    if (function == nullptr || mode > CU_HOST_TASK_SPINWAIT) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    GraphNode node;
    node.type = CU_GRAPH_NODE_TYPE_HOST;
    node.host = [function, user] { function(user); };
    CUDA_HOST_NODE_PARAMS_v2 parameters{};
    parameters.fn = function;
    parameters.userData = user;
    parameters.syncMode = mode;
    node.parameters = parameters;
    return enqueue(c, stream, std::move(node));
  });
}

bool is_special(CUstream handle) {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* out, unsigned flags) { return create<Fn::cuStreamCreate>(out, flags, 0); }

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return create<Fn::cuStreamCreateWithPriority>(out, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
  return with_stream<Fn::cuStreamDestroy_v2>(handle, [&](Call& c, Stream& stream) {
    if (is_special(handle)) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    // Recorded: a stream that was forked into a capture and joined again may go; the capture ends well.
    leave_capture(c.machine, stream);
    // Work in flight goes on: the queue keeps what it needs.
    if (stream.context != nullptr) {
      stream.context->streams.erase(&stream);
    }
    c.machine.streams.remove(stream);
    return CUDA_SUCCESS;
  });
}

namespace {

// Some questions invalidate the capture of the stream that they are asked of, in every mode.
bool disturbs_own_capture(Stream& stream) {
  if (!stream.capture) {
    return false;
  }
  stream.capture->invalidate();
  return true;
}

}  // namespace

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
  return with_stream<Fn::cuStreamGetPriority>(handle,
                                              [&](Call&, Stream& stream) { return give(priority, stream.priority); });
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return with_stream<Fn::cuStreamGetDevice>(handle, [&](Call&, Stream& stream) { return give(device, stream.device); });
}

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return with_stream<Fn::cuStreamGetFlags>(handle, [&](Call&, Stream& stream) {
    return disturbs_own_capture(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : give(flags, stream.flags);
  });
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
  return with_stream<Fn::cuStreamGetId>(handle, [&](Call&, Stream& stream) {
    return disturbs_own_capture(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                        : give(id, static_cast<unsigned long long>(stream.id));
  });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* out) {
  return with_stream<Fn::cuStreamGetCtx>(
      handle, [&](Call&, Stream& stream) { return give(out, as_handle<CUcontext>(*stream.context)); });
}

// For a stream of a green context: the primary and the green context.
CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  return with_stream<Fn::cuStreamGetCtx_v2>(handle, [&](Call& c, Stream& stream) {
    if (context == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Context& own = *stream.context;
    const Device& device = c.machine.devices[static_cast<std::size_t>(own.device)];
    *context = as_handle<CUcontext>(own.is_green() ? *device.primary : own);
    if (green != nullptr) {
      *green = own.is_green() ? as_handle<CUgreenCtx>(own) : nullptr;
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* out) {
  return with_stream<Fn::cuStreamGetGreenCtx>(handle, [&](Call&, Stream& stream) {
    const Context& context = *stream.context;
    return give(out, context.is_green() ? as_handle<CUgreenCtx>(context) : nullptr);
  });
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  return with_stream<Fn::cuStreamQuery>(handle, [&](Call& c, Stream& stream) {
    if (disturbs_own_capture(stream)) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    const WorkPtr last = stream.last;
    if (!last || last->done) {
      return CUDA_SUCCESS;
    }
    c.machine.clock.pass(polling_step_ns);
    c.machine.clock.catch_up(c.lock);
    return last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  return with_stream<Fn::cuStreamSynchronize>(handle,
                                              [&](Call& c, Stream& stream) { return wait_for_stream(c, stream); });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user) {
  return launch_host_function<Fn::cuLaunchHostFunc>(handle, function, user, CU_HOST_TASK_BLOCKING);
}

CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void* user, unsigned mode) {
  return launch_host_function<Fn::cuLaunchHostFunc_v2>(handle, function, user, mode);
}

CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* user, unsigned flags) {
  return with_stream<Fn::cuStreamAddCallback>(handle, [&](Call& c, Stream& stream) {
    if (function == nullptr || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream.capture) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    GraphNode node;
    node.type = CU_GRAPH_NODE_TYPE_HOST;
    node.host = [function, user, handle] { function(handle, CUDA_SUCCESS, user); };
    return enqueue(c, stream, std::move(node));
  });
}

}  // extern "C"
