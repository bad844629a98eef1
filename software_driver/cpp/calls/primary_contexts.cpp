// The primary context of each device: it lives while somebody retains it, and green contexts do too.
#include "calls/primary_contexts.hpp"

#include "calls/allocations.hpp"
#include "calls/contexts.hpp"
#include "calls/modules.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
namespace {

// The primary context goes with what it owns, and with the variables of libraries, which load themselves again where
// they are used next. Memory of pools stays (recorded).
void destroy_primary(Call& c, Device& device) {
  Machine& machine = c.machine;
  if (device.primary != nullptr) {
    detach_children(c, *device.primary);
    destroy_owned(machine, device.primary->id, false);
    machine.contexts.remove_reserving(*device.primary);
    device.primary = nullptr;
  }
  machine.modules.each([&](Module& module) {
    if (module.device == device.ordinal && module.library != nullptr) {
      free_variables(machine, module);
    }
  });
}

// Whoever has retained the context still has to release it; the next retain makes another one at the same address (seen
// on an H100).
void reset_primary(Call& c, Device& device) {
  refuse_if(device.green_contexts > 0, CUDA_ERROR_NOT_PERMITTED);  // seen on an H100
  wait_for_device(c, device.ordinal);
  // Other threads may have made some meanwhile.
  refuse_if(device.green_contexts > 0, CUDA_ERROR_NOT_PERMITTED);
  device.lost = 0;  // a reset is what brings it back
  const std::set<Stream*> streams = device.primary == nullptr ? std::set<Stream*>() : device.primary->streams;
  destroy_primary(c, device);
  release_if(c.machine, [&](const Allocation& allocation) {
    return allocation.device == device.ordinal && allocation.owner == 0 && allocation.module == nullptr;
  });
  for (Stream* stream : streams) {
    c.machine.streams.remove(*stream);
  }
}

bool is_unused(const Device& device) {
  return device.primary != nullptr && device.retains == 0 && device.green_contexts == 0;
}

}  // namespace

Context& activate_primary(Call& c, Device& device) {
  if (device.primary != nullptr) {
    return *device.primary;
  }
  auto context = make_context(c, ContextKind::primary, whole_device(c, device), device.primary_flags);
  auto& contexts = c.machine.contexts;
  device.primary = device.primary_handle == 0 ? &contexts.add(std::move(context))
                                              : &contexts.add_at(device.primary_handle, std::move(context));
  device.primary_handle = device.primary->handle;
  show_context(*device.primary);
  return *device.primary;
}

// What its kernels work on is freed, so they come to their end first. Another thread may retain it meanwhile.
void deactivate_primary_if_unused(Call& c, Device& device) {
  if (is_unused(device)) {
    wait_for_device(c, device.ordinal);
  }
  if (is_unused(device)) {
    destroy_primary(c, device);
  }
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuDevicePrimaryCtxRetain, Call& c, CUcontext* out, Device& device) {
  give(out, activate_primary(c, device));
  ++device.retains;
}

SOFTWARE_DRIVER_CALL(cuDevicePrimaryCtxRelease, Call& c, Device& device) {
  if (device.retains == 0) {
    c.note(Misuse::double_destroy, std::uint64_t{0}, "the primary context is released more often than retained");
    refuse(CUDA_ERROR_INVALID_CONTEXT);
  }
  --device.retains;
  if (device.retains == 0 && device.green_contexts > 0) {
    c.note(Misuse::wrong_order, device.primary->handle,
           "the primary context is released while " + std::to_string(device.green_contexts) +
               " green contexts of it are alive");
  }
  return deactivate_primary_if_unused(c, device);
}
SOFTWARE_DRIVER_SAME(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)
SOFTWARE_DRIVER_ROW(cuDevicePrimaryCtxReset, reset_primary)
SOFTWARE_DRIVER_ROW(cuDevicePrimaryCtxReset_v2, reset_primary)
SOFTWARE_DRIVER_CALL(cuDevicePrimaryCtxSetFlags, Call&, Device& device, unsigned flags) {
  refuse_if(device.primary != nullptr, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  device.primary_flags = flags;
}
SOFTWARE_DRIVER_CALL(cuDevicePrimaryCtxSetFlags_v2, Call&, Device& device, unsigned flags) {
  device.primary_flags = flags;
  if (device.primary != nullptr) {
    device.primary->flags = flags;
  }
}

SOFTWARE_DRIVER_CALL(cuDevicePrimaryCtxGetState, Call&, const Device& device, unsigned* flags, int* active) {
  *flags = device.primary_flags;
  *active = device.primary != nullptr ? 1 : 0;
}
