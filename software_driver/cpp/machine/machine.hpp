// A simulated machine: its devices, its clock, and tables of all that a program made on it.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/cuda_software_driver.h"
#include "abi/functions.hpp"
#include "chip/chip.hpp"
#include "machine/clock.hpp"
#include "machine/faults.hpp"
#include "machine/graph.hpp"
#include "machine/handles.hpp"
#include "machine/host_threads.hpp"
#include "machine/ledger.hpp"
#include "machine/objects.hpp"
#include "machine/spec.hpp"
#include "machine/unknown.hpp"

namespace software_driver {

struct RegisteredKernel {
  softwareDriverKernelFunction function = nullptr;
  void* user = nullptr;
  softwareDriverKernelCost cost{};
  std::vector<std::size_t> argument_sizes{};
  bool arguments_known = false;
  // The arguments through which it reads and writes memory, by number; without a list: every one.
  std::optional<std::set<std::size_t>> reads{};
  std::optional<std::set<std::size_t>> writes{};
};

// Who wants to know where objects are made, and of which thread.
struct Tracer {
  softwareDriverSchedule schedule = nullptr;
  softwareDriverRecord record = nullptr;
  std::uint64_t thread = 0;
};

struct Machine {
  Machine(const Spec& spec, unsigned epoch);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Spec spec;
  unsigned epoch;
  bool initialized = false;
  std::shared_ptr<const Chip> chip;
  std::vector<Device> devices;
  HostThreads host_threads;
  Clock clock{host_threads};
  Ledger ledger;
  Unknown unknown{spec.unknown};
  std::optional<Guesses> stamped;  // when the last stamp was written
  Faults faults;
  Tracer tracer;
  std::array<std::uint64_t, function_count> calls{};
  std::uint64_t calls_made = 0;
  std::array<std::uint64_t, absent_count> absent_calls{};

  unsigned tables = 0;  // numbers them
  HandleTable<Context> contexts{++tables, epoch};
  std::size_t green_contexts = 0;  // alive
  HandleTable<Stream> streams{++tables, epoch};
  HandleTable<Event> events{++tables, epoch};
  HandleTable<Descriptor> descriptors{++tables, epoch};
  HandleTable<Module> modules{++tables, epoch};
  HandleTable<Function> functions{++tables, epoch};
  HandleTable<Library> libraries{++tables, epoch};
  HandleTable<Kernel> kernels{++tables, epoch};
  HandleTable<Graph> graphs{++tables, epoch};
  HandleTable<GraphNode> graph_nodes{++tables, epoch};
  HandleTable<GraphExec> graph_execs{++tables, epoch};
  HandleTable<Condition> conditions{++tables, epoch};
  HandleTable<UserObject> user_objects{++tables, epoch};
  HandleTable<Link> links{++tables, epoch};
  HandleTable<Pool> pools{++tables, epoch};
  Pools host_pools;
  Pools managed_pools;
  std::map<std::uint64_t, Allocation> allocations;  // by address
  HandleTable<MemoryHandle> memory_handles{++tables, epoch};
  std::map<std::uint64_t, std::unique_ptr<AddressRange>> reservations;  // by address
  std::uint64_t resident_limit;  // bytes of the host's memory for that of devices
  std::shared_ptr<std::atomic<std::uint64_t>> promised = std::make_shared<std::atomic<std::uint64_t>>(0);  // to work
  std::set<std::uint64_t> freed;  // addresses that were allocations
  std::unordered_map<std::string, RegisteredKernel> kernels_by_name;
  std::unordered_map<std::uint64_t, std::weak_ptr<QueueSet>> queue_sets;
  std::unordered_map<std::uint64_t, ThreadState> threads;  // by their numbers
  std::uint64_t created = 0;

  int version() const noexcept { return spec.driver_version; }
  Device& device(int ordinal) { return devices[static_cast<std::size_t>(ordinal)]; }
  ThreadState& thread();
  void made(Object& object);  // stamps a new object
  std::unique_ptr<Stream> make_stream(Context& context, unsigned flags, int priority);
};

}  // namespace software_driver
