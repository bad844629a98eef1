// Turns a planned launch into a grid for the clock: which SMs, how long each block takes, and what it does on the host.
#include <cstring>

#include "sim/entry.hpp"

namespace gctx::sim {
namespace {

// Assumed for kernels that nobody registered a cost for.
constexpr std::uint64_t default_block_ns = 5'000;

template <class T>
T argument(const std::vector<std::vector<unsigned char>>& arguments, std::size_t index) {
  T value{};
  if (index < arguments.size())
    std::memcpy(&value, arguments[index].data(), std::min(sizeof value, arguments[index].size()));
  return value;
}

// The probe that the package ships as PTX: each block writes {smid, start, end, block} and spins meanwhile.
void fill_probe(Machine& machine, Grid& grid) {
  const auto out = argument<std::uint64_t>(grid.arguments, 0);
  const auto capacity = argument<std::uint32_t>(grid.arguments, 1);
  grid.block_ns = argument<std::uint64_t>(grid.arguments, 2) + 1'000;
  grid.built_in = [&machine, out, capacity](const gctxSimBlock& block) {
    if (block.index >= capacity) return;
    const std::uint64_t record[4] = {block.smid, block.start_ns, block.end_ns, block.index};
    const std::uint64_t address = out + std::uint64_t{block.index} * sizeof record;
    auto found = machine.allocations.upper_bound(address);
    if (found == machine.allocations.begin()) return;
    --found;
    if (address + sizeof record > found->first + found->second.size) return;
    std::memcpy(reinterpret_cast<void*>(address), record, sizeof record);
  };
}

}  // namespace

std::unique_ptr<Grid> make_grid(Machine& machine, const Context& context, const LaunchPlan& plan) {
  auto grid = std::make_unique<Grid>();
  grid->sms = context.sms;
  grid->blocks = plan.grid;
  grid->threads = plan.threads;
  grid->total = plan.grid[0] * plan.grid[1] * plan.grid[2];
  grid->block_threads = plan.threads[0] * plan.threads[1] * plan.threads[2];
  grid->priority = plan.priority;
  grid->arguments = plan.arguments;
  grid->block_ns = default_block_ns;
  const auto registered = machine.kernels_by_name.find(plan.code->name);
  if (registered != machine.kernels_by_name.end()) {
    grid->block_ns = registered->second.block_ns;
    grid->function = registered->second.function;
    grid->user = registered->second.user;
  } else if (plan.code->name == "cuda_gctx_probe") {
    fill_probe(machine, *grid);
  }
  return grid;
}

}  // namespace gctx::sim
