// The part of NVIDIA's management library that is modelled: the layout of its structures, its codes and functions.
#pragma once

#include <cstdint>

namespace software_driver {

struct NvmlCard;
using NvmlDevice = NvmlCard*;  // opaque

struct NvmlPciInfo {
  char legacy_bus_id[16];
  std::uint32_t domain;
  std::uint32_t bus;
  std::uint32_t device;
  std::uint32_t pci_device_id;
  std::uint32_t pci_subsystem_id;
  char bus_id[32];
};

struct NvmlMemory {
  std::uint64_t total;
  std::uint64_t free;
  std::uint64_t used;
};

struct NvmlMemory2 {
  std::uint32_t version;  // its size, and 2 in the highest byte
  std::uint64_t total;
  std::uint64_t reserved;
  std::uint64_t free;
  std::uint64_t used;
};

struct NvmlUtilization {
  std::uint32_t gpu;
  std::uint32_t memory;
};

struct NvmlProcess {
  std::uint32_t pid;
  std::uint64_t used;
  std::uint32_t gpu_instance;
  std::uint32_t compute_instance;
};

enum class Nvml : int {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7,
  driver_not_loaded = 9,
  version_mismatch = 25
};

}  // namespace software_driver

extern "C" {
#define SOFTWARE_DRIVER_NVML(symbol, parameters) \
  __attribute__((visibility("default"))) software_driver::Nvml symbol parameters;
namespace software_driver {
#include "abi/nvml.def"
__attribute__((visibility("default"))) const char* nvmlErrorString(Nvml code);
}  // namespace software_driver
#undef SOFTWARE_DRIVER_NVML
}
