// The cards of a machine as the tools see them: their identities, and which of them a program may use.
#pragma once

#include <cuda.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chip/chip.hpp"

namespace software_driver {

inline constexpr int first_pci_bus = 0x18;
std::string pci_bus_id(int card);  // "0000:18:00.0"
CUuuid uuid(const Profile& profile, int card);
std::string uuid_text(const CUuuid& id);  // "GPU-" and the hexadecimal digits in groups

// The cards that CUDA_VISIBLE_DEVICES names, in its order; all of them where it is not set.
std::vector<int> visible_cards(const Profile& profile, int count, const std::optional<std::string>& names);

}  // namespace software_driver
