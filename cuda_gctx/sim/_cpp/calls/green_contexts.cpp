// Green contexts: their making, and what is left of them when they are destroyed.
#include <algorithm>

#include "calls/contexts.hpp"
#include "calls/primary_contexts.hpp"
#include "calls/streams.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {
namespace {

// The queues of a new context: another context's, its own, or the device's. How many balanced contexts a device has
// queues for is not known, so each gets its own.
std::shared_ptr<QueueSet> queues_for(Machine& machine, Device& device, const Descriptor& descriptor) {
  if (descriptor.queues) {
    return descriptor.queues;
  }
  if (descriptor.workqueue.scope != CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED) {
    return device.queues;
  }
  const auto limit = static_cast<std::size_t>(machine.spec.connections);
  auto own = std::make_shared<QueueSet>(std::clamp<std::size_t>(descriptor.workqueue.limit, 1, limit));
  own->id = next_id();
  own->device = device.ordinal;
  machine.queue_sets[own->id] = own;
  return own;
}

bool is_current_elsewhere(const Machine& machine, const Context& context, const ThreadState& here) {
  return std::any_of(machine.threads.begin(), machine.threads.end(), [&](const auto& thread) {
    return thread && thread.get() != &here && !thread->stack.empty() && thread->stack.back().id == context.id;
  });
}

void destroy_green(Call& c, Context& context) {
  Device& device = c.machine.devices[static_cast<std::size_t>(context.device)];
  detach_children(c, context);
  const std::uint64_t queues = context.queues.use_count() == 1 ? context.queues->id : 0;
  c.machine.contexts.remove(context);
  --c.machine.green_contexts;
  if (queues != 0) {
    c.machine.queue_sets.erase(queues);
  }
  --device.green_contexts;
  device.lost += lost_context_bytes;
  ++c.machine.ledger.contexts_destroyed;
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc handle, CUdevice ordinal, unsigned flags) {
  return call<Fn::cuGreenCtxCreate>([&](Call& c) {
    Machine& machine = c.machine;
    CUresult result = CUDA_SUCCESS;
    Device* device = find_device(c, ordinal, result);
    if (device == nullptr) {
      return result;
    }
    // Recorded: no descriptor at all is accepted. That all SMs are meant is assumed.
    Descriptor everything;
    everything.device = ordinal;
    everything.sms = device->chip->all();
    everything.sm_count = device->chip->sm_count();
    const Descriptor* descriptor = handle == nullptr ? &everything : machine.descriptors.find(handle);
    // Recorded on 13.0: the default stream must be asked for. From 13.4 NONE is a flag of its own (documented).
    const bool flags_fit = flags == CU_GREEN_CTX_DEFAULT_STREAM || (flags == CU_GREEN_CTX_NONE && c.version() >= 13040);
    if (out == nullptr || descriptor == nullptr || !flags_fit) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (descriptor->device != ordinal) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const unsigned limit = machine.faults.context_limit;
    if ((limit != 0 && machine.green_contexts >= limit) || !has_room(*device, live_context_bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const Context& primary = activate_primary(c, *device);
    auto made = std::make_unique<Context>();
    machine.made(*made);
    made->kind = ContextKind::green;
    made->device = ordinal;
    made->root_id = primary.id;
    made->sms = descriptor->sms;
    made->sm_count = descriptor->sm_count;
    made->traits = descriptor->traits;
    made->resource_flags = descriptor->flags;
    made->locality_domain = descriptor->locality_domain;
    made->workqueue = descriptor->workqueue;
    if (made->workqueue.limit == 0) {
      made->workqueue.limit = static_cast<unsigned>(machine.spec.connections);
    }
    made->queues = queues_for(machine, *device, *descriptor);
    made->flags = device->primary_flags;
    Context& context = machine.contexts.add(std::move(made));
    add_default_streams(machine, context);
    ++device->green_contexts;
    ++machine.green_contexts;
    ++machine.ledger.contexts_made;
    return give(out, as_handle<CUgreenCtx>(context));
  });
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
  return call<Fn::cuGreenCtxDestroy>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* found = find_green(c, handle, result);
    if (found == nullptr) {
      return result;
    }
    Context& context = *found;
    if (is_current_elsewhere(c.machine, context, c.thread)) {
      c.note(Misuse::wrong_thread, handle, "the green context is destroyed while it is current to another thread");
    }
    if (!c.thread.stack.empty() && c.thread.stack.back().id == context.id) {
      c.note(Misuse::wrong_order, handle, "the green context is destroyed while it is current");
    }
    Device& device = c.machine.devices[static_cast<std::size_t>(context.device)];
    destroy_green(c, context);
    deactivate_primary_if_unused(c, device);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  return call<Fn::cuCtxFromGreenCtx>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Context* context = find_green(c, handle, result);
    return context == nullptr ? result : give(out, as_handle<CUcontext>(*context));
  });
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  return call<Fn::cuGreenCtxGetId>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (handle == nullptr) {
      const Context* context = current_context(c, result);
      if (context == nullptr) {
        return result;
      }
      if (!context->is_green()) {
        return CUDA_ERROR_INVALID_CONTEXT;
      }
      return give(id, static_cast<unsigned long long>(context->id));
    }
    const Context* context = find_green(c, handle, result);
    return context == nullptr ? result : give(id, static_cast<unsigned long long>(context->id));
  });
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags, int priority) {
  return call<Fn::cuGreenCtxStreamCreate>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Context* context = find_green(c, handle, result);
    if (context == nullptr) {
      return result;
    }
    if (flags != CU_STREAM_NON_BLOCKING) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return add_stream(c, *context, flags, priority, out);
  });
}

}  // extern "C"
