// Answers of a device that need no object.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <utility>

#include "handles/types.hpp"

namespace gctx {

std::string device_name(Runtime& runtime, int ordinal);
std::string device_pci_bus_id(Runtime& runtime, int ordinal);
CUuuid device_uuid(Runtime& runtime, int ordinal);
int device_attribute(Runtime& runtime, int ordinal, CUdevice_attribute attribute);

std::pair<std::size_t, std::size_t> device_memory(Runtime& runtime, int ordinal);  // free, and in total

}  // namespace gctx
