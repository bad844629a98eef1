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

#include "machine/cards.hpp"
#include "machine/costs.hpp"
#include "machine/present.hpp"

namespace gctx::sim {

struct NvmlCard {};

namespace {

std::array<NvmlCard, max_devices> cards;  // their addresses are the handles
unsigned users = 0;

// Runs a body with the machine if the library is in use.
template <class Body>
Nvml with_machine(Body&& body) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  return users == 0 || !here.machine ? Nvml::uninitialized : body(*here.machine);
}

// ... and with the number of a card.
template <class Body>
Nvml with_card(NvmlDevice handle, Body&& body) {
  return with_machine([&](Machine& machine) {
    for (int card = 0; card < machine.spec.devices; ++card) {
      if (&cards[static_cast<std::size_t>(card)] == handle) {
        return body(machine, card);
      }
    }
    return Nvml::invalid_argument;
  });
}

template <class Value, class Given>
Nvml give(Value* out, const Given& value) {
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
Nvml find_card(NvmlDevice* out, IsIt&& is_it) {
  return with_machine([&](Machine& machine) {
    for (int card = 0; card < machine.spec.devices; ++card) {
      if (is_it(machine, card)) {
        return give(out, &cards[static_cast<std::size_t>(card)]);
      }
    }
    return Nvml::not_found;
  });
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

Nvml give_clock(NvmlDevice handle, int clock, unsigned* mhz) {
  return with_card(handle, [&](Machine& machine, int) {
    const Profile& profile = machine.chip->profile();
    constexpr int memory_clock = 2;
    constexpr int newest_clock = 3;
    if (clock < 0 || clock > newest_clock) {
      return Nvml::invalid_argument;
    }
    return give(mhz, (clock == memory_clock ? profile.memory_clock_khz : profile.clock_khz) / 1000);
  });
}

// No sensor, no measurement.
Nvml not_modelled(NvmlDevice handle) {
  return with_card(handle, [](Machine&, int) { return Nvml::not_supported; });
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {
namespace gctx::sim {

Nvml nvmlInitWithFlags(unsigned) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!start(here)) {
    return Nvml::driver_not_loaded;
  }
  ++users;
  return Nvml::success;
}
Nvml nvmlInit_v2() { return nvmlInitWithFlags(0); }
Nvml nvmlInit() { return nvmlInitWithFlags(0); }

Nvml nvmlShutdown() {
  return with_machine([](Machine&) {
    --users;
    return Nvml::success;
  });
}

const char* nvmlErrorString(Nvml code) {
  switch (code) {
    case Nvml::success:
      return "success";
    case Nvml::uninitialized:
      return "nvmlInit was not called";
    case Nvml::invalid_argument:
      return "an argument is not valid";
    case Nvml::not_supported:
      return "not supported by the simulated device";
    case Nvml::not_found:
      return "no such device";
    case Nvml::insufficient_size:
      return "the buffer is too small";
    case Nvml::driver_not_loaded:
      return "no machine is simulated";
    case Nvml::version_mismatch:
      return "the version of a structure is not known";
  }
  return "unknown error";
}

// No driver has such a number, so nobody takes it for one.
Nvml nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return with_machine([&](Machine& machine) { return give_text(text, length, version_text(machine.version())); });
}
Nvml nvmlSystemGetDriverBranch(void*, unsigned) {
  return with_machine([](Machine&) { return Nvml::not_supported; });
}
Nvml nvmlSystemGetNVMLVersion(char* text, unsigned length) { return nvmlSystemGetDriverVersion(text, length); }
Nvml nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return with_machine([&](Machine& machine) { return give(version, machine.version()); });
}
Nvml nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

Nvml nvmlDeviceGetCount_v2(unsigned* count) {
  return with_machine([&](Machine& machine) { return give(count, machine.spec.devices); });
}
Nvml nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

Nvml nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  const Nvml found = find_card(device, [&](Machine&, int card) { return static_cast<unsigned>(card) == index; });
  return found == Nvml::not_found ? Nvml::invalid_argument : found;
}
Nvml nvmlDeviceGetHandleByIndex(unsigned index, NvmlDevice* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

Nvml nvmlDeviceGetHandleByUUID(const char* text, NvmlDevice* device) {
  if (text == nullptr) {
    return Nvml::invalid_argument;
  }
  return find_card(device,
                   [&](Machine& machine, int card) { return uuid_text(uuid(machine.chip->profile(), card)) == text; });
}

Nvml nvmlDeviceGetHandleByPciBusId_v2(const char* text, NvmlDevice* device) {
  if (text == nullptr) {
    return Nvml::invalid_argument;
  }
  // The domain has four digits or eight.
  return find_card(device, [&](Machine&, int card) {
    const std::string id = pci_bus_id(card);
    return id == text || "0000" + id == text;
  });
}

Nvml nvmlDeviceGetIndex(NvmlDevice device, unsigned* index) {
  return with_card(device, [&](Machine&, int card) { return give(index, card); });
}
Nvml nvmlDeviceGetMinorNumber(NvmlDevice device, unsigned* number) { return nvmlDeviceGetIndex(device, number); }

Nvml nvmlDeviceGetName(NvmlDevice device, char* text, unsigned length) {
  return with_card(device,
                   [&](Machine& machine, int) { return give_text(text, length, machine.chip->profile().name); });
}

Nvml nvmlDeviceGetUUID(NvmlDevice device, char* text, unsigned length) {
  return with_card(device, [&](Machine& machine, int card) {
    return give_text(text, length, uuid_text(uuid(machine.chip->profile(), card)));
  });
}

Nvml nvmlDeviceGetPciInfo_v3(NvmlDevice device, NvmlPciInfo* info) {
  return with_card(device, [&](Machine&, int card) {
    NvmlPciInfo found{};
    const std::string id = pci_bus_id(card);
    std::snprintf(found.legacy_bus_id, sizeof found.legacy_bus_id, "%s", id.c_str());
    std::snprintf(found.bus_id, sizeof found.bus_id, "0000%s", id.c_str());
    found.bus = static_cast<std::uint32_t>(first_pci_bus + card);
    return give(info, found);
  });
}

Nvml nvmlDeviceGetMemoryInfo(NvmlDevice device, NvmlMemory* memory) {
  return with_card(device, [&](Machine& machine, int card) { return give(memory, memory_of(machine, card)); });
}

Nvml nvmlDeviceGetMemoryInfo_v2(NvmlDevice device, NvmlMemory2* memory) {
  return with_card(device, [&](Machine& machine, int card) {
    constexpr std::uint32_t version = sizeof(NvmlMemory2) | 2U << 24;
    if (memory != nullptr && memory->version != version) {
      return Nvml::version_mismatch;
    }
    const NvmlMemory found = memory_of(machine, card);
    return give(memory, NvmlMemory2{version, found.total, 0, found.free, found.used});
  });
}

Nvml nvmlDeviceGetCudaComputeCapability(NvmlDevice device, int* major, int* minor) {
  return with_card(device, [&](Machine& machine, int) {
    const Profile& profile = machine.chip->profile();
    return minor == nullptr ? Nvml::invalid_argument
                            : std::max(give(minor, profile.cc_minor), give(major, profile.cc_major));
  });
}

Nvml nvmlDeviceGetClockInfo(NvmlDevice device, int clock, unsigned* mhz) { return give_clock(device, clock, mhz); }
Nvml nvmlDeviceGetMaxClockInfo(NvmlDevice device, int clock, unsigned* mhz) { return give_clock(device, clock, mhz); }

Nvml nvmlDeviceGetMigMode(NvmlDevice device, unsigned* current, unsigned* pending) {
  return with_card(device, [&](Machine&, int) { return std::max(give(current, 0), give(pending, 0)); });
}

Nvml nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice device, unsigned* count, NvmlProcess* processes) {
  return with_card(device, [&](Machine& machine, int card) {
    if (count == nullptr) {
      return Nvml::invalid_argument;
    }
    const Device* own = device_of(machine, card);
    const unsigned room = std::exchange(*count, own != nullptr && own->primary != nullptr ? 1U : 0U);
    if (*count > room) {
      return Nvml::insufficient_size;
    }
    constexpr std::uint32_t none = 0xffffffff;
    return *count == 0
               ? Nvml::success
               : give(processes, NvmlProcess{static_cast<std::uint32_t>(getpid()), used_memory(*own), none, none});
  });
}

Nvml nvmlDeviceGetUtilizationRates(NvmlDevice device, NvmlUtilization*) { return not_modelled(device); }
Nvml nvmlDeviceGetPowerUsage(NvmlDevice device, unsigned*) { return not_modelled(device); }
Nvml nvmlDeviceGetTemperature(NvmlDevice device, int, unsigned*) { return not_modelled(device); }

}  // namespace gctx::sim
}  // extern "C"
