// Contexts in general: the stack of each thread, what can be asked of a context, and those that cuCtxCreate makes.
#include "calls/contexts.hpp"

#include <algorithm>

#include "calls/queueing.hpp"
#include "calls/streams.hpp"

namespace gctx::sim {
namespace {

CUresult create(Call& c, CUcontext* out, unsigned flags, CUdevice ordinal) {
  CUresult result = CUDA_SUCCESS;
  Device* device = find_device(c, ordinal, result);
  if (device == nullptr) {
    return result;
  }
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_unique<Context>();
  c.machine.made(*made);
  made->kind = ContextKind::created;
  made->device = ordinal;
  made->root_id = made->id;
  made->sms = device->chip->all();
  made->sm_count = device->chip->sm_count();
  made->queues = device->queues;
  made->workqueue.limit = static_cast<unsigned>(c.machine.spec.connections);
  made->flags = flags;
  Context& context = c.machine.contexts.add(std::move(made));
  add_default_streams(c.machine, context);
  c.thread.stack.push_back({context.handle, context.id, ordinal, flags});
  return give(out, as_handle<CUcontext>(context));
}

// A destroyed context can be pushed and set (recorded); only one that never was cannot.
CUresult entry_for(Call& c, CUcontext handle, CurrentContext& entry) {
  if (const Context* context = c.machine.contexts.find(handle)) {
    entry = {context->handle, context->id, context->device, context->flags};
    return CUDA_SUCCESS;
  }
  if (!c.machine.contexts.is_stale(handle)) {
    c.note(Misuse::unknown_handle, handle, "no context of this machine");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  c.note(Misuse::use_after_destroy, handle, "a destroyed context is made current");
  entry = {reinterpret_cast<std::uint64_t>(handle), 0, 0, 0};
  return CUDA_SUCCESS;
}

CUresult synchronize(Call& c, Context& context) {
  if (disturbs_capture(c, &context)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return wait_for(c, outstanding_of(c.machine, context));
}

constexpr CUlimit known_limits[] = {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE,
                                    CU_LIMIT_MAX_L2_FETCH_GRANULARITY, CU_LIMIT_PERSISTING_L2_CACHE_SIZE};

std::size_t default_limit(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 1024;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1 << 20;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 8 << 20;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return 64;
    default:
      return 0;
  }
}

template <Fn function, class Body>
CUresult with_current(Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = current_context(c, result);
    return context == nullptr ? result : body(c, *context);
  });
}

// Recorded: the device and the flags of the current context are reported even if it was destroyed meanwhile, and the
// flags contain MAP_HOST whether it was requested or not.
template <Fn function, class Body>
CUresult with_current_entry(Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Context* context = current_context(c, result);
    if (c.thread.stack.empty()) {
      return result;
    }
    CurrentContext& top = c.thread.stack.back();
    if (context == nullptr && (top.handle == 0 || top.id == 0)) {
      return result;
    }
    if (context != nullptr) {
      top.flags = context->flags;
    }
    return body(top);
  });
}

}  // namespace

void detach_children(Call& c, Context& context) {
  const auto number_of_visible = [](const auto& objects) {
    return std::count_if(objects.begin(), objects.end(), [](const auto* object) { return !object->hidden; });
  };
  const auto streams = number_of_visible(context.streams);
  const auto events = number_of_visible(context.events);
  if (streams > 0 || events > 0) {
    c.note(Misuse::wrong_order, context.handle,
           "the context goes while " + std::to_string(streams) + " streams and " + std::to_string(events) +
               " events of it are alive");
  }
  const auto take_out = [&](Stream& stream) {
    if (stream.capture) {
      stream.capture->invalidate();
    }
    leave_capture(c.machine, stream);
  };
  for (Stream* stream : context.streams) {
    take_out(*stream);
    stream->context = nullptr;
  }
  for (const auto& [thread, stream] : context.thread_streams) {
    take_out(*stream);
  }
  for (Event* event : context.events) {
    event->context = nullptr;
  }
  context.streams.clear();
  context.events.clear();
  context.default_stream.reset();
  context.thread_streams.clear();
}

}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return call<Fn::cuCtxCreate_v2>([&](Call& c) { return create(c, out, flags, device); });
}

// Execution affinity and graphics-shared contexts are not modelled.
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count, unsigned flags,
                                CUdevice device) {
  return call<Fn::cuCtxCreate_v3>([&](Call& c) {
    return affinity != nullptr || count != 0 ? CUDA_ERROR_NOT_SUPPORTED : create(c, out, flags, device);
  });
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned flags, CUdevice device) {
  return call<Fn::cuCtxCreate_v4>(
      [&](Call& c) { return params != nullptr ? CUDA_ERROR_NOT_SUPPORTED : create(c, out, flags, device); });
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  return call<Fn::cuCtxDestroy_v2>([&](Call& c) {
    Context* context = c.machine.contexts.find(handle);
    if (context == nullptr) {
      const bool stale = c.machine.contexts.is_stale(handle);
      c.note(stale ? Misuse::double_destroy : Misuse::unknown_handle, handle, "no context that is alive");
      return stale ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context->kind != ContextKind::created) {
      // The header calls it undefined behaviour for the face of a green context.
      c.note(Misuse::wrong_order, handle, "cuCtxDestroy on a context that cuCtxCreate did not make");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!c.thread.stack.empty() && c.thread.stack.back().id == context->id) {
      c.thread.stack.pop_back();
    }
    detach_children(c, *context);
    c.machine.contexts.remove(*context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  return call<Fn::cuCtxPushCurrent_v2>([&](Call& c) {
    CurrentContext entry;
    if (handle == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const CUresult result = entry_for(c, handle, entry);
    if (result == CUDA_SUCCESS) {
      c.thread.stack.push_back(entry);
    }
    return result;
  });
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* out) {
  return call<Fn::cuCtxPopCurrent_v2>([&](Call& c) {
    if (c.thread.stack.empty()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (out != nullptr) {
      *out = reinterpret_cast<CUcontext>(c.thread.stack.back().handle);
    }
    c.thread.stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  return call<Fn::cuCtxSetCurrent>([&](Call& c) {
    if (handle == nullptr) {
      if (!c.thread.stack.empty()) {
        c.thread.stack.pop_back();
      }
      return CUDA_SUCCESS;
    }
    CurrentContext entry;
    if (const CUresult result = entry_for(c, handle, entry); result != CUDA_SUCCESS) {
      return result;
    }
    if (!c.thread.stack.empty()) {
      c.thread.stack.pop_back();
    }
    c.thread.stack.push_back(entry);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* out) {
  return call<Fn::cuCtxGetCurrent>([&](Call& c) {
    const std::uint64_t handle = c.thread.stack.empty() ? 0 : c.thread.stack.back().handle;
    return give(out, reinterpret_cast<CUcontext>(handle));
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* out) {
  return with_current_entry<Fn::cuCtxGetDevice>([&](const CurrentContext& entry) { return give(out, entry.device); });
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* out, CUcontext handle) {
  return call<Fn::cuCtxGetDevice_v2>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Context* context = find_context(c, handle, result, true);
    return context == nullptr ? result : give(out, context->device);
  });
}

CUresult CUDAAPI cuCtxGetFlags(unsigned* flags) {
  return with_current_entry<Fn::cuCtxGetFlags>(
      [&](const CurrentContext& entry) { return give(flags, entry.flags | CU_CTX_MAP_HOST); });
}

CUresult CUDAAPI cuCtxSetFlags(unsigned flags) {
  return with_current<Fn::cuCtxSetFlags>([&](Call&, Context& context) {
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return call<Fn::cuCtxGetId>([&](Call& c) {
    // The one question that a dead context may be asked (seen on an H100, driver 13.0, after a reset and a destroy).
    if (c.machine.contexts.is_stale(handle)) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CUresult result = CUDA_SUCCESS;
    const Context* context = find_context(c, handle, result, true);
    return context == nullptr ? result : give(id, static_cast<unsigned long long>(context->id));
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return with_current<Fn::cuCtxSynchronize>([&](Call& c, Context& context) { return synchronize(c, context); });
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
  return call<Fn::cuCtxSynchronize_v2>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = find_context(c, handle, result, true);
    return context == nullptr ? result : synchronize(c, *context);
  });
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, std::size_t value) {
  return with_current<Fn::cuCtxSetLimit>([&](Call&, Context& context) {
    if (std::find(std::begin(known_limits), std::end(known_limits), limit) == std::end(known_limits)) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    context.limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  return with_current<Fn::cuCtxGetLimit>([&](Call&, Context& context) {
    if (std::find(std::begin(known_limits), std::end(known_limits), limit) == std::end(known_limits)) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    const auto found = context.limits.find(limit);
    return give(value, found == context.limits.end() ? default_limit(limit) : found->second);
  });
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* config) {
  return with_current<Fn::cuCtxGetCacheConfig>([&](Call&, Context& context) { return give(config, context.cache); });
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
  return with_current<Fn::cuCtxSetCacheConfig>([&](Call&, Context& context) {
    context.cache = config;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return call<Fn::cuCtxGetApiVersion>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Context* context = find_context(c, handle, result, true);
    // Recorded: of a destroyed context this call alone says that it is none.
    if (context == nullptr) {
      return handle == nullptr ? result : CUDA_ERROR_INVALID_CONTEXT;
    }
    return give(version, context->api_version);
  });
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_current<Fn::cuCtxGetStreamPriorityRange>([&](Call&, Context&) {
    if (least != nullptr) {
      *least = 0;
    }
    if (greatest != nullptr) {
      *greatest = -5;
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
  return with_current<Fn::cuCtxResetPersistingL2Cache>([&](Call&, Context&) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return with_current<Fn::cuCtxEnablePeerAccess>([&](Call& c, Context& context) {
    CUresult result = CUDA_SUCCESS;
    const Context* other = find_context(c, peer, result);
    if (other == nullptr) {
      return result;
    }
    if (flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (other->device == context.device) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return context.peers.insert(other->device).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  return with_current<Fn::cuCtxDisablePeerAccess>([&](Call& c, Context& context) {
    CUresult result = CUDA_SUCCESS;
    const Context* other = find_context(c, peer, result);
    if (other == nullptr) {
      return result;
    }
    return context.peers.erase(other->device) > 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

}  // extern "C"
