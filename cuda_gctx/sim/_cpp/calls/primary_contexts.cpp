// The primary context of each device: it lives while somebody retains it, and green contexts do too.
#include "calls/primary_contexts.hpp"

#include "calls/allocations.hpp"
#include "calls/contexts.hpp"
#include "calls/modules.hpp"
#include "calls/queueing.hpp"
#include "calls/streams.hpp"

namespace gctx::sim {
namespace {

void remove_primary(Call& c, Device& device) {
  detach_children(c, *device.primary);
  c.machine.contexts.remove_reserving(*device.primary);
  device.primary = nullptr;
}

CUresult release_primary(Call& c, CUdevice ordinal) {
  CUresult result = CUDA_SUCCESS;
  Device* device = find_device(c, ordinal, result);
  if (device == nullptr) {
    return result;
  }
  if (device->retains == 0) {
    c.note(Misuse::double_destroy, std::uint64_t{0}, "the primary context is released more often than retained");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  --device->retains;
  if (device->retains == 0 && device->green_contexts > 0) {
    c.note(Misuse::wrong_order, device->primary->handle,
           "the primary context is released while " + std::to_string(device->green_contexts) +
               " green contexts of it are alive");
  }
  deactivate_primary_if_unused(c, *device);
  return CUDA_SUCCESS;
}

CUresult reset(Call& c, CUdevice ordinal) {
  CUresult result = CUDA_SUCCESS;
  Device* device = find_device(c, ordinal, result);
  if (device == nullptr) {
    return result;
  }
  if (device->green_contexts > 0) {
    return CUDA_ERROR_NOT_PERMITTED;  // seen on an H100
  }
  if (result = wait_for_device(c, ordinal); result != CUDA_SUCCESS) {
    return result;
  }
  // Other threads may have made some meanwhile.
  if (device->green_contexts > 0) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  // All that the device has is destroyed: memory, modules, and the primary context with what belongs to it. Whoever
  // has retained it still has to release it; the next retain makes another one at the same address (seen on an H100).
  std::vector<std::uint64_t> addresses;
  for (const auto& [address, allocation] : c.machine.allocations) {
    const bool goes_with_module = allocation.module != nullptr;
    if (allocation.device == ordinal && !allocation.registered && !goes_with_module) {
      addresses.push_back(address);
    }
  }
  for (const std::uint64_t address : addresses) {
    release(c.machine, address);
  }
  std::vector<Module*> modules;
  c.machine.modules.each([&](Module& module) {
    if (module.device != ordinal) {
      return;
    }
    // A library loads itself again where it is used next.
    free_variables(c.machine, module);
    if (module.library == nullptr) {
      modules.push_back(&module);
    }
  });
  for (Module* module : modules) {
    unload(c.machine, *module);
  }
  device->lost = 0;  // a reset is what brings it back
  if (device->primary == nullptr) {
    return CUDA_SUCCESS;
  }
  const std::set<Stream*> streams = device->primary->streams;
  for (Event* event : device->primary->events) {
    event->is_gone = true;
  }
  remove_primary(c, *device);
  for (Stream* stream : streams) {
    c.machine.streams.remove(*stream);
  }
  return CUDA_SUCCESS;
}

CUresult set_flags(Call& c, CUdevice ordinal, unsigned flags) {
  CUresult result = CUDA_SUCCESS;
  Device* device = find_device(c, ordinal, result);
  if (device == nullptr) {
    return result;
  }
  if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  device->primary_flags = flags;
  if (device->primary != nullptr) {
    device->primary->flags = flags;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Context& activate_primary(Call& c, Device& device) {
  if (device.primary != nullptr) {
    return *device.primary;
  }
  auto context = std::make_unique<Context>();
  c.machine.made(*context);
  context->kind = ContextKind::primary;
  context->device = device.ordinal;
  context->root_id = context->id;
  context->sms = device.chip->all();
  context->sm_count = device.chip->sm_count();
  context->queues = device.queues;
  context->workqueue.limit = static_cast<unsigned>(c.machine.spec.connections);
  context->flags = device.primary_flags;
  auto& contexts = c.machine.contexts;
  device.primary = device.primary_handle == 0 ? &contexts.add(std::move(context))
                                              : &contexts.add_at(device.primary_handle, std::move(context));
  device.primary_handle = device.primary->handle;
  add_default_streams(c.machine, *device.primary);
  return *device.primary;
}

void deactivate_primary_if_unused(Call& c, Device& device) {
  if (device.primary == nullptr || device.retains > 0 || device.green_contexts > 0) {
    return;
  }
  remove_primary(c, device);
}

}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  return call<Fn::cuDevicePrimaryCtxRetain>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Device* device = find_device(c, ordinal, result);
    if (device == nullptr) {
      return result;
    }
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Context& context = activate_primary(c, *device);
    ++device->retains;
    return give(out, as_handle<CUcontext>(context));
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return call<Fn::cuDevicePrimaryCtxRelease>([&](Call& c) { return release_primary(c, ordinal); });
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return call<Fn::cuDevicePrimaryCtxRelease_v2>([&](Call& c) { return release_primary(c, ordinal); });
}
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return call<Fn::cuDevicePrimaryCtxReset>([&](Call& c) { return reset(c, ordinal); });
}
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return call<Fn::cuDevicePrimaryCtxReset_v2>([&](Call& c) { return reset(c, ordinal); });
}
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
  return call<Fn::cuDevicePrimaryCtxSetFlags>([&](Call& c) { return set_flags(c, ordinal, flags); });
}
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return call<Fn::cuDevicePrimaryCtxSetFlags_v2>([&](Call& c) { return set_flags(c, ordinal, flags); });
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return call<Fn::cuDevicePrimaryCtxGetState>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find_device(c, ordinal, result);
    if (device == nullptr) {
      return result;
    }
    if (flags == nullptr || active == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = device->primary_flags;
    *active = device->primary != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
