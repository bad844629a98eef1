// The control interface: everything a test does with the software driver apart from CUDA calls.
#include <cstring>
#include <map>
#include <string>

#include "abi/cuda_gctx_sim.h"
#include "calls/allocations.hpp"
#include "calls/behaviours.hpp"
#include "machine/json.hpp"
#include "machine/present.hpp"
#include "machine/reports.hpp"
#include "machine/threads.hpp"

namespace {

using namespace gctx::sim;

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

template <class OfMachine>
const char* text_of(OfMachine&& of_machine) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  return keep(here.machine ? of_machine(*here.machine) : std::string("null"));
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
    json.key(name).value(count);
  }
  json.end_object();
  return json.text();
}

std::string machine_json(const Machine& machine) {
  JsonWriter json;
  json.begin_object();
  json.key("simulated").value(true);
  json.key("profile").value(machine.spec.profile);
  json.key("name").value(machine.chip->profile().name);
  json.key("driver_version").value(machine.version());
  json.key("devices").value(static_cast<int>(machine.devices.size()));
  json.key("connections").value(machine.spec.connections);
  json.end_object();
  return json.text();
}

const char* word(Known known) {
  switch (known) {
    case Known::recorded:
      return "recorded";
    case Known::timed:
      return "timed";
    case Known::documented:
      return "documented";
    case Known::assumed:
      return "assumed";
  }
  return "";
}

int add_rule(const char* function, FaultRule rule) {
  if (function == nullptr) {
    return -1;
  }
  rule.function = function;
  if (rule.function != "*" && !is_function_name(rule.function)) {
    return -1;
  }
  if (rule.code == CUDA_SUCCESS) {
    return -1;
  }
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!here.machine) {
    return -1;
  }
  here.machine->faults.rules.push_back(std::move(rule));
  return 0;
}

}  // namespace

extern "C" {

int gctxSimConfigure(const char* spec, char* error, size_t error_size) {
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

int gctxSimReset(void) {
  Present& here = present();
  std::string spec;
  {
    const std::scoped_lock lock(here.mutex);
    if (!here.machine) {
      return -1;
    }
    spec = here.machine->spec.text;
  }
  return gctxSimConfigure(spec.c_str(), nullptr, 0);
}

int gctxSimPush(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  here.aside.push_back(std::move(here.machine));
  return 0;
}

int gctxSimPop(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (here.aside.empty()) {
    return -1;
  }
  here.machine = std::move(here.aside.back());
  here.aside.pop_back();
  return 0;
}

const char* gctxSimLedger(void) { return text_of(ledger_json); }
const char* gctxSimCalls(void) { return text_of(calls_json); }
const char* gctxSimMemory(void) { return text_of(memory_json); }
const char* gctxSimMachine(void) { return text_of(machine_json); }
const char* gctxSimFaults(void) {
  return text_of([](const Machine& machine) { return faults_json(machine.faults); });
}

const char* gctxSimProfiles(void) {
  JsonWriter json;
  json.begin_array();
  for (const Profile& profile : profiles()) {
    const Chip chip(profile);
    json.begin_object();
    json.key("key").value(profile.key);
    json.key("name").value(profile.name);
    json.key("compute_capability").value(std::to_string(profile.cc_major) + "." + std::to_string(profile.cc_minor));
    json.key("sm_count").value(std::uint64_t{chip.sm_count()});
    json.key("min_partition").value(std::uint64_t{profile.min_partition});
    json.key("alignment").value(std::uint64_t{profile.alignment});
    json.key("memory_bytes").value(profile.memory_bytes);
    json.key("locality_domains").value(profile.locality_domains);
    json.key("layout").value(word(profile.layout));
    json.key("sms_per_gpc").begin_array();
    for (const int sms : profile.sms_per_gpc) {
      json.value(sms);
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  return keep(json.text());
}

const char* gctxSimDrivers(void) {
  JsonWriter json;
  json.begin_array();
  for (const int version : driver_versions) {
    json.value(version_text(version));
  }
  json.end_array();
  return keep(json.text());
}

const char* gctxSimExplain(void) {
  JsonWriter json;
  json.begin_array();
  const auto line = [&](std::string_view subject, std::string_view drivers, std::string_view text, Known known,
                        std::string_view source) {
    json.begin_object();
    json.key("subject").value(subject);
    json.key("drivers").value(drivers);
    json.key("behaviour").value(text);
    json.key("known").value(word(known));
    json.key("source").value(source);
    json.end_object();
  };
  for (const Behaviour& behaviour : chip_behaviours()) {
    line(behaviour.id, behaviour.drivers, behaviour.text, behaviour.known, behaviour.source);
  }
  for (const DriverBehaviour& behaviour : driver_behaviours()) {
    line(behaviour.subject, behaviour.drivers, behaviour.text, behaviour.known, behaviour.source);
  }
  json.end_array();
  return keep(json.text());
}

int gctxSimFailNth(const char* function, unsigned long long nth, int code) {
  if (nth == 0) {
    return -1;
  }
  FaultRule rule;
  rule.when = FaultRule::When::nth;
  rule.remaining = nth;
  rule.code = static_cast<CUresult>(code);
  return add_rule(function, std::move(rule));
}

int gctxSimFailEvery(const char* function, int code) {
  FaultRule rule;
  rule.when = FaultRule::When::every;
  rule.code = static_cast<CUresult>(code);
  return add_rule(function, std::move(rule));
}

int gctxSimFailRandomly(const char* function, double probability, unsigned long long seed, int code) {
  if (!(probability >= 0 && probability <= 1)) {
    return -1;
  }
  FaultRule rule;
  rule.when = FaultRule::When::by_chance;
  rule.probability = probability;
  rule.random.seed(seed);
  rule.code = static_cast<CUresult>(code);
  return add_rule(function, std::move(rule));
}

void gctxSimLimitContexts(unsigned count) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (here.machine) {
    here.machine->faults.context_limit = count;
  }
}

void gctxSimClearFaults(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!here.machine) {
    return;
  }
  here.machine->faults.rules.clear();
  here.machine->faults.context_limit = here.machine->spec.max_contexts;
}

int gctxSimKernel(const char* name, gctxSimKernelFunction function, void* user, const gctxSimKernelCost* cost,
                  const size_t* argument_sizes, unsigned argument_count) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!here.machine || name == nullptr || cost == nullptr || !(cost->throughput <= 1)) {
    return -1;
  }
  RegisteredKernel kernel;
  kernel.function = function;
  kernel.user = user;
  kernel.cost = *cost;
  kernel.arguments_known = argument_sizes != nullptr;
  if (argument_sizes != nullptr) {
    kernel.argument_sizes.assign(argument_sizes, argument_sizes + argument_count);
  }
  here.machine->kernels_by_name[name] = std::move(kernel);
  return 0;
}

int gctxSimKernelAccess(const char* name, const unsigned* reads, unsigned read_count, const unsigned* writes,
                        unsigned write_count) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (!here.machine || name == nullptr || !here.machine->kernels_by_name.contains(name)) {
    return -1;
  }
  const auto list = [](const unsigned* numbers, unsigned count) {
    using List = std::set<std::size_t>;
    return numbers == nullptr ? std::nullopt : std::make_optional<List>(numbers, numbers + count);
  };
  RegisteredKernel& kernel = here.machine->kernels_by_name[name];
  kernel.reads = list(reads, read_count);
  kernel.writes = list(writes, write_count);
  return 0;
}

void* gctxSimView(uint64_t address, size_t size) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  const Bytes bytes = here.machine && size > 0 ? bytes_at(*here.machine, address, size) : Bytes{};
  return bytes.is_empty() ? nullptr : bytes.host();
}

void gctxSimTrace(gctxSimSchedule schedule, gctxSimRecord record) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  if (here.machine) {
    here.machine->tracer = {schedule, record, this_thread().serial};
  }
}

uint64_t gctxSimTime(void) {
  Present& here = present();
  const std::scoped_lock lock(here.mutex);
  return here.machine ? here.machine->clock.now() : 0;
}

void gctxSimAdvance(uint64_t ns) {
  Present& here = present();
  std::unique_lock lock(here.mutex);
  // Kept: host functions run unlocked, and the machine may be replaced meanwhile.
  const std::shared_ptr<Machine> machine = here.machine;
  if (!machine) {
    return;
  }
  machine->clock.pass(ns);
  machine->clock.catch_up(lock);
  lock.unlock();
}

int gctxSimErrorCode(const char* name) { return name == nullptr ? -1 : error_code(name); }

}  // extern "C"
