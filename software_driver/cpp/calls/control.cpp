// The control interface: everything a test does with the software driver apart from CUDA calls.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "abi/cuda_software_driver.h"
#include "calls/allocations.hpp"
#include "calls/contexts.hpp"
#include "chip/chip.hpp"
#include "machine/json.hpp"
#include "machine/observer.hpp"
#include "machine/present.hpp"
#include "machine/reports.hpp"
#include "machine/threads.hpp"
#include "ptx/program.hpp"

namespace {

using namespace software_driver;

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

template <class OfMachine>
const char* text_of(OfMachine&& of_machine) {
  return keep(with_machine(std::string("null"), of_machine));
}

std::string calls_json(const Machine& machine) {
  std::map<std::string_view, std::uint64_t> counts;
  for (std::size_t i = 0; i < function_count; ++i) {
    if (machine.calls[i] != 0) {
      counts[info(static_cast<Fn>(i)).base] += machine.calls[i];
    }
  }
  JsonWriter json;
  json.begin_object();
  for (const auto& [name, count] : counts) {
    json.members(name, count);
  }
  return json.end_object().text();
}

std::string machine_json(const Machine& machine) {
  return JsonWriter()
      .object("simulated", true, "profile", machine.spec.profile, "name", machine.chip->profile().name,
              "driver_version", machine.version(), "devices", machine.devices.size(), "connections",
              machine.spec.connections)
      .text();
}

const char* word(Known known) { return known_words[static_cast<std::size_t>(known)]; }

// What is listed with the model of a chip is done by it.
constexpr Behaviour other_behaviours[] = {
#define SOFTWARE_DRIVER_BEHAVIOUR(subject, drivers, known, source, text) {subject, drivers, text, Known::known, source},
#include "calls/behaviours.def"
#undef SOFTWARE_DRIVER_BEHAVIOUR
};

int add_rule(const char* function, int code, FaultRule rule) {
  rule.function = function == nullptr ? "" : function;
  rule.code = static_cast<CUresult>(code);
  if ((rule.function != "*" && !is_function_name(rule.function)) || rule.code == CUDA_SUCCESS) {
    return -1;
  }
  return with_machine(-1, [&](Machine& machine) {
    machine.faults.rules.push_back(std::move(rule));
    return 0;
  });
}

}  // namespace

extern "C" {

int softwareDriverConfigure(const char* spec, char* error, size_t error_size) {
  try {
    Present& here = present();
    std::shared_ptr<Machine> old;  // dropped after the lock
    const std::scoped_lock lock(here.mutex);
    old = std::move(here.machine);
    try {
      configure(here, spec == nullptr ? "" : spec);
    } catch (...) {
      here.machine = std::move(old);
      throw;
    }
    return 0;
  } catch (const std::exception& problem) {
    if (error != nullptr && error_size > 0) {
      std::strncpy(error, problem.what(), error_size - 1);
      error[error_size - 1] = '\0';
    }
    return -1;
  }
}

int softwareDriverReset(void) {
  const auto spec =
      with_machine(std::optional<std::string>(), [](Machine& machine) { return std::optional(machine.spec.text); });
  return spec ? softwareDriverConfigure(spec->c_str(), nullptr, 0) : -1;
}

int softwareDriverPush(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  here.aside.push_back(std::move(here.machine));
  return 0;
}

int softwareDriverPop(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (here.aside.empty()) {
    return -1;
  }
  here.machine = std::move(here.aside.back());
  here.aside.pop_back();
  return 0;
}

const char* softwareDriverLedger(void) { return text_of(ledger_json); }
const char* softwareDriverCalls(void) { return text_of(calls_json); }
const char* softwareDriverMemory(void) { return text_of(memory_json); }
const char* softwareDriverMachine(void) { return text_of(machine_json); }
const char* softwareDriverFaults(void) {
  return text_of([](const Machine& machine) { return faults_json(machine.faults); });
}

const char* softwareDriverProfiles(void) {
  JsonWriter json;
  json.array(profiles(), [&](const Profile& profile) {
    json.begin_object().members("key", profile.key, "name", profile.name, "compute_capability",
                                std::to_string(profile.cc_major) + "." + std::to_string(profile.cc_minor), "sm_count",
                                Chip(profile).sm_count(), "min_partition", profile.min_partition, "alignment",
                                profile.alignment, "memory_bytes", profile.memory_bytes, "locality_domains",
                                profile.locality_domains, "layout", word(profile.layout));
    json.key("sms_per_gpc").array(profile.sms_per_gpc, [&](int sms) { json.value(sms); });
    json.end_object();
  });
  return keep(json.text());
}

const char* softwareDriverDrivers(void) {
  JsonWriter json;
  return keep(json.array(driver_versions, [&](int version) { json.value(version_text(version)); }).text());
}

const char* softwareDriverExplain(void) {
  JsonWriter json;
  const auto write = [&](const Behaviour& one) {
    json.object("subject", one.subject, "drivers", one.drivers, "behaviour", one.text, "known", word(one.known),
                "source", one.source);
  };
  json.begin_array();
  std::ranges::for_each(chip_behaviours(), write);
  std::ranges::for_each(other_behaviours, write);
  return keep(json.end_array().text());
}

const char* softwareDriverInstructions(void) {
  JsonWriter json;
  json.begin_array();
  for (const ptx::KnownInstruction& one : ptx::known_instructions()) {
    json.object("name", one.name, "variants", one.variants, "exact", one.is_exact);
  }
  return keep(json.end_array().text());
}

int softwareDriverFailNth(const char* function, unsigned long long nth, int code) {
  return nth == 0 ? -1 : add_rule(function, code, {.when = FaultRule::When::nth, .remaining = nth});
}

int softwareDriverFailEvery(const char* function, int code) { return add_rule(function, code, {}); }

int softwareDriverFailRandomly(const char* function, double probability, unsigned long long seed, int code) {
  if (!(probability >= 0 && probability <= 1)) {
    return -1;
  }
  return add_rule(function, code,
                  {.when = FaultRule::When::by_chance, .probability = probability, .random = std::mt19937_64(seed)});
}

void softwareDriverLimitContexts(unsigned count) {
  with_machine(0U, [&](Machine& machine) { return machine.faults.context_limit = count; });
}

void softwareDriverClearFaults(void) {
  with_machine(0U, [](Machine& machine) {
    machine.faults.rules.clear();
    return machine.faults.context_limit = machine.spec.max_contexts;
  });
}

int softwareDriverKernel(const char* name, softwareDriverKernelFunction function, void* user,
                         const softwareDriverKernelCost* cost, const size_t* argument_sizes, unsigned argument_count) {
  if (name == nullptr || cost == nullptr || !(cost->throughput <= 1)) {
    return -1;
  }
  return with_machine(-1, [&](Machine& machine) {
    RegisteredKernel kernel{.function = function, .user = user, .cost = *cost};
    kernel.arguments_known = argument_sizes != nullptr;
    if (argument_sizes != nullptr) {
      kernel.argument_sizes.assign(argument_sizes, argument_sizes + argument_count);
    }
    machine.kernels_by_name[name] = std::move(kernel);
    return 0;
  });
}

int softwareDriverKernelAccess(const char* name, const unsigned* reads, unsigned read_count, const unsigned* writes,
                               unsigned write_count) {
  const auto list = [](const unsigned* numbers, unsigned count) {
    using List = std::set<std::size_t>;
    return numbers == nullptr ? std::nullopt : std::make_optional<List>(numbers, numbers + count);
  };
  return with_machine(-1, [&](Machine& machine) {
    const auto kernel = machine.kernels_by_name.find(name == nullptr ? "" : name);
    if (kernel == machine.kernels_by_name.end()) {
      return -1;
    }
    kernel->second.reads = list(reads, read_count);
    kernel->second.writes = list(writes, write_count);
    return 0;
  });
}

void* softwareDriverView(uint64_t address, size_t size) {
  return with_machine(static_cast<void*>(nullptr), [&](Machine& machine) -> void* {
    const Bytes bytes = size > 0 ? bytes_at(machine, address, size) : Bytes{};
    return bytes.is_empty() ? nullptr : bytes.host();
  });
}

void softwareDriverTrace(softwareDriverSchedule schedule, softwareDriverRecord record) {
  with_machine(Tracer{}, [&](Machine& machine) { return machine.tracer = {schedule, record, this_thread()}; });
}

void softwareDriverObserve(softwareDriverObserver function) {
  observer.store(function, std::memory_order_release);
  with_machine(0, [](Machine& machine) {
    machine.contexts.each([](const Context& context) { show_context(context); });
    return 0;
  });
}

uint64_t softwareDriverTime(void) {
  return with_machine(uint64_t{0}, [](Machine& machine) { return machine.clock.look(machine.thread().time); });
}

void softwareDriverAdvance(uint64_t ns) {
  Present& here = present();
  std::unique_lock lock(here.mutex);
  // Kept: host functions run unlocked, and the machine may be replaced meanwhile.
  const std::shared_ptr<Machine> machine = here.machine;
  if (!machine) {
    return;
  }
  machine->clock.advance_thread(lock, machine->thread().time, ns);
  lock.unlock();
}

int softwareDriverErrorCode(const char* name) { return name == nullptr ? -1 : error_code(name); }

}  // extern "C"
