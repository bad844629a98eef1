#include "handles/device.hpp"

#include "handles/context.hpp"
#include "handles/scope.hpp"

namespace gctx {

std::string device_name(Runtime& runtime, int ordinal) {
  char name[256] = {};
  GCTX_CALL(runtime.driver(), cuDeviceGetName, name, static_cast<int>(sizeof(name)), runtime.device(ordinal));
  return name;
}

std::string device_pci_bus_id(Runtime& runtime, int ordinal) {
  char id[64] = {};
  GCTX_CALL(runtime.driver(), cuDeviceGetPCIBusId, id, static_cast<int>(sizeof(id)), runtime.device(ordinal));
  return id;
}

CUuuid device_uuid(Runtime& runtime, int ordinal) {
  CUuuid uuid{};
  GCTX_CALL(runtime.driver(), cuDeviceGetUuid, &uuid, runtime.device(ordinal));
  return uuid;
}

int device_attribute(Runtime& runtime, int ordinal, CUdevice_attribute attribute) {
  int value = 0;
  GCTX_CALL(runtime.driver(), cuDeviceGetAttribute, &value, attribute, runtime.device(ordinal));
  return value;
}

std::pair<std::size_t, std::size_t> device_memory(Runtime& runtime, int ordinal) {
  CurrentScope scope(*primary_context(runtime, ordinal));
  std::pair<std::size_t, std::size_t> memory;
  GCTX_CALL(runtime.driver(), cuMemGetInfo, &memory.first, &memory.second);
  scope.leave();
  return memory;
}

}  // namespace gctx
