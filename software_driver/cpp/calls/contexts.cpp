// Contexts in general: the stack of each thread, what can be asked of a context, and those that cuCtxCreate makes.
#include "calls/contexts.hpp"

#include <algorithm>

#include "calls/allocations.hpp"
#include "calls/modules.hpp"
#include "calls/queueing.hpp"
#include "machine/observer.hpp"

namespace software_driver {
namespace {

// A destroyed context can be pushed and set (recorded); only one that never was cannot.
CurrentContext entry_for(Call& c, CUcontext handle) {
  if (const Context* context = c.machine.contexts.find(handle)) {
    return {context->handle, context->id, context->device, context->flags};
  }
  if (!c.machine.contexts.is_stale(handle)) {
    c.note(Misuse::unknown_handle, handle, "no context of this machine");
    refuse(CUDA_ERROR_INVALID_CONTEXT);
  }
  c.note(Misuse::use_after_destroy, handle, "a destroyed context is made current");
  return {reinterpret_cast<std::uint64_t>(handle), 0, 0, 0};
}

constexpr std::pair<CUlimit, std::size_t> default_limits[] = {{CU_LIMIT_STACK_SIZE, 1024},
                                                              {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20},
                                                              {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
                                                              {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
                                                              {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0}};

// Recorded: the device and the flags of the current context are reported even if it was destroyed meanwhile, and the
// flags contain MAP_HOST whether it was requested or not.
const CurrentContext& current_entry(Call& c) {
  refuse_if(c.thread.stack.empty() || c.thread.stack.back().id == 0, CUDA_ERROR_INVALID_CONTEXT);
  CurrentContext& top = c.thread.stack.back();
  const Context* context = c.machine.contexts.find(top.handle);
  if (context != nullptr && context->id == top.id) {
    top.flags = context->flags;
  } else {
    c.note(Misuse::use_after_destroy, top.handle, "the current context is destroyed");
  }
  return top;
}

// Calls `remove` with each object of a table that goes with a context.
template <class T, class Remove>
void each_owned(const HandleTable<T>& table, std::uint64_t owner, Remove&& remove) {
  std::vector<T*> found;
  table.each([&](T& object) {
    if (object.owner == owner) {
      found.push_back(&object);
    }
  });
  std::ranges::for_each(found, [&](T* object) { remove(*object); });
}

}  // namespace

Holding whole_device(const Call& c, const Device& device) {
  const auto connections = static_cast<unsigned>(c.machine.spec.connections);
  return {device.ordinal, device.chip->all(), device.chip->sm_count(), {}, 0, 0, {connections}, device.queues};
}

std::unique_ptr<Context> make_context(Call& c, ContextKind kind, const Holding& part, unsigned flags) {
  auto made = std::make_unique<Context>();
  c.made(*made);
  static_cast<Holding&>(*made) = part;
  made->kind = kind;
  made->root_id = made->id;
  made->flags = flags;
  // Recorded: the default stream of a green context says that it is non-blocking.
  made->default_stream = c.machine.make_stream(*made, made->is_green() ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, 0);
  made->default_stream->hidden = true;
  return made;
}

void show_context(const Context& context) {
  softwareDriverActivity activity{};
  activity.kind = softwareDriverContextActivity;
  activity.device = context.device;
  activity.context = context.id;
  activity.parent = context.is_green() ? context.root_id : 0;
  activity.sm_count = context.sm_count;
  activity.is_green = context.is_green() ? 1 : 0;
  activity.name = "";
  observe(activity);
}

void destroy_owned(Machine& machine, std::uint64_t owner, bool remembered) {
  each_owned(machine.modules, owner, [&](Module& module) {
    if (remembered) {
      machine.modules.orphan(module);
    }
    unload(machine, module);
  });
  release_if(machine, [&](const Allocation& allocation) { return allocation.owner == owner; });
}

void detach_children(Call& c, Context& context) {
  const auto number_of_visible = [](const auto& objects) {
    return std::count_if(objects.begin(), objects.end(), [](const auto* object) { return !object->hidden; });
  };
  const auto streams = number_of_visible(context.streams);
  const auto events = number_of_visible(context.events);
  // After a fault of a kernel, nobody can free memory.
  const bool has_fault = c.machine.devices.at(context.device).fault != nullptr;
  const auto allocations = std::ranges::count_if(c.machine.allocations, [&](const auto& entry) {
    const Allocation& one = entry.second;
    return !has_fault && one.owner == context.id && one.module == nullptr && !one.is_of_kernels;
  });
  if (streams > 0 || events > 0 || allocations > 0) {
    c.note(Misuse::wrong_order, context.handle,
           "the context goes while " + std::to_string(streams) + " streams, " + std::to_string(events) +
               " events and " + std::to_string(allocations) + " allocations of it are alive");
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
    event->is_gone = !context.is_green();
  }
  context.streams.clear();
  context.events.clear();
  context.default_stream.reset();
  context.thread_streams.clear();
  c.machine.clock.forget(context.id);
}

}  // namespace software_driver

using namespace software_driver;

// Execution affinity and graphics-shared contexts are not modelled.
SOFTWARE_DRIVER_CALL(cuCtxCreate_v4, Call& c, CUcontext* out, CUctxCreateParams* params, unsigned flags,
                     const Device& device) {
  const bool empty = params == nullptr || (params->numExecAffinityParams == 0 && params->cigParams == nullptr);
  refuse_if(!empty, CUDA_ERROR_NOT_SUPPORTED);
  Context& context = c.machine.contexts.add(make_context(c, ContextKind::created, whole_device(c, device), flags));
  show_context(context);
  c.thread.stack.push_back({context.handle, context.id, device.ordinal, flags});
  give(out, context);
}

SOFTWARE_DRIVER_CALL(cuCtxCreate_v3, Call& c, CUcontext* out, CUexecAffinityParam*, int count, unsigned flags,
                     const Device& device) {
  refuse_if(count != 0, CUDA_ERROR_NOT_SUPPORTED);
  return body_of_cuCtxCreate_v4(c, out, nullptr, flags, device);
}
SOFTWARE_DRIVER_SAME(cuCtxCreate_v2, cuCtxCreate_v4, 1)

SOFTWARE_DRIVER_CALL(cuCtxDestroy_v2, Call& c, CUcontext handle) {
  Context* context = c.machine.contexts.find(handle);
  if (context == nullptr) {
    const bool stale = c.machine.contexts.is_stale(handle);
    c.note(stale ? Misuse::double_destroy : Misuse::unknown_handle, handle, "no context that is alive");
    refuse_if(stale, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    refuse(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (context->kind != ContextKind::created) {
    // The header calls it undefined behaviour for the face of a green context.
    c.note(Misuse::wrong_order, handle, "cuCtxDestroy on a context that cuCtxCreate did not make");
    refuse(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (!c.thread.stack.empty() && c.thread.stack.back().id == context->id) {
    c.thread.stack.pop_back();
  }
  // What its kernels work on is freed, so they come to their end first. Another thread may destroy it meanwhile.
  const std::uint64_t id = context->id;
  finish(c, outstanding_of(c.machine, *context));
  context = c.machine.contexts.find(handle);
  refuse_if(context == nullptr || context->id != id, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  detach_children(c, *context);
  destroy_owned(c.machine, id, true);
  c.machine.contexts.remove(*context);
}

SOFTWARE_DRIVER_CALL(cuCtxPushCurrent_v2, Call& c, CUcontext handle) {
  refuse_if(handle == nullptr, CUDA_ERROR_INVALID_CONTEXT);
  c.thread.stack.push_back(entry_for(c, handle));
}

SOFTWARE_DRIVER_CALL(cuCtxPopCurrent_v2, Call& c, CUcontext* out) {
  refuse_if(c.thread.stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  give(out, reinterpret_cast<CUcontext>(c.thread.stack.back().handle));
  c.thread.stack.pop_back();
}

SOFTWARE_DRIVER_CALL(cuCtxSetCurrent, Call& c, CUcontext handle) {
  std::vector<CurrentContext>& stack = c.thread.stack;
  const CurrentContext entry = handle == nullptr ? CurrentContext{} : entry_for(c, handle);
  stack.resize(std::max<std::size_t>(stack.size(), 1) - 1);
  if (handle != nullptr) {
    stack.push_back(entry);
  }
}

SOFTWARE_DRIVER_CALL(cuCtxGetCurrent, Call& c, CUcontext* out) {
  const std::uint64_t handle = c.thread.stack.empty() ? 0 : c.thread.stack.back().handle;
  give(out, reinterpret_cast<CUcontext>(handle));
}

SOFTWARE_DRIVER_CALL(cuCtxGetDevice, Call& c, CUdevice* out) { give(out, current_entry(c).device); }
SOFTWARE_DRIVER_GET(cuCtxGetDevice_v2, &Context::device, const Context)
SOFTWARE_DRIVER_CALL(cuCtxGetFlags, Call& c, unsigned* flags) { give(flags, current_entry(c).flags | CU_CTX_MAP_HOST); }
SOFTWARE_DRIVER_CALL(cuCtxSetFlags, Call& c, unsigned flags) { c.current->flags = flags; }
SOFTWARE_DRIVER_CALL(cuCtxGetCacheConfig, Call& c, CUfunc_cache* config) { give(config, c.current->cache); }
SOFTWARE_DRIVER_CALL(cuCtxSetCacheConfig, Call& c, CUfunc_cache config) { c.current->cache = config; }
SOFTWARE_DRIVER_CALL(cuCtxResetPersistingL2Cache, Call&) {}

SOFTWARE_DRIVER_CALL(cuCtxGetId, Call& c, CUcontext handle, unsigned long long* id) {
  // The one question that a dead context may be asked (seen on an H100, driver 13.0, after a reset and a destroy).
  refuse_if(c.machine.contexts.is_stale(handle), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  *id = find_context(c, handle, true).id;
}

SOFTWARE_DRIVER_CALL(cuCtxSynchronize, Call& c) {
  return synchronize(c, c.current->id, 0, outstanding_of(c.machine, *c.current));
}

SOFTWARE_DRIVER_CALL(cuCtxSynchronize_v2, Call& c, Context& context) {
  return synchronize(c, context.id, 0, outstanding_of(c.machine, context));
}

SOFTWARE_DRIVER_CALL(cuCtxSetLimit, Call& c, CUlimit limit, std::size_t value) {
  need(value_of(default_limits, limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
  // Recorded: more local memory than a thread can have is refused, and more of the L2 cache than may persist: here
  // none.
  refuse_if(limit == CU_LIMIT_STACK_SIZE && value > (std::size_t{512} << 10), CUDA_ERROR_INVALID_VALUE);
  refuse_if(limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > c.device().memory, CUDA_ERROR_OUT_OF_MEMORY);
  refuse_if(limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE && value > 0, CUDA_ERROR_INVALID_VALUE);
  c.current->limits[limit] = limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY ? std::min<std::size_t>(value, 128) : value;
}

SOFTWARE_DRIVER_CALL(cuCtxGetLimit, Call& c, std::size_t* value, CUlimit limit) {
  const std::size_t& standard = need(value_of(default_limits, limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
  give(value, c.current->limits.emplace(limit, standard).first->second);
}

SOFTWARE_DRIVER_CALL(cuCtxGetApiVersion, Call& c, CUcontext handle, unsigned* version) {
  // Recorded: of a destroyed context this call alone says that it is none.
  if (c.machine.contexts.is_stale(handle)) {
    c.note(Misuse::use_after_destroy, handle, "the context is destroyed");
    refuse(CUDA_ERROR_INVALID_CONTEXT);
  }
  *version = find_context(c, handle, true).api_version;
}

SOFTWARE_DRIVER_CALL(cuCtxGetStreamPriorityRange, Call&, int* least, int* greatest) {
  give(least, 0);
  give(greatest, -5);
}

SOFTWARE_DRIVER_CALL(cuCtxEnablePeerAccess, Call& c, const Context& peer, unsigned) {
  refuse_if(peer.device == c.current->device, CUDA_ERROR_INVALID_DEVICE);
  refuse_if(!c.current->peers.insert(peer.device).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
}

SOFTWARE_DRIVER_CALL(cuCtxDisablePeerAccess, Call& c, const Context& peer) {
  refuse_if(c.current->peers.erase(peer.device) == 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}
