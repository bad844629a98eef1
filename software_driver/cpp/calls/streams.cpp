// Streams: making, asking, waiting, destroying.
#include <algorithm>

#include "calls/queueing.hpp"

namespace software_driver {

namespace {

Stream& add_stream(Call& c, Context& context, unsigned flags, int priority) {
  Stream& stream = c.machine.streams.add(c.machine.make_stream(context, flags, priority));
  context.streams.insert(&stream);
  return stream;
}

void create_green_stream(Call& c, CUstream* out, Context& context, unsigned flags, int priority) {
  Stream& stream = add_stream(c, context, flags, priority);
  stream.is_of_green_call = true;
  give(out, stream);
}

// Recorded: under a green context a blocking stream is made here, which cuGreenCtxStreamCreate refuses.
void create_stream(Call& c, CUstream* out, unsigned flags, int priority) {
  give(out, add_stream(c, *c.current, flags, priority));
}

// How the thread waits for functions makes no difference here.
void launch_host_function(Call& c, Stream& stream, CUhostFn function, void* user, unsigned mode) {
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_HOST;
  node.host = [function, user] { function(user); };
  node.parameters.host = {function, user, mode, {}};
  return enqueue(c, stream, std::move(node));
}

// Returns whether a stream may have an attribute of this value. Priorities are clamped; windows and domains change
// nothing.
bool is_of_streams(CUstreamAttrID which, const CUstreamAttrValue& value) {
  switch (which) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      return true;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return value.syncPolicy >= CU_SYNC_POLICY_AUTO && value.syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
    default:
      return false;
  }
}

// The value before the program sets another. Assumed.
CUstreamAttrValue default_attribute(CUstreamAttrID which) {
  CUstreamAttrValue value{};
  if (which == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
    value.syncPolicy = CU_SYNC_POLICY_AUTO;
  } else if (which == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) {
    value.memSyncDomainMap.remote = 1;
  }
  return value;
}

CUgreenCtx green_context_of(const Stream& stream) {
  return stream.context->is_green() ? as_handle<CUgreenCtx>(*stream.context) : nullptr;
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_ROW(cuGreenCtxStreamCreate, create_green_stream)
SOFTWARE_DRIVER_ROW(cuStreamCreate, create_stream)
SOFTWARE_DRIVER_ROW(cuStreamCreateWithPriority, create_stream)
SOFTWARE_DRIVER_ROW(cuLaunchHostFunc, launch_host_function)
SOFTWARE_DRIVER_ROW(cuLaunchHostFunc_v2, launch_host_function)
SOFTWARE_DRIVER_GET(cuStreamGetPriority, &Stream::priority)
SOFTWARE_DRIVER_GET(cuStreamGetDevice, &Stream::device)
SOFTWARE_DRIVER_GET(cuStreamGetFlags, &Stream::flags)
SOFTWARE_DRIVER_GET(cuStreamGetId, &Stream::id, const Stream)
SOFTWARE_DRIVER_GET(cuStreamGetGreenCtx, green_context_of)

SOFTWARE_DRIVER_CALL(cuStreamDestroy_v2, Call& c, Stream& stream) {
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

// The headers of 12.5 to 12.9 say that this form knows no streams of cuGreenCtxStreamCreate.
SOFTWARE_DRIVER_CALL(cuStreamGetCtx, Call& c, Stream& stream, CUcontext* context) {
  refuse_if(stream.is_of_green_call && c.version() < 13000, CUDA_ERROR_NOT_SUPPORTED);
  give(context, *stream.context);
}

// For a stream of a green context: the primary and the green context.
SOFTWARE_DRIVER_CALL(cuStreamGetCtx_v2, Call& c, Stream& stream, CUcontext* context, CUgreenCtx* green) {
  give(context, stream.context->is_green() ? *c.machine.device(stream.device).primary : *stream.context);
  give(green, green_context_of(stream));
}

SOFTWARE_DRIVER_QUERY(cuStreamQuery, Call& c, Stream& stream) {
  const WorkPtr last = stream.last;
  if (last && !last->done) {
    c.machine.clock.poll(c.lock, c.thread.time, last);
  }
  refuse_if(last && !last->done, CUDA_ERROR_NOT_READY);
  report_failures(c, {last});
  return CUDA_SUCCESS;
}

SOFTWARE_DRIVER_CALL(cuStreamSynchronize, Call& c, Stream& stream) {
  return synchronize(c, stream.context->id, stream.id, {stream.last});
}

SOFTWARE_DRIVER_CALL(cuStreamSetAttribute, Call&, Stream& stream, CUstreamAttrID which,
                     const CUstreamAttrValue* value) {
  refuse_if(!is_of_streams(which, *value), CUDA_ERROR_INVALID_VALUE);
  if (which == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
    stream.priority = std::clamp(value->priority, -5, 0);
  } else {
    stream.attributes[which] = *value;
  }
}

SOFTWARE_DRIVER_CALL(cuStreamGetAttribute, Call&, Stream& stream, CUstreamAttrID which, CUstreamAttrValue* out) {
  CUstreamAttrValue value = default_attribute(which);
  refuse_if(!is_of_streams(which, value), CUDA_ERROR_INVALID_VALUE);
  if (const auto found = stream.attributes.find(which); found != stream.attributes.end()) {
    value = found->second;
  }
  if (which == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
    value.priority = stream.priority;
  }
  give(out, value);
}

SOFTWARE_DRIVER_CALL(cuStreamCopyAttributes, Call&, Stream& to, const Stream& from) {
  refuse_if(to.context != from.context, CUDA_ERROR_INVALID_VALUE);
  to.attributes = from.attributes;
  to.priority = from.priority;
}

SOFTWARE_DRIVER_CALL(cuStreamAddCallback, Call& c, Stream& stream, CUstreamCallback function, void* user, unsigned) {
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_HOST;
  node.host = [function, user, handle = reinterpret_cast<CUstream>(c.arguments[0])] {
    function(handle, CUDA_SUCCESS, user);
  };
  return enqueue(c, stream, std::move(node));
}
