// Costs of green contexts in device memory (docs/appendix/hardware-facts.md, "Lifetime").
#pragma once

#include <cstdint>

#include "machine/objects.hpp"

namespace software_driver {

inline constexpr std::uint64_t live_context_bytes = std::uint64_t{4} << 20;  // recorded: `measured`
// Never comes back before the device is reset.
inline constexpr std::uint64_t lost_context_bytes = std::uint64_t{4} << 20;

inline std::uint64_t used_memory(const Device& device) {
  return device.allocated + device.green_contexts * live_context_bytes + device.lost;
}

inline bool has_room(const Device& device, std::uint64_t bytes) {
  const std::uint64_t used = used_memory(device);
  return used <= device.memory && bytes <= device.memory - used;
}

}  // namespace software_driver
