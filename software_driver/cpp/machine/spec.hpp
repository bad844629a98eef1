// What a simulated machine is made of, read from one line: <profile>[@<major>.<minor>][,devices=N][,key=value...].
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "machine/unknown.hpp"

namespace software_driver {

// The driver versions that are modelled, as cuDriverGetVersion says them.
inline constexpr std::array driver_versions{12030, 12040, 12050, 12060, 12070, 12080, 12090,
                                            13000, 13010, 13020, 13030, 13040, 13050};
std::string version_text(int version);  // "13.1"
inline constexpr int max_devices = 64;

struct Spec {
  std::string text;  // as it was given
  std::string profile = "h200";
  int driver_version = 13000;  // as cuDriverGetVersion says it
  int devices = 1;
  int connections = 8;                 // hardware queues; the documented default of CUDA_DEVICE_MAX_CONNECTIONS
  unsigned max_contexts = 0;           // 0: as many as fit into memory
  std::uint64_t memory_bytes = 0;      // 0: as the profile says
  std::uint64_t resident_bytes = 0;    // that device memory may take of the host's; 0: half of it
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES, where it is set
  UnknownPolicy unknown = UnknownPolicy::error;
  unsigned patience_ms = 5000;  // for kernels that wait for what nobody does

  // Throws std::invalid_argument with a message for a person.
  static Spec parse(std::string_view text);
};

}  // namespace software_driver
