// Turns a planned launch into a grid for the clock: which SMs, how long each block takes, and what it does on the host.
#include "calls/grids.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "calls/allocations.hpp"
#include "calls/execution.hpp"
#include "calls/kernels.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

// Assumed for kernels that nobody registered a cost for. It is a time of no card, and said to be none.
constexpr double default_block_ns = 5'000;
// Bytes: two vectors of 16. Assumed.
constexpr double loads_of_thread = 32;

template <class T>
T argument(const std::vector<std::vector<unsigned char>>& arguments, std::size_t index) {
  T value{};
  if (index < arguments.size()) {
    std::memcpy(&value, arguments[index].data(), std::min(sizeof value, arguments[index].size()));
  }
  return value;
}

// Stores to device memory as a kernel does; what no allocation holds is left alone.
template <class T>
void store(Machine& machine, std::uint64_t address, const T& value) {
  const Bytes bytes = bytes_at(machine, address, sizeof value);
  bytes.write(0, &value, sizeof value);
  machine.unknown.clear(bytes, 0, sizeof value);
}

// A kernel that spins for a time: it uses nothing of what others share.
BlockCost spinning(std::uint64_t ns) { return {static_cast<double>(ns), 0, 0, 0}; }

// The probe that cuda_gctx ships as PTX: each block writes {smid, start, end, block} and spins meanwhile. It is not
// executed, for two reasons. The host executes a block of 1,024 threads in 50 us: a verification of 132 SMs takes 34
// ms in place of 1.7 ms. And a stamp (a probe that does not spin) is unknown where a kernel of unknown duration ran
// since the last stamp: an executed kernel does not tell whether the program compares its times with those of other
// kernels.
constexpr std::string_view probe = "cuda_gctx_probe";
void fill_probe(Machine& machine, Grid& grid) {
  const auto out = argument<std::uint64_t>(grid.arguments, 0);
  const auto capacity = argument<std::uint32_t>(grid.arguments, 1);
  const auto spin_ns = argument<std::uint64_t>(grid.arguments, 2);
  grid.cost = spinning(spin_ns + 1'000);
  grid.seen = capacity;
  grid.built_in = [&machine, out, capacity, is_stamp = spin_ns == 0](const softwareDriverBlock& block) {
    if (block.index >= capacity) {
      return;
    }
    const std::array<std::uint64_t, 4> record{block.smid, block.start_ns, block.end_ns, block.index};
    const std::uint64_t place = out + std::uint64_t{block.index} * sizeof record;
    store(machine, place, record);
    if (is_stamp) {
      const Guesses now = machine.clock.guesses();
      if (const std::string* guessed = guess_between(std::exchange(machine.stamped, now).value_or(now), now)) {
        machine.unknown.mark(bytes_at(machine, place, sizeof record), 0, sizeof record, *guessed);
      }
    }
  };
}

const RegisteredKernel* find_registered(const Machine& machine, const LaunchPlan& plan) {
  const auto found = machine.kernels_by_name.find(plan.code->name);
  return found == machine.kernels_by_name.end() ? nullptr : &found->second;
}

// Memory that a kernel reaches through an argument: all of an allocation.
struct Reach {
  std::uint64_t address = 0;
  bool reads = true;
  bool writes = true;
};

// The variables of its module are as good as arguments.
void add_variables(Machine& machine, const Context& context, const LaunchPlan& plan, std::vector<Reach>& all) {
  machine.modules.each([&](Module& module) {
    const auto& kernels = module.image->kernels;
    if (module.device != context.device || std::find(kernels.begin(), kernels.end(), plan.code) == kernels.end()) {
      return;
    }
    module.written_by = plan.code->name;
    for (const Variable& variable : module.image->variables) {
      const auto& places = places_of(module, variable);
      const auto placed = places.find(variable.name);
      if (placed != places.end() && !variable.is_constant) {
        all.push_back({placed->second});
      }
    }
  });
}

std::vector<Reach> reach_of(Machine& machine, const Context& context, const LaunchPlan& plan) {
  const RegisteredKernel* registered = find_registered(machine, plan);
  const auto includes = [](const std::optional<std::set<std::size_t>>& list, std::size_t argument) {
    return !list || list->contains(argument);
  };
  std::vector<Reach> all;
  for (std::size_t i = 0; i < plan.arguments.size(); ++i) {
    const std::vector<unsigned char>& bytes = plan.arguments[i];
    // Pointers inside structures are arguments too.
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, sizeof word);
      if (const Allocation* memory = find_allocation(machine, word, 1)) {
        all.push_back({memory->handle, registered == nullptr || includes(registered->reads, i),
                       registered == nullptr || includes(registered->writes, i)});
      }
    }
  }
  if (!plan.code->arguments_known && (registered == nullptr || !registered->arguments_known)) {
    for (const auto& [address, memory] : machine.allocations) {
      if (memory.type == CU_MEMORYTYPE_DEVICE && memory.device == context.device) {
        all.push_back({address});
      }
    }
  }
  if (registered == nullptr || (registered->function == nullptr && !registered->writes)) {
    add_variables(machine, context, plan, all);
  }
  return all;
}

// An SM has four schedulers, so a block of fewer warps leaves a part of it to others.
double throughput_of(unsigned threads) {
  constexpr unsigned to_fill = 4 * 32;
  return std::min(1.0, static_cast<double>(threads) / to_fill);
}

}  // namespace

std::unique_ptr<Grid> make_grid(Call& c, const Context& context, const LaunchPlan& plan) {
  Machine& machine = c.machine;
  auto grid = std::make_unique<Grid>();
  const auto threads = static_cast<unsigned>(product(plan.threads));
  grid->sms = context.sms;
  grid->blocks = plan.grid;
  grid->threads = plan.threads;
  grid->count = BlockCount(product(plan.grid));
  grid->needs = needs_of(machine, *plan.code, threads, plan.shared_bytes);
  grid->places = std::clamp<std::uint64_t>(Sms::capacity(machine.chip->profile(), grid->needs) * context.sms.count(), 1,
                                           grid->count.waiting());
  grid->priority = plan.priority;
  grid->arguments = plan.arguments;
  grid->kernel = {plan.code, &plan.code->name};
  grid->cost.throughput = throughput_of(threads);
  grid->cluster = plan.cluster;
  if (plan.cluster > 1) {
    grid->parts = machine.chip->cluster_parts(context.sms, plan.cluster, context.traits.bond);
  }
  if (const RegisteredKernel* registered = find_registered(machine, plan)) {
    const softwareDriverKernelCost& cost = registered->cost;
    const double throughput = cost.throughput < 0 ? throughput_of(threads) : cost.throughput;
    // What threads load themselves, and what is copied asynchronously into shared memory.
    const double in_flight = loads_of_thread * grid->needs.threads + static_cast<double>(grid->needs.shared_bytes);
    grid->cost = {static_cast<double>(cost.block_ns), throughput, static_cast<double>(cost.block_bytes), in_flight};
    grid->tiles = cost.tiles;
    grid->tile = {static_cast<double>(cost.tile_ns), throughput, static_cast<double>(cost.tile_bytes), in_flight};
    grid->function = registered->function;
    grid->seen = grid->function != nullptr ? grid->count.waiting() : 0;
    grid->user = registered->user;
  } else if (plan.code->name == probe) {
    fill_probe(machine, *grid);
  }
  const double declared = grid->cost.compute_ns + grid->cost.bytes + grid->tile.compute_ns;
  grid->is_declared = declared > 0;
  const bool has_own_function = grid->function != nullptr || grid->built_in;
  if (!has_own_function && grid->tiles == 0 && execute(c, context, plan, *grid)) {
    return grid;
  }
  if (!grid->is_declared) {
    grid->cost.compute_ns = default_block_ns;
    grid->guessed = {plan.code, &plan.code->name};
  }
  return grid;
}

std::function<void(Work&)> marks_of(Machine& machine, const Context& context, const LaunchPlan& plan,
                                    const Grid& grid) {
  if (grid.is_empty) {
    return nullptr;
  }
  if (grid.execution) {
    return [&machine](Work& work) { end_execution(machine, work); };
  }
  const RegisteredKernel* registered = find_registered(machine, plan);
  if (registered == nullptr && plan.code->name == probe) {
    return nullptr;
  }
  return [&machine, all = reach_of(machine, context, plan),
          has_function = registered != nullptr && registered->function != nullptr, name = plan.code->name](Work& work) {
    const bool has_failed = work.grid->failed;
    if (has_failed) {
      work.fail(std::make_shared<Failure>(CUDA_ERROR_LAUNCH_FAILED, "the function of kernel " + name + " failed"));
    }
    std::string kernel = has_function && !has_failed ? std::string() : name;
    const auto with_memory = [&](auto&& visit) {
      for (const Reach& reach : all) {
        if (const Allocation* memory = find_allocation(machine, reach.address, 1)) {
          visit(reach, *memory, bytes_at(machine, reach.address, memory->size));
        }
      }
    };
    with_memory([&](const Reach& reach, const Allocation& memory, const Bytes& bytes) {
      const auto parts = machine.unknown.parts(bytes, 0, reach.reads ? memory.size : 0);
      if (kernel.empty() && !parts.empty()) {
        kernel = parts.front().kernel;
      }
    });
    bool shows = false;
    with_memory([&](const Reach& reach, const Allocation& memory, const Bytes& bytes) {
      if (reach.writes && kernel.empty()) {
        machine.unknown.clear(bytes, 0, memory.size);
      } else if (reach.writes) {
        machine.unknown.mark(bytes, 0, memory.size, kernel);
        shows = shows || memory.managed || memory.type != CU_MEMORYTYPE_DEVICE;
      }
    });
    // The host can read this memory without a call, so the next wait says it.
    if (const FailurePtr failure = shows && !has_failed ? machine.unknown.read(kernel) : nullptr) {
      work.fail(failure);
    }
  };
}

}  // namespace software_driver
