// The management library as far as programs ask it before they use a card: every card of the machine, whatever
// CUDA_VISIBLE_DEVICES says. The library has no other functions, which bindings report as functions that are missing.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "machine/cards.hpp"
#include "machine/costs.hpp"
#include "machine/present.hpp"

namespace software_driver {
namespace {

enum Nvml { success, uninitialized, invalid_argument, insufficient_size = 7, driver_not_loaded = 9 };

unsigned users = 0;

template <class Body>
Nvml ask(Body&& body) {
  return with_machine(uninitialized, [&](Machine& machine) { return users == 0 ? uninitialized : body(machine); });
}

// The handle of a card is its number, counted from 1.
template <class Body>
Nvml ask(std::uintptr_t handle, Body&& body) {
  return ask([&](Machine& machine) {
    const bool exists = 0 < handle && handle <= static_cast<std::uintptr_t>(machine.spec.devices);
    return exists ? body(machine, static_cast<int>(handle) - 1) : invalid_argument;
  });
}

template <class Value>
Nvml put(Value* out, const Value& value) {
  return out == nullptr ? invalid_argument : (*out = value, success);
}

Nvml put_text(char* out, unsigned length, const std::string& text) {
  if (out == nullptr || length <= text.size()) {
    return out == nullptr ? invalid_argument : insufficient_size;
  }
  std::memcpy(out, text.c_str(), text.size() + 1);
  return success;
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

#define NVML(type, symbol) extern "C" __attribute__((visibility("default"))) type symbol

NVML(Nvml, nvmlInit_v2)() {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  return start(here) ? (++users, success) : driver_not_loaded;
}
NVML(Nvml, nvmlInitWithFlags)(unsigned) { return nvmlInit_v2(); }
NVML(Nvml, nvmlShutdown)() {
  return ask([](Machine&) { return --users, success; });
}
NVML(const char*, nvmlErrorString)(Nvml code) { return code == success ? "success" : "simulated NVML error"; }
// No real driver has such a version, so nobody takes it for one.
NVML(Nvml, nvmlSystemGetDriverVersion)(char* out, unsigned length) {
  return ask([&](Machine& machine) { return put_text(out, length, version_text(machine.version())); });
}
NVML(Nvml, nvmlSystemGetCudaDriverVersion_v2)(int* out) {
  return ask([&](Machine& machine) { return put(out, machine.version()); });
}
NVML(Nvml, nvmlDeviceGetCount_v2)(unsigned* out) {
  return ask([&](Machine& machine) { return put(out, static_cast<unsigned>(machine.spec.devices)); });
}
NVML(Nvml, nvmlDeviceGetHandleByIndex_v2)(unsigned index, std::uintptr_t* out) {
  const std::uintptr_t handle = std::uintptr_t{index} + 1;
  return ask(handle, [&](Machine&, int) { return put(out, handle); });
}
NVML(Nvml, nvmlDeviceGetName)(std::uintptr_t handle, char* out, unsigned length) {
  return ask(handle, [&](Machine& machine, int) { return put_text(out, length, machine.chip->profile().name); });
}
NVML(Nvml, nvmlDeviceGetUUID)(std::uintptr_t handle, char* out, unsigned length) {
  return ask(handle, [&](Machine& machine, int card) {
    return put_text(out, length, uuid_text(uuid(machine.chip->profile(), card)));
  });
}
// The total, free and used bytes.
NVML(Nvml, nvmlDeviceGetMemoryInfo)(std::uintptr_t handle, std::uint64_t (*out)[3]) {
  return ask(handle, [&](Machine& machine, int card) {
    const auto device = std::ranges::find(machine.devices, card, &Device::card);
    const std::uint64_t total = machine.spec.memory_bytes;
    const std::uint64_t used = device == machine.devices.end() ? 0 : used_memory(*device);
    const std::uint64_t found[] = {total, total - used, used};
    return out == nullptr ? invalid_argument : (std::ranges::copy(found, *out), success);
  });
}
