// Executes kernels: binds a program in PTX to a module and a launch, and runs its blocks step by step.
#include "calls/execution.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "calls/allocations.hpp"
#include "calls/modules.hpp"
#include "machine/costs.hpp"
#include "ptx/block.hpp"

namespace software_driver {
namespace {

// Instructions of warps in one step of a block.
constexpr std::uint64_t step_budget = 1 << 14;
// Assumed of a block: from its place on the SM to its first instruction.
constexpr double begin_ns = 500;
// A block that waits looks again after a 64th of the time that it has waited, and at least so often.
constexpr double longest_look_ns = 100'000;
constexpr double looks = 64;
// Bytes of a thread that are under way at once: two vectors of 16. Assumed.
constexpr double bytes_under_way = 32;

CUresult code_of(ptx::Fault::Kind kind) {
  switch (kind) {
    case ptx::Fault::Kind::illegal_address:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case ptx::Fault::Kind::misaligned_address:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case ptx::Fault::Kind::assertion:
      return CUDA_ERROR_ASSERT;
    case ptx::Fault::Kind::stuck:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

class KernelExecution : public Execution, public ptx::Surroundings {
 public:
  KernelExecution(Machine& machine, int device, ptx::Kernel kernel, std::size_t shared_bytes)
      : machine_(machine), device_(device), kernel_(std::move(kernel)) {
    in_flight_ = bytes_under_way * static_cast<double>(kernel_.thread_count()) + static_cast<double>(shared_bytes);
  }

  Step step(std::uint64_t index, std::size_t sm, std::uint64_t now) override {
    if (is_ended()) {
      blocks_.clear();
      return {{1, 0, 0, 0}, true, false};
    }
    Running& running = blocks_[index];
    try {
      if (!running.block) {
        running.block = std::make_unique<ptx::Block>(kernel_, *this, index, static_cast<unsigned>(sm));
      }
      running.block->forget_spans();
      const ptx::Turn turn = running.block->run(step_budget, now);
      Step step{cost_of(turn), turn.is_over, turn.is_idle};
      const std::uint64_t loops_ns =
          turn.reads_time_alone ? running.block->time_of_loops(now + static_cast<std::uint64_t>(step.cost.compute_ns))
                                : 0;
      if (loops_ns > 0) {
        // A wait for the time takes nothing from others.
        step.cost = {step.cost.compute_ns + static_cast<double>(loops_ns), 0, 0, 0};
        running.waited_ns = 0;
      } else if (turn.is_idle) {
        const double look = std::clamp(running.waited_ns / looks, step.cost.compute_ns, longest_look_ns);
        step.cost.compute_ns = std::max(step.cost.compute_ns, look);
        running.waited_ns += step.cost.compute_ns;
      } else {
        running.waited_ns = 0;
      }
      if (turn.is_over) {
        blocks_.erase(index);
      }
      return step;
    } catch (const ptx::Fault& fault) {
      fail(fault, *running.block);
      return {{1, 0, 0, 0}, true, false};
    }
  }

  bool is_stuck() override {
    for (auto& [index, running] : blocks_) {
      try {
        running.block->forget_spans();
        if (!running.block->is_stuck()) {
          return false;
        }
      } catch (const ptx::Fault& fault) {
        fail(fault, *running.block);
        return false;
      }
    }
    return !blocks_.empty();
  }

  void give_up() override {
    if (!is_ended() && !blocks_.empty()) {
      fail({ptx::Fault::Kind::stuck, "the kernel waits for what nobody does, and nobody can end it"},
           *blocks_.begin()->second.block);
    }
  }

  void end(Work& work) {
    std::fwrite(printed_.data(), 1, printed_.size(), stdout);
    std::fflush(stdout);
    if (failure_) {
      work.fail(failure_);
    }
    if (const FailurePtr shown = tainted_.empty() || !shows_ ? nullptr : machine_.unknown.read(tainted_)) {
      work.fail(shown);
    }
  }

 private:
  struct Running {
    std::unique_ptr<ptx::Block> block;
    double waited_ns = 0;
  };

  // After a fault nothing of its device goes on.
  bool is_ended() const { return machine_.devices[static_cast<std::size_t>(device_)].fault != nullptr; }

  void fail(const ptx::Fault& fault, const ptx::Block& block) {
    failure_ = std::make_shared<Failure>(code_of(fault.kind), std::string(fault.what()) + ", " + block.place());
    machine_.device(device_).fault = failure_;
  }

  BlockCost cost_of(const ptx::Turn& turn) const {
    const double cycles = static_cast<double>(turn.longest) * ptx::cycles_of_instruction;
    const double busy = cycles == 0 ? 0 : static_cast<double>(turn.issued) / (cycles * ptx::issued_per_cycle);
    const double ns = cycles / kernel_.rates.clock_ghz + static_cast<double>(turn.slept_ns);
    return {std::max(ns, 1.0), std::min(busy, 1.0), static_cast<double>(turn.bytes), in_flight_};
  }

  ptx::Span find(std::uint64_t address) override {
    const Allocation* memory = find_allocation(machine_, address, 1);
    // Memory of a graph counts as freed from the call of its launch on; its kernels run later.
    if (memory == nullptr || (!memory->live && memory->graphs == 0) || !is_reachable(*memory, false)) {
      return {};
    }
    const std::uint64_t begin = memory->handle;
    const Bytes bytes = bytes_at(machine_, begin, memory->size);
    const bool is_unknown = !tainted_.empty() || !machine_.unknown.parts(bytes, 0, memory->size).empty();
    return {begin, begin + memory->size, memory->storage.host, is_reachable(*memory, true), is_unknown};
  }

  void reads(std::uint64_t address, std::size_t size) override {
    const auto parts = machine_.unknown.parts(bytes_at(machine_, address, size), 0, size);
    if (!parts.empty() && tainted_.empty()) {
      tainted_ = parts.front().kernel;
      for (auto& [index, running] : blocks_) {
        if (running.block) {
          running.block->forget_spans();
        }
      }
    }
  }

  // A kernel that has read something unknown writes only unknown values.
  void writes(std::uint64_t address, std::size_t size) override {
    const Bytes bytes = bytes_at(machine_, address, size);
    if (tainted_.empty()) {
      return machine_.unknown.clear(bytes, 0, size);
    }
    machine_.unknown.mark(bytes, 0, size, tainted_);
    const Allocation* memory = find_allocation(machine_, address, 1);
    shows_ = shows_ || memory->managed || memory->type != CU_MEMORYTYPE_DEVICE;
  }

  void print(const std::string& text) override { printed_ += text; }

  std::uint64_t allocate(std::uint64_t size) override {
    Device& device = machine_.device(device_);
    if (size == 0 || !has_room(device, size)) {
      return 0;
    }
    Allocation made;
    made.size = size;
    made.device = device_;
    made.hidden = true;
    made.is_of_kernels = true;
    made.storage = device.take(size);
    const std::uint64_t address = made.handle = made.storage.address;
    machine_.allocations.emplace(address, std::move(made));
    device.allocated += size;
    return address;
  }

  void release(std::uint64_t address) override {
    const auto found = machine_.allocations.find(address);
    if (found != machine_.allocations.end() && found->second.is_of_kernels) {
      machine_.device(device_).allocated -= found->second.size;
      machine_.allocations.erase(found);
    }
  }

  void set_condition(std::uint64_t handle, std::uint32_t value) override {
    if (Condition* condition = machine_.conditions.find(handle)) {
      condition->value = value;
      ++condition->sets;
    }
  }

  Machine& machine_;
  int device_;
  const ptx::Kernel kernel_;
  double in_flight_ = 0;
  std::map<std::uint64_t, Running> blocks_;
  std::string printed_;
  FailurePtr failure_;
  std::string tainted_;  // the kernel whose missing result was read
  bool shows_ = false;   // and passed on to memory that the host reads without a call
};

Module* module_of_plan(Call& c, const Context& context, const LaunchPlan& plan) {
  if (const Function* function = c.machine.functions.find(plan.function)) {
    return function->module;
  }
  const Kernel* kernel = c.machine.kernels.find(plan.function);
  if (kernel == nullptr) {
    return nullptr;
  }
  return c.machine.functions.find(function_on(c, *kernel, context.device))->module;
}

// Writes the addresses of other variables and of functions into the initial value of a variable.
void write_addresses(Call& c, Module& module, const ptx::Program& program, const ptx::ProgramVariable& variable,
                     std::uint64_t place) {
  for (const auto& pointer : variable.addresses) {
    std::uint64_t value = pointer.addend;
    const auto target = std::ranges::find(module.image->variables, pointer.symbol, &Variable::name);
    const auto function = std::ranges::find(program.functions, pointer.symbol, &ptx::Function::name);
    if (target != module.image->variables.end()) {
      value += address_of(c, module, *target);
    } else if (function != program.functions.end()) {
      value += ptx::function_window + static_cast<std::uint64_t>(function - program.functions.begin());
    }
    bytes_at(c.machine, place, variable.size).write(pointer.at, &value, sizeof value);
  }
}

std::uint64_t place_in_module(Call& c, Module& module, const ptx::ProgramVariable& wanted) {
  const auto variable = std::ranges::find(module.image->variables, wanted.name, &Variable::name);
  return variable == module.image->variables.end() ? 0 : address_of(c, module, *variable);
}

}  // namespace

std::map<std::string, std::uint64_t, std::less<>>& places_of(Module& module, const Variable& variable) {
  return variable.is_managed && module.library != nullptr ? module.library->managed_variables : module.variables;
}

std::uint64_t address_of(Call& c, Module& module, const Variable& variable) {
  std::uint64_t& place = places_of(module, variable)[variable.name];
  if (place == 0) {
    place = place_variable(c, module, variable);
    const auto has_ptx =
        std::ranges::find_if(module.image->kernels, [](const auto& kernel) { return kernel->ptx != nullptr; });
    if (has_ptx != module.image->kernels.end()) {
      const ptx::Program& program = *(*has_ptx)->ptx->program();
      const auto found = std::ranges::find(program.variables, variable.name, &ptx::ProgramVariable::name);
      if (found != program.variables.end()) {
        write_addresses(c, module, program, *found, place);
      }
    }
  }
  return places_of(module, variable)[variable.name];
}

bool execute(Call& c, const Context& context, const LaunchPlan& plan, Grid& grid) {
  const auto refuse_to = [&](std::string why) {
    c.machine.unknown.note_reason(plan.code->name, std::move(why));
    return false;
  };
  const auto begin_at_once = [&] {
    if (!grid.is_declared) {
      grid.cost = {begin_ns, 0, 0, 0};
    }
  };
  if (!plan.code->ptx) {
    return refuse_to(
        "its image is machine code without PTX: build the program with PTX (nvcc -arch=sm_90, without -rdc=true); if "
        "the "
        "program compiles its kernels, run it with python -m cuda_software_driver run, and clear caches of compiled "
        "kernels, such as Numba's");
  }
  const auto& program = plan.code->ptx->program();
  const ptx::Function* entry = program->entry(plan.code->name);
  if (entry == nullptr) {
    return refuse_to(program->unknown.empty() ? "its PTX has no such kernel" : program->unknown);
  }
  if (std::string why = program->why_not(*entry); !why.empty()) {
    return refuse_to("not known is " + why);
  }
  const ptx::Instruction& first = program->code[entry->begin];
  if (first.predicate == ptx::no_place && (first.flow == ptx::Flow::give_back || first.flow == ptx::Flow::exit)) {
    grid.is_empty = true;
    begin_at_once();
    return true;
  }
  Module* module = module_of_plan(c, context, plan);
  if (module == nullptr || plan.arguments.size() != entry->parameters.size()) {
    return refuse_to("its module or its arguments are not known");
  }
  const Profile& card = c.machine.chip->profile();
  ptx::Kernel kernel;
  kernel.program = program;
  kernel.entry = entry;
  kernel.grid = plan.grid;
  kernel.threads = plan.threads;
  kernel.cluster = plan.clusters;
  kernel.dynamic_shared = plan.shared_bytes;
  kernel.grid_id = c.machine.created;
  kernel.rates = {static_cast<double>(card.clock_khz) / 1e6, c.machine.chip->sm_count()};
  kernel.parameters.resize(entry->parameter_bytes);
  for (std::size_t i = 0; i < plan.arguments.size(); ++i) {
    const auto& bytes = plan.arguments[i];
    std::memcpy(kernel.parameters.data() + entry->parameters[i].offset, bytes.data(),
                std::min<std::size_t>(bytes.size(), entry->parameters[i].size));
  }
  ptx::bind(kernel, [&](const ptx::ProgramVariable& wanted) { return place_in_module(c, *module, wanted); });
  grid.execution =
      std::make_shared<KernelExecution>(c.machine, context.device, std::move(kernel), grid.needs.shared_bytes);
  grid.seen = grid.count.waiting();
  begin_at_once();
  return true;
}

void end_execution(Machine&, Work& work) { static_cast<KernelExecution&>(*work.grid->execution).end(work); }

}  // namespace software_driver
