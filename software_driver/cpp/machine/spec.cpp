// Reads the one-line description of a simulated machine.
#include "machine/spec.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "chip/chip.hpp"

namespace software_driver {
namespace {

constexpr int max_connections = 32;

std::uint64_t number(std::string_view text, std::string_view what) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument("'" + std::string(text) + "' is not a number for " + std::string(what));
  }
  return value;
}

std::uint64_t number_within(std::string_view text, std::string_view what, std::uint64_t low, std::uint64_t high) {
  const std::uint64_t value = number(text, what);
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(what) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
                                ", not " + std::string(text));
  }
  return value;
}

template <class List, class Name>
std::string joined(const List& list, Name&& name) {
  std::string text;
  for (const auto& one : list) {
    text += (text.empty() ? "" : ", ") + name(one);
  }
  return text;
}

int driver_version(std::string_view text) {
  const auto dot = text.find('.');
  if (dot == std::string_view::npos) {
    throw std::invalid_argument("a driver version is MAJOR.MINOR, not '" + std::string(text) + "': known are " +
                                joined(driver_versions, version_text));
  }
  const auto major = static_cast<int>(number_within(text.substr(0, dot), "the driver's major version", 0, 99));
  const auto minor = static_cast<int>(number_within(text.substr(dot + 1), "the driver's minor version", 0, 99));
  const int version = major * 1000 + minor * 10;
  if (std::ranges::find(driver_versions, version) == driver_versions.end()) {
    throw std::invalid_argument("driver " + std::string(text) + " is not modelled: known are " +
                                joined(driver_versions, version_text));
  }
  return version;
}

UnknownPolicy unknown_policy(std::string_view text) {
  constexpr std::pair<std::string_view, UnknownPolicy> policies[] = {
      {"error", UnknownPolicy::error}, {"warn", UnknownPolicy::warn}, {"ignore", UnknownPolicy::ignore}};
  const auto* const found = std::ranges::find(policies, text, &std::pair<std::string_view, UnknownPolicy>::first);
  if (found == std::end(policies)) {
    throw std::invalid_argument("unknown must be error, warn or ignore, not '" + std::string(text) + "'");
  }
  return found->second;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Spec Spec::parse(std::string_view text) {
  Spec spec;
  spec.text = text;
  // As the real driver does it; the machine's own keys go before.
  if (const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")) {
    spec.connections = std::clamp(std::atoi(connections), 1, max_connections);
  }
  if (const char* names = std::getenv("CUDA_VISIBLE_DEVICES")) {
    spec.visible = names;
  }
  bool first = true;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) {
      if (!first) {
        throw std::invalid_argument("'" + std::string(item) + "' is not key=value");
      }
      const auto at = item.find('@');
      const std::string_view name = item.substr(0, at);
      if (!name.empty()) {
        spec.profile = name;
      }
      if (at != std::string_view::npos) {
        spec.driver_version = software_driver::driver_version(item.substr(at + 1));
      }
    } else {
      const std::string_view key = item.substr(0, equals);
      const std::string_view value = item.substr(equals + 1);
      if (key == "devices") {
        spec.devices = static_cast<int>(number_within(value, key, 0, max_devices));
      } else if (key == "driver") {
        spec.driver_version = software_driver::driver_version(value);
      } else if (key == "connections") {
        spec.connections = static_cast<int>(number_within(value, key, 1, max_connections));
      } else if (key == "max_contexts") {
        spec.max_contexts = static_cast<unsigned>(number_within(value, key, 1, 1000000));
      } else if (key == "memory") {
        spec.memory_bytes = number_within(value, key, 1 << 20, std::uint64_t{1} << 46);
      } else if (key == "resident") {
        spec.resident_bytes = number_within(value, key, 1 << 20, std::uint64_t{1} << 46);
      } else if (key == "patience_ms") {
        spec.patience_ms = static_cast<unsigned>(number_within(value, key, 1, 1000000000));
      } else if (key == "visible" && value == "all") {
        spec.visible.reset();
      } else if (key == "unknown") {
        spec.unknown = unknown_policy(value);
      } else {
        throw std::invalid_argument("unknown key '" + std::string(key) +
                                    "': known are devices, driver, connections, max_contexts, memory, resident, "
                                    "visible=all, unknown, patience_ms");
      }
    }
    first = false;
  }
  if (find_profile(spec.profile) == nullptr) {
    throw std::invalid_argument("no card '" + spec.profile + "' is modelled: known are " +
                                joined(profiles(), [](const Profile& profile) { return profile.key; }));
  }
  return spec;
}

}  // namespace software_driver
