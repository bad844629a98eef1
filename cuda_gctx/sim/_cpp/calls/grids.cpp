// Turns a planned launch into a grid for the clock: which SMs, how long each block takes, and what it does on the host.
#include "calls/grids.hpp"

#include <algorithm>
#include <cstring>

#include "calls/allocations.hpp"
#include "calls/kernels.hpp"
#include "machine/costs.hpp"

namespace gctx::sim {
namespace {

// Assumed for kernels that nobody registered a cost for.
constexpr double default_block_ns = 5'000;

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
  if (find_allocation(machine, address, sizeof value) == nullptr) {
    return;
  }
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
}

// A kernel that spins for a time: it uses nothing of what others share.
BlockCost spinning(std::uint64_t ns) { return {static_cast<double>(ns), 0, 0}; }

// The probe that the package ships as PTX: each block writes {smid, start, end, block} and spins meanwhile.
void fill_probe(Machine& machine, Grid& grid) {
  const auto out = argument<std::uint64_t>(grid.arguments, 0);
  const auto capacity = argument<std::uint32_t>(grid.arguments, 1);
  grid.cost = spinning(argument<std::uint64_t>(grid.arguments, 2) + 1'000);
  grid.seen = capacity;
  grid.built_in = [&machine, out, capacity](const gctxSimBlock& block) {
    if (block.index >= capacity) {
      return;
    }
    const std::array<std::uint64_t, 4> record{block.smid, block.start_ns, block.end_ns, block.index};
    store(machine, out + std::uint64_t{block.index} * sizeof record, record);
  };
}

// The kernels of tests/hardware/record.py, which spin for a number of cycles: one marks the SMs that it saw, the other
// writes the SM of each block.
void fill_record(Machine& machine, Grid& grid, bool by_block) {
  const auto out = argument<std::uint64_t>(grid.arguments, 0);
  grid.cost = spinning(cycles_to_ns(machine.chip->profile(), argument<std::uint64_t>(grid.arguments, 1)) + 1'000);
  const Allocation* memory = find_allocation(machine, out, 1);
  grid.seen = by_block && memory != nullptr ? memory->size / sizeof(std::uint32_t) : 0;
  grid.built_in = [&machine, out, by_block](const gctxSimBlock& block) {
    const std::uint64_t place = by_block ? block.index : block.smid;
    const std::uint32_t word = by_block ? block.smid : 1;
    store(machine, out + place * sizeof word, word);
  };
}

// An SM has four schedulers, so a block of fewer warps leaves a part of it to others.
double throughput_of(unsigned threads) {
  constexpr unsigned to_fill = 4 * 32;
  return std::min(1.0, static_cast<double>(threads) / to_fill);
}

}  // namespace

std::unique_ptr<Grid> make_grid(Machine& machine, const Context& context, const LaunchPlan& plan) {
  auto grid = std::make_unique<Grid>();
  const unsigned threads = plan.threads[0] * plan.threads[1] * plan.threads[2];
  grid->sms = context.sms;
  grid->blocks = plan.grid;
  grid->threads = plan.threads;
  grid->count = BlockCount(std::uint64_t{plan.grid[0]} * plan.grid[1] * plan.grid[2]);
  grid->needs = needs_of(machine, *plan.code, threads, plan.shared_bytes);
  grid->places = std::max<std::uint64_t>(
      1, Sms::capacity(machine.chip->profile(), grid->needs) * std::uint64_t{context.sms.count()});
  grid->priority = plan.priority;
  grid->arguments = plan.arguments;
  grid->cost = {default_block_ns, throughput_of(threads), 0};
  grid->cluster = plan.cluster;
  if (plan.cluster > 1) {
    grid->parts = machine.chip->cluster_parts(context.sms, plan.cluster, context.traits.bond);
  }
  const auto registered = machine.kernels_by_name.find(plan.code->name);
  if (registered != machine.kernels_by_name.end()) {
    const gctxSimKernelCost& cost = registered->second.cost;
    grid->cost = {static_cast<double>(cost.block_ns), cost.throughput < 0 ? throughput_of(threads) : cost.throughput,
                  static_cast<double>(cost.block_bytes)};
    grid->function = registered->second.function;
    grid->seen = grid->function != nullptr ? grid->count.waiting() : 0;
    grid->user = registered->second.user;
  } else if (plan.code->name == "cuda_gctx_probe") {
    fill_probe(machine, *grid);
  } else if (plan.code->name == "record_smids" || plan.code->name == "record_blocks") {
    fill_record(machine, *grid, plan.code->name == "record_blocks");
  }
  return grid;
}

}  // namespace gctx::sim
