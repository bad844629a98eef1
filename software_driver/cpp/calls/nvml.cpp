// The management library as far as tools ask it first. It sees every card of the machine, whatever
// CUDA_VISIBLE_DEVICES says, and of the processes this one. What is not modelled is NOT_SUPPORTED, as on cards that
// lack a sensor.
#include "abi/nvml.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "abi/abi.hpp"
#include "machine/cards.hpp"
#include "machine/costs.hpp"
#include "machine/present.hpp"

namespace software_driver {

struct NvmlCard {};

namespace {

std::array<NvmlCard, max_devices> cards;  // their addresses are the handles
unsigned users = 0;

// The frame of the calls: their bodies run with the machine, if the library is in use, and with the number of the card
// that they are asked of.
template <auto body, class Signature>
struct Framed;
template <auto body, class... Given>
struct Framed<body, Nvml(Given...)> {
  static Nvml call(Given... given) {
    Present& here = present();
    const std::scoped_lock lock(here.mutex);
    return users == 0 || !here.machine ? Nvml::uninitialized : run(*here.machine, body, given...);
  }
  template <class... Parameters>
  static Nvml run(Machine& machine, Nvml (*)(Machine&, Parameters...), Parameters... given) {
    return body(machine, given...);
  }
  template <class... Parameters>
  static Nvml run(Machine& machine, Nvml (*)(Machine&, int, Parameters...), NvmlDevice handle, Parameters... given) {
    for (int card = 0; card < machine.spec.devices; ++card) {
      if (&cards[static_cast<std::size_t>(card)] == handle) {
        return body(machine, card, given...);
      }
    }
    return Nvml::invalid_argument;
  }
};

template <class Value, class Given>
Nvml put(Value* out, const Given& value) {
  if (out == nullptr) {
    return Nvml::invalid_argument;
  }
  *out = static_cast<Value>(value);
  return Nvml::success;
}

Nvml give_text(char* out, unsigned length, const std::string& text) {
  if (out == nullptr) {
    return Nvml::invalid_argument;
  }
  if (length <= text.size()) {
    return Nvml::insufficient_size;
  }
  std::memcpy(out, text.c_str(), text.size() + 1);
  return Nvml::success;
}

// The first card of which something is so.
template <class IsIt>
Nvml find_card(const Machine& machine, NvmlDevice* out, IsIt&& is_it) {
  for (int card = 0; card < machine.spec.devices; ++card) {
    if (is_it(card)) {
      return put(out, &cards[static_cast<std::size_t>(card)]);
    }
  }
  return Nvml::not_found;
}

// As the program sees the card; null if it does not.
const Device* device_of(const Machine& machine, int card) {
  const auto found = std::ranges::find(machine.devices, card, &Device::card);
  return found == machine.devices.end() ? nullptr : &*found;
}

NvmlMemory memory_of(const Machine& machine, int card) {
  const Device* device = device_of(machine, card);
  const std::uint64_t used = device == nullptr ? 0 : used_memory(*device);
  return {machine.spec.memory_bytes, machine.spec.memory_bytes - used, used};
}

Nvml give_clock(Machine& machine, int, int clock, unsigned* mhz) {
  const Profile& profile = machine.chip->profile();
  constexpr int memory_clock = 2;
  constexpr int newest_clock = 3;
  if (clock < 0 || clock > newest_clock) {
    return Nvml::invalid_argument;
  }
  return put(mhz, (clock == memory_clock ? profile.memory_clock_khz : profile.clock_khz) / 1000);
}

// No driver has such a number, so nobody takes it for one.
Nvml give_driver_version(Machine& machine, char* text, unsigned length) {
  return give_text(text, length, version_text(machine.version()));
}

Nvml give_version(Machine& machine, int* version) { return put(version, machine.version()); }
Nvml give_count(Machine& machine, unsigned* count) { return put(count, machine.spec.devices); }
Nvml give_number(Machine&, int card, unsigned* number) { return put(number, card); }

Nvml find_by_index(Machine& machine, unsigned index, NvmlDevice* device) {
  const Nvml found = find_card(machine, device, [&](int card) { return static_cast<unsigned>(card) == index; });
  return found == Nvml::not_found ? Nvml::invalid_argument : found;
}

// No sensor, no measurement.
template <class... Given>
Nvml not_modelled(Machine&, Given...) {
  return Nvml::not_supported;
}

Nvml begin_use() {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!start(here)) {
    return Nvml::driver_not_loaded;
  }
  ++users;
  return Nvml::success;
}

constexpr std::pair<Nvml, const char*> nvml_texts[] = {
    {Nvml::success, "success"},
    {Nvml::uninitialized, "nvmlInit was not called"},
    {Nvml::invalid_argument, "an argument is not valid"},
    {Nvml::not_supported, "not supported by the simulated device"},
    {Nvml::not_found, "no such device"},
    {Nvml::insufficient_size, "the buffer is too small"},
    {Nvml::driver_not_loaded, "no machine is simulated"},
    {Nvml::version_mismatch, "the version of a structure is not known"},
};

}  // namespace
}  // namespace software_driver

using namespace software_driver;

// As SOFTWARE_DRIVER_CALL and SOFTWARE_DRIVER_ROW define functions of the driver.
#define SOFTWARE_DRIVER_NVML_CALL(symbol, ...)       \
  static Nvml body_of_##symbol(__VA_ARGS__);         \
  SOFTWARE_DRIVER_NVML_ROW(symbol, body_of_##symbol) \
  static Nvml body_of_##symbol(__VA_ARGS__)
#define SOFTWARE_DRIVER_NVML_ROW(symbol, ...) \
  SOFTWARE_DRIVER_EXPORT(symbol, symbol, &Framed<__VA_ARGS__, decltype(symbol)>::call)

namespace software_driver {

Nvml nvmlInitWithFlags(unsigned) { return begin_use(); }
Nvml nvmlInit_v2() { return begin_use(); }
Nvml nvmlInit() { return begin_use(); }

const char* nvmlErrorString(Nvml code) {
  const auto* found = std::ranges::find(nvml_texts, code, &std::pair<Nvml, const char*>::first);
  return found == std::end(nvml_texts) ? "unknown error" : found->second;
}

SOFTWARE_DRIVER_NVML_CALL(nvmlShutdown, Machine&) {
  --users;
  return Nvml::success;
}

SOFTWARE_DRIVER_NVML_ROW(nvmlSystemGetDriverVersion, give_driver_version)
SOFTWARE_DRIVER_NVML_ROW(nvmlSystemGetNVMLVersion, give_driver_version)
SOFTWARE_DRIVER_NVML_ROW(nvmlSystemGetDriverBranch, not_modelled<void*, unsigned>)
SOFTWARE_DRIVER_NVML_ROW(nvmlSystemGetCudaDriverVersion, give_version)
SOFTWARE_DRIVER_NVML_ROW(nvmlSystemGetCudaDriverVersion_v2, give_version)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetCount, give_count)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetCount_v2, give_count)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetHandleByIndex, find_by_index)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetHandleByIndex_v2, find_by_index)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetIndex, give_number)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetMinorNumber, give_number)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetClockInfo, give_clock)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetMaxClockInfo, give_clock)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetUtilizationRates, not_modelled<int, NvmlUtilization*>)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetPowerUsage, not_modelled<int, unsigned*>)
SOFTWARE_DRIVER_NVML_ROW(nvmlDeviceGetTemperature, not_modelled<int, int, unsigned*>)

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetHandleByUUID, Machine& machine, const char* text, NvmlDevice* device) {
  const auto is_it = [&](int card) { return uuid_text(uuid(machine.chip->profile(), card)) == text; };
  return text == nullptr ? Nvml::invalid_argument : find_card(machine, device, is_it);
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetHandleByPciBusId_v2, Machine& machine, const char* text, NvmlDevice* device) {
  // The domain has four digits or eight.
  const auto is_it = [&](int card) { return pci_bus_id(card) == text || "0000" + pci_bus_id(card) == text; };
  return text == nullptr ? Nvml::invalid_argument : find_card(machine, device, is_it);
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetName, Machine& machine, int, char* text, unsigned length) {
  return give_text(text, length, machine.chip->profile().name);
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetUUID, Machine& machine, int card, char* text, unsigned length) {
  return give_text(text, length, uuid_text(uuid(machine.chip->profile(), card)));
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetPciInfo_v3, Machine&, int card, NvmlPciInfo* info) {
  NvmlPciInfo found{};
  const std::string id = pci_bus_id(card);
  std::snprintf(found.legacy_bus_id, sizeof found.legacy_bus_id, "%s", id.c_str());
  std::snprintf(found.bus_id, sizeof found.bus_id, "0000%s", id.c_str());
  found.bus = static_cast<std::uint32_t>(first_pci_bus + card);
  return put(info, found);
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetMemoryInfo, Machine& machine, int card, NvmlMemory* memory) {
  return put(memory, memory_of(machine, card));
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetMemoryInfo_v2, Machine& machine, int card, NvmlMemory2* memory) {
  constexpr std::uint32_t version = sizeof(NvmlMemory2) | 2U << 24;
  if (memory != nullptr && memory->version != version) {
    return Nvml::version_mismatch;
  }
  const NvmlMemory found = memory_of(machine, card);
  return put(memory, NvmlMemory2{version, found.total, 0, found.free, found.used});
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetCudaComputeCapability, Machine& machine, int, int* major, int* minor) {
  const Profile& profile = machine.chip->profile();
  return minor == nullptr ? Nvml::invalid_argument
                          : std::max(put(minor, profile.cc_minor), put(major, profile.cc_major));
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetMigMode, Machine&, int, unsigned* current, unsigned* pending) {
  return std::max(put(current, 0), put(pending, 0));
}

SOFTWARE_DRIVER_NVML_CALL(nvmlDeviceGetComputeRunningProcesses_v3, Machine& machine, int card, unsigned* count,
                          NvmlProcess* processes) {
  if (count == nullptr) {
    return Nvml::invalid_argument;
  }
  const Device* own = device_of(machine, card);
  const unsigned room = std::exchange(*count, own != nullptr && own->primary != nullptr ? 1U : 0U);
  if (*count > room) {
    return Nvml::insufficient_size;
  }
  constexpr std::uint32_t none = 0xffffffff;
  const NvmlProcess self{static_cast<std::uint32_t>(getpid()), own == nullptr ? 0 : used_memory(*own), none, none};
  return *count == 0 ? Nvml::success : put(processes, self);
}

}  // namespace software_driver
