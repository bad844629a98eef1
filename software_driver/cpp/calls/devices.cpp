// Devices: their names, identities and attributes.
#include <cstdio>
#include <cstring>
#include <utility>

#include "calls/entry.hpp"
#include "machine/cards.hpp"

namespace software_driver {
namespace {

// The newest attribute in the header of each driver version.
int newest_attribute(int version) {
  return version >= 13040   ? CU_DEVICE_ATTRIBUTE_MAX - 1
         : version >= 13030 ? CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED
         : version >= 13010 ? CU_DEVICE_ATTRIBUTE_ATOMIC_REDUCTION_SUPPORTED
         : version >= 13000 ? CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED
         : version >= 12080 ? CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED
         : version >= 12050 ? CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED
                            : CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
}

CUuuid uuid_of(const Device& device) { return uuid(device.chip->profile(), device.card); }

int attribute(const Device& device, CUdevice_attribute which) {
  const Profile& card = device.chip->profile();
  const bool has_hbm = card.cc_minor == 0 && card.cc_major <= 10;
  switch (which) {
#define SOFTWARE_DRIVER_ATTRIBUTE(name, value) \
  case CU_DEVICE_ATTRIBUTE_##name:             \
    return static_cast<int>(value);
#include "abi/attributes.def"
#undef SOFTWARE_DRIVER_ATTRIBUTE
    default:
      return 0;
  }
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_GET(cuDeviceGet, &Device::ordinal)
SOFTWARE_DRIVER_GET(cuDeviceTotalMem_v2, &Device::memory)
SOFTWARE_DRIVER_GET(cuDeviceGetUuid, uuid_of)
SOFTWARE_DRIVER_GET(cuDeviceGetUuid_v2, uuid_of)
SOFTWARE_DRIVER_CALL(cuDeviceGetCount, Call& c, int* count) { give(count, static_cast<int>(c.machine.devices.size())); }

SOFTWARE_DRIVER_CALL(cuDeviceGetName, Call&, char* name, int length, const Device& device) {
  std::snprintf(name, static_cast<std::size_t>(length), "%s", device.chip->profile().name.c_str());
}

// Only Windows has them.
SOFTWARE_DRIVER_CALL(cuDeviceGetLuid, Call&) { refuse(CUDA_ERROR_NOT_SUPPORTED); }

SOFTWARE_DRIVER_CALL(cuDeviceGetAttribute, Call& c, int* value, CUdevice_attribute which, const Device& device) {
  refuse_if(which < 1 || which > newest_attribute(c.version()), CUDA_ERROR_INVALID_VALUE);
  give(value, attribute(device, which));
}

SOFTWARE_DRIVER_CALL(cuDeviceComputeCapability, Call&, int* major, int* minor, const Device& device) {
  *major = device.chip->profile().cc_major;
  *minor = device.chip->profile().cc_minor;
}

SOFTWARE_DRIVER_CALL(cuDeviceGetPCIBusId, Call&, char* text, int length, const Device& device) {
  const std::string id = pci_bus_id(device.card);
  refuse_if(length <= static_cast<int>(id.size()), CUDA_ERROR_INVALID_VALUE);
  std::memcpy(text, id.c_str(), id.size() + 1);
}

SOFTWARE_DRIVER_CALL(cuDeviceGetByPCIBusId, Call& c, CUdevice* out, const char* text) {
  for (const Device& device : c.machine.devices) {
    if (pci_bus_id(device.card) == text) {
      return give(out, device.ordinal);
    }
  }
  refuse(CUDA_ERROR_INVALID_DEVICE);
}

SOFTWARE_DRIVER_CALL(cuDeviceGetExecAffinitySupport, Call&, int* value, CUexecAffinityType, const Device&) {
  *value = 0;
}

SOFTWARE_DRIVER_CALL(cuDeviceCanAccessPeer, Call&, int* value, const Device& device, const Device& peer) {
  give(value, device.ordinal == peer.ordinal ? 0 : 1);
}

SOFTWARE_DRIVER_CALL(cuDeviceGetP2PAttribute, Call&, int* value, CUdevice_P2PAttribute which, const Device& device,
                     const Device& peer) {
  refuse_if(device.ordinal == peer.ordinal, CUDA_ERROR_INVALID_DEVICE);
  const bool offered =
      which == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED || which == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
  give(value, offered ? 1 : 0);
}
