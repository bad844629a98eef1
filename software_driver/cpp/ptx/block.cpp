// Runs the warps of a block in turns: divergence, calls, barriers, addresses.
#include "ptx/block.hpp"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

namespace software_driver::ptx {
namespace {

constexpr std::uint64_t slice = 64;                 // instructions of a warp before the next warp's turn
constexpr unsigned oldest_every = 4;                // slices: then the group of lanes that ran longest ago runs
constexpr std::uint32_t recursion_bytes = 1 << 14;  // local memory of a thread where functions call themselves

unsigned first_lane(std::uint32_t mask) { return static_cast<unsigned>(std::countr_zero(mask)); }
unsigned count_of(std::uint32_t mask) { return static_cast<unsigned>(std::popcount(mask)); }

std::uint32_t rounded_up(std::uint64_t value, std::uint64_t to) {
  return static_cast<std::uint32_t>((value + to - 1) / to * to);
}

// The local memory of a function and of all that it may call.
std::uint32_t stack_of(const Program& program, std::uint32_t number, std::vector<std::uint32_t>& active) {
  const Function& function = program.functions[number];
  if (std::ranges::find(active, number) != active.end() || function.calls_addresses) {
    return recursion_bytes;
  }
  active.push_back(number);
  std::uint32_t most = 0;
  for (const std::uint32_t callee : function.callees) {
    most = std::max(most, stack_of(program, callee, active));
  }
  active.pop_back();
  return rounded_up(function.local_bytes, 16) + most;
}

}  // namespace

void bind(Kernel& kernel, const AddressOf& address_of) {
  const Program& program = *kernel.program;
  std::set<std::uint32_t> shared;
  for (const Function* function : program.reached(*kernel.entry)) {
    shared.insert(function->shared.begin(), function->shared.end());
  }
  std::map<std::uint32_t, std::uint64_t> places;
  std::uint64_t used = 0;
  for (const bool dynamic : {false, true}) {
    std::uint64_t end = used;
    for (const std::uint32_t number : shared) {
      const ProgramVariable& variable = program.variables[number];
      if (variable.is_dynamic == dynamic) {
        // All arrays without a size begin at one place.
        end = rounded_up(dynamic ? used : end, std::max(1u, variable.alignment));
        places[number] = end;
        end += variable.size;
        used = dynamic ? std::max(used, end) : used;
      }
    }
    used = dynamic ? used : end;
  }
  kernel.static_shared = rounded_up(used, 16);
  std::vector<std::uint32_t> active;
  kernel.local_bytes = stack_of(program, static_cast<std::uint32_t>(kernel.entry - program.functions.data()), active);
  kernel.constants = program.constants;
  for (const Relocation& relocation : program.relocations) {
    std::uint64_t value = relocation.addend;
    if (relocation.is_function) {
      value += function_window + relocation.variable;
    } else {
      const ProgramVariable& variable = program.variables[relocation.variable];
      if (variable.space == Space::shared) {
        const auto place = places.find(relocation.variable);
        value += place == places.end() ? 0 : place->second;
      } else {
        value += address_of(variable);
      }
    }
    std::uint32_t* words = kernel.constants.data() + ~relocation.place;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      if (relocation.is_wide) {
        reinterpret_cast<std::uint64_t*>(words)[lane] = value;
      } else {
        words[lane] = static_cast<std::uint32_t>(value);
      }
    }
  }
  kernel.workspace = std::make_shared<std::array<std::uint32_t, 16>>();
}

Block::Block(const Kernel& kernel, Surroundings& surroundings, std::uint64_t index, unsigned smid)
    : kernel_(kernel), surroundings_(surroundings), smid_(smid) {
  position_ = {static_cast<unsigned>(index % kernel.grid[0]),
               static_cast<unsigned>(index / kernel.grid[0] % kernel.grid[1]),
               static_cast<unsigned>(index / kernel.grid[0] / kernel.grid[1])};
  const std::size_t threads = kernel.thread_count();
  live_ = static_cast<std::uint32_t>(threads);
  shared_.assign(std::size_t{kernel.static_shared} + kernel.dynamic_shared, static_cast<char>(0xa5));
  local_.resize((threads + warp_lanes - 1) / warp_lanes * warp_lanes * kernel.local_bytes);
  warps_.resize((threads + warp_lanes - 1) / warp_lanes);
  const auto number = static_cast<std::uint32_t>(kernel.entry - kernel.program->functions.data());
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    Warp& warp = warps_[i];
    warp.number = static_cast<unsigned>(i);
    const std::size_t left = threads - i * warp_lanes;
    warp.all = left >= warp_lanes ? ~0u : (1u << left) - 1;
    warp.live = warp.all;
    warp.registers.resize(kernel.entry->frame_words);
    Group& group = warp.groups.emplace_back();
    group.mask = warp.all;
    group.pc = kernel.entry->begin;
    group.function = number;
  }
}

Turn Block::run(std::uint64_t budget, std::uint64_t now_ns) {
  turn_ = {};
  started_ns_ = now_ns;
  slept_ = 0;
  for (Warp& warp : warps_) {
    warp.issued = 0;
  }
  std::uint64_t issued = 0;
  while (true) {
    wrote_ = fresh_ = waits_ = reads_ = false;
    ++turns_;
    for (Warp& warp : warps_) {
      if (warp.live != 0) {
        looks_at_time_ = false;
        run_warp(warp, slice);
      }
    }
    has_jumped_ = false;
    turn_.issued = turn_.longest = 0;
    for (const Warp& warp : warps_) {
      turn_.issued += warp.issued;
      turn_.longest = std::max(turn_.longest, warp.issued);
    }
    if (live_ == 0) {
      turn_.is_over = true;
      break;
    }
    if (turn_.issued == issued) {
      throw Fault(Fault::Kind::stuck, "each thread waits at a barrier for threads that do not come");
    }
    issued = turn_.issued;
    turn_.is_idle = !wrote_ && !fresh_ && waits_;
    turn_.reads_time_alone = turn_.is_idle && !reads_ && slept_ == 0;
    if (turn_.is_idle || slept_ > 0 || issued >= budget) {
      break;
    }
  }
  turn_.slept_ns = slept_;
  return turn_;
}

unsigned Block::line() const {
  for (const Warp& warp : warps_) {
    for (const Group& group : warp.groups) {
      return kernel_.program->code[group.pc].line;
    }
  }
  return 0;
}

bool Block::is_stuck() {
  constexpr unsigned longest_loop = 512;
  for (Warp& warp : warps_) {
    const bool is_waiting =
        std::ranges::none_of(warp.groups, [](const Group& group) { return group.state == Group::State::ready; });
    if (warp.live == 0 || is_waiting) {
      continue;
    }
    const std::vector<Group> groups = warp.groups;
    const std::vector<std::uint32_t> registers = warp.registers;
    wrote_ = fresh_ = false;
    bool repeats = false;
    for (unsigned i = 0; i < longest_loop && !repeats && !wrote_ && !fresh_; ++i) {
      run_warp(warp, 1);
      repeats =
          warp.registers == registers && std::ranges::equal(warp.groups, groups, [](const Group& a, const Group& b) {
            return a.mask == b.mask && a.state == b.state && a.meets(b);
          });
    }
    if (!repeats || wrote_ || fresh_) {
      return false;
    }
  }
  return live_ != 0;
}

bool Block::repeats(Warp& warp, std::uint64_t now_ns, std::vector<std::uint32_t>& path) {
  const Group before = warp.groups.front();
  const std::uint64_t issued = warp.issued;
  kept_registers_.assign(warp.registers.begin(), warp.registers.end());
  const bool is_new = path.empty();
  started_ns_ = now_ns;
  is_trial_ = true;
  std::size_t steps = 0;
  unsigned laps = 0;
  bool is_same = true;
  try {
    do {
      if (is_new) {
        path.push_back(warp.groups.front().pc);
      }
      is_same = steps < path.size() && path.size() <= slice && path[steps] == warp.groups.front().pc;
      if (is_same) {
        std::uint64_t one = 1;
        run_group(warp, 0, one);
      }
      is_same = is_same && warp.groups.size() == 1 && warp.groups.front().state == Group::State::ready;
      ++steps;
      laps += is_same && warp.groups.front().pc == before.pc ? 1 : 0;
    } while (is_same && laps < 2);  // the first lap may begin behind its look at the time
  } catch (const Deed&) {
    is_same = false;
  } catch (const Fault&) {
    is_same = false;
  }
  is_trial_ = false;
  warp.groups.assign(1, before);
  warp.issued = issued;
  warp.registers.assign(kept_registers_.begin(), kept_registers_.end());
  const auto second = path.begin() + static_cast<std::ptrdiff_t>(steps / 2);
  return is_same && steps == path.size() && steps % 2 == 0 && std::equal(path.begin(), second, second);
}

std::uint64_t Block::time_of_loops(std::uint64_t now_ns) {
  constexpr std::uint64_t longest_ns = 1'000'000'000;
  constexpr std::uint64_t exact_to_ns = 16;
  std::uint64_t least = longest_ns;
  std::vector<std::uint32_t> path;
  for (Warp& warp : warps_) {
    const bool is_waiting =
        std::ranges::none_of(warp.groups, [](const Group& group) { return group.state == Group::State::ready; });
    if (warp.live == 0 || is_waiting) {
      continue;
    }
    if (warp.groups.size() != 1) {
      return 0;
    }
    // Most warps of a block are in one loop.
    if (!path.empty() && repeats(warp, now_ns + least, path)) {
      continue;
    }
    path.clear();
    if (!repeats(warp, now_ns, path)) {
      return 0;
    }
    std::uint64_t low = 0;
    std::uint64_t high = exact_to_ns;
    while (high < least && repeats(warp, now_ns + high, path)) {
      low = std::exchange(high, 2 * high);
    }
    high = std::min(high, least);
    while (high - low > exact_to_ns) {
      const std::uint64_t middle = low + (high - low) / 2;
      (repeats(warp, now_ns + middle, path) ? low : high) = middle;
    }
    least = low;
  }
  // By the end of this time, the loop ends in a lap or two.
  has_jumped_ = true;
  return least + exact_to_ns;
}

// Merges groups that stand at one place, and picks the next to run: the deepest in calls, then the one that is furthest
// behind, so that lanes meet again where their paths do. From time to time the one that ran longest ago, so that lanes
// may wait for each other.
bool Block::choose(Warp& warp, std::size_t& index) {
  auto& groups = warp.groups;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t j = i + 1; j < groups.size();) {
      if (groups[i].state == Group::State::ready && groups[j].state == Group::State::ready &&
          groups[i].meets(groups[j])) {
        groups[i].mask |= groups[j].mask;
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(j));
      } else {
        ++j;
      }
    }
  }
  const bool oldest = turns_ % oldest_every == 0;
  const Group* best = nullptr;
  for (const Group& group : groups) {
    if (group.state != Group::State::ready) {
      continue;
    }
    const bool is_better = best == nullptr                            ? true
                           : oldest                                   ? group.turn < best->turn
                           : group.calls.size() != best->calls.size() ? group.calls.size() > best->calls.size()
                                                                      : group.pc < best->pc;
    best = is_better ? &group : best;
  }
  if (best == nullptr) {
    return false;
  }
  index = static_cast<std::size_t>(best - groups.data());
  return true;
}

void Block::run_warp(Warp& warp, std::uint64_t budget) {
  while (budget > 0 && warp.live != 0) {
    while (warp.groups.size() > 1 && join_waiting(warp)) {
    }
    std::size_t index = 0;
    if (!choose(warp, index)) {
      if (!join_waiting(warp)) {
        return;
      }
      continue;
    }
    run_group(warp, index, budget);
  }
}

// Splits a group: the lanes of `mask` leave it, and stand in a new group at the end of the list.
static Group& split(Warp& warp, std::size_t index, std::uint32_t mask) {
  Group other = warp.groups[index];
  warp.groups[index].mask &= ~mask;
  other.mask = mask;
  return warp.groups.emplace_back(std::move(other));
}

void Block::run_group(Warp& warp, std::size_t index, std::uint64_t& budget) {
  const Instruction* code = kernel_.program->code.data();
  std::uint32_t meet = UINT32_MAX;
  for (const Group& other : warp.groups) {
    if (&other != &warp.groups[index] && other.state == Group::State::ready) {
      meet = std::min(meet, other.pc);
    }
  }
  Group& group = warp.groups[index];
  if (group.pc >= meet) {
    meet = UINT32_MAX;
  }
  group.turn = ++turns_of_groups_;
  Run run{warp.registers.data() + group.frame, kernel_.constants.data(), group.mask, group.local, warp, *this};
  while (budget > 0 && group.pc < meet) {
    const Instruction& instruction = code[group.pc];
    current_ = &instruction;
    --budget;
    ++warp.issued;
    std::uint32_t mask = group.mask;
    if (instruction.predicate != no_place) {
      const std::uint32_t bits = run.frame[instruction.predicate];
      mask &= instruction.negated ? ~bits : bits;
    }
    if (instruction.flow == Flow::next) {
      if (mask != 0) {
        run.mask = mask;
        instruction.run(run, instruction);
      }
      ++group.pc;
      continue;
    }
    if (mask == 0) {
      ++group.pc;
      continue;
    }
    if (instruction.flow == Flow::branch) {
      if (mask == group.mask) {
        const bool is_loop = instruction.value <= group.pc;
        group.pc = instruction.value;
        if (is_loop && looks_at_time_ && !is_trial_ && !has_jumped_) {
          budget = 0;  // a lap of waiting is enough for now
        }
        continue;
      }
      ++group.pc;
      split(warp, index, mask).pc = instruction.value;
      return;
    }
    // The lanes that do not take part go on by themselves.
    if (mask != group.mask) {
      Group& rest = split(warp, index, group.mask & ~mask);
      ++rest.pc;
    }
    run.mask = mask;
    follow(warp, index, run, instruction);
    return;
  }
}

// Carries out what changes the path of all lanes of a group.
void Block::follow(Warp& warp, std::size_t index, Run& run, const Instruction& instruction) {
  Group& group = warp.groups[index];
  switch (instruction.flow) {
    case Flow::table: {
      const std::uint32_t* places = run.in(instruction.a);
      const auto& targets = kernel_.program->tables[instruction.extra];
      const std::uint32_t chosen = places[first_lane(group.mask)];
      std::uint32_t same = 0;
      for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        same |= lane_is(group.mask, lane) && places[lane] == chosen ? lane_bit[lane] : 0;
      }
      if (chosen >= targets.size()) {
        throw Fault(Fault::Kind::illegal_address, "brx.idx names no label");
      }
      if (same == group.mask) {
        group.pc = targets[chosen];
      } else {
        split(warp, index, same).pc = targets[chosen];
      }
      return;
    }
    case Flow::call:
    case Flow::call_address:
      return call(warp, index, run, instruction);
    case Flow::give_back:
      if (!group.calls.empty()) {
        return give_back(warp, group);
      }
      [[fallthrough]];
    case Flow::exit: {
      const std::uint32_t mask = group.mask;
      warp.groups.erase(warp.groups.begin() + static_cast<std::ptrdiff_t>(index));
      return end_lanes(warp, mask);
    }
    case Flow::trap:
      throw Fault(Fault::Kind::trap, "trap");
    case Flow::barrier:
      return arrive(group, run, instruction);
    default: {
      const std::uint32_t members = run.in(instruction.d)[first_lane(group.mask)];
      if (const std::uint32_t needed = members & warp.live; (group.mask & needed) == needed) {
        if (instruction.run != nullptr) {
          instruction.run(run, instruction);
        }
        ++group.pc;
      } else {
        group.state = Group::State::together;
      }
    }
  }
}

// Lets lanes go on that wait for each other in an instruction with a mask of lanes.
bool Block::join_waiting(Warp& warp) {
  const Instruction* code = kernel_.program->code.data();
  for (Group& group : warp.groups) {
    if (group.state != Group::State::together) {
      continue;
    }
    // A barrier of lanes has no result: its lanes may stand at different places.
    const bool is_barrier = code[group.pc].run == nullptr;
    const auto is_with = [&](const Group& other) {
      return other.state == Group::State::together && (is_barrier ? code[other.pc].run == nullptr : group.meets(other));
    };
    std::uint32_t here = 0;
    for (const Group& other : warp.groups) {
      here |= is_with(other) ? other.mask : 0;
    }
    const Instruction& instruction = code[group.pc];
    const std::uint32_t* members = instruction.d >= 0 ? warp.registers.data() + group.frame + instruction.d
                                                      : kernel_.constants.data() + ~instruction.d;
    const std::uint32_t needed = members[first_lane(group.mask)] & warp.live;
    if ((here & needed) != needed) {
      continue;
    }
    if (is_barrier) {
      for (Group& other : warp.groups) {
        if (&other != &group && is_with(other)) {
          other.state = Group::State::ready;
          ++other.pc;
        }
      }
      group.state = Group::State::ready;
      ++group.pc;
      return true;
    }
    group.mask = here;
    group.state = Group::State::ready;
    const Group* kept = &group;
    const std::uint32_t pc = group.pc;
    std::erase_if(warp.groups, [&](const Group& other) {
      return &other != kept && other.state == Group::State::together && other.pc == pc && (other.mask & here) != 0;
    });
    return true;
  }
  return false;
}

void Block::call(Warp& warp, std::size_t index, Run& run, const Instruction& instruction) {
  const Program& program = *kernel_.program;
  const Call& called = program.calls[instruction.extra];
  if (called.external != External::none) {
    call_external(run, called);
    ++warp.groups[index].pc;
    return;
  }
  std::uint32_t number = called.function;
  if (instruction.flow == Flow::call_address) {
    const auto* targets = lanes<std::uint64_t>(run, instruction.a);
    const std::uint64_t target = targets[first_lane(run.mask)];
    std::uint32_t same = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      same |= lane_is(run.mask, lane) && targets[lane] == target ? lane_bit[lane] : 0;
    }
    if (same != run.mask) {
      split(warp, index, run.mask & ~same);
    }
    if (target - function_window >= program.functions.size()) {
      throw Fault(Fault::Kind::illegal_address, "a call reaches no function");
    }
    number = static_cast<std::uint32_t>(target - function_window);
    if (const std::string& unknown = program.functions[number].unknown; !unknown.empty()) {
      throw Fault(Fault::Kind::trap, "the called function cannot be executed: " + unknown);
    }
  }
  Group& group = warp.groups[index];
  const Function& caller = program.functions[group.function];
  const Function& callee = program.functions[number];
  group.calls.push_back({group.pc + 1, group.frame, group.local, instruction.extra, group.function});
  group.frame += caller.frame_words;
  group.local += rounded_up(caller.local_bytes, 16);
  if (group.local + callee.local_bytes > kernel_.local_bytes) {
    throw Fault(Fault::Kind::illegal_address, "the local memory of a thread is full: functions call too deep");
  }
  if (warp.registers.size() < group.frame + callee.frame_words) {
    warp.registers.resize(group.frame + callee.frame_words);
  }
  const std::size_t arguments = std::min(called.arguments.size(), callee.parameters.size());
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    char* memory = lane_is(group.mask, lane) ? local_memory(warp, lane) : nullptr;
    for (std::size_t i = 0; memory != nullptr && i < arguments; ++i) {
      std::memcpy(memory + group.local + callee.parameters[i].offset,
                  memory + group.calls.back().local + called.arguments[i].offset,
                  std::min(called.arguments[i].size, callee.parameters[i].size));
    }
  }
  group.function = number;
  group.pc = callee.begin;
}

void Block::give_back(Warp& warp, Group& group) {
  const Program& program = *kernel_.program;
  const Frame back = group.calls.back();
  const Call& called = program.calls[back.call];
  const Function& callee = program.functions[group.function];
  const std::size_t results = std::min(called.results.size(), callee.results.size());
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    char* memory = lane_is(group.mask, lane) ? local_memory(warp, lane) : nullptr;
    for (std::size_t i = 0; memory != nullptr && i < results; ++i) {
      std::memcpy(memory + back.local + called.results[i].offset, memory + group.local + callee.results[i].offset,
                  std::min(called.results[i].size, callee.results[i].size));
    }
  }
  group.calls.pop_back();
  group.pc = back.pc;
  group.frame = back.frame;
  group.local = back.local;
  group.function = back.function;
}

// The functions of the device's run-time library that are part of the driver.
void Block::call_external(Run& run, const Call& called) {
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (!lane_is(run.mask, lane)) {
      continue;
    }
    const char* memory = local_memory(run.warp, lane) + run.local;
    const auto argument = [&](std::size_t i) {
      std::uint64_t value = 0;
      if (i < called.arguments.size()) {
        std::memcpy(&value, memory + called.arguments[i].offset, std::min<std::size_t>(8, called.arguments[i].size));
      }
      return value;
    };
    note_write();
    if (called.external == External::print) {
      const std::string text = formatted(*this, run, lane, argument(0), argument(1));
      surroundings_.print(text);
      if (!called.results.empty()) {
        const auto count = static_cast<std::uint32_t>(text.size());
        std::memcpy(const_cast<char*>(memory) + called.results[0].offset, &count, sizeof count);
      }
    } else if (called.external == External::allocate) {
      const std::uint64_t address = surroundings_.allocate(argument(0));
      if (!called.results.empty()) {
        std::memcpy(const_cast<char*>(memory) + called.results[0].offset, &address, sizeof address);
      }
    } else if (called.external == External::release) {
      surroundings_.release(argument(0));
      forget_spans();
    } else if (called.external == External::set_condition) {
      surroundings_.set_condition(argument(0), static_cast<std::uint32_t>(argument(1)));
    } else {
      const auto text = [&](std::size_t i) { return text_at(run, lane, argument(i)); };
      const unsigned thread = run.warp.number * warp_lanes + lane;
      surroundings_.print(text(1) + ":" + std::to_string(argument(2)) + ": " + text(3) + ": block: [" +
                          std::to_string(position_[0]) + "," + std::to_string(position_[1]) + "," +
                          std::to_string(position_[2]) + "], thread: [" + std::to_string(thread % kernel_.threads[0]) +
                          "," + std::to_string(thread / kernel_.threads[0] % kernel_.threads[1]) + "," +
                          std::to_string(thread / kernel_.threads[0] / kernel_.threads[1]) + "] Assertion `" + text(0) +
                          "` failed.\n");
      throw Fault(Fault::Kind::assertion, "assertion `" + text(0) + "` failed");
    }
  }
}

std::string Block::text_at(const Run& run, unsigned lane, std::uint64_t address) {
  std::string text;
  constexpr std::size_t longest = 4096;
  while (text.size() < longest) {
    const char c = *at(run, Space::generic, lane, address + text.size(), 1, false);
    if (c == '\0') {
      break;
    }
    text += c;
  }
  return text;
}

void Block::end_lanes(Warp& warp, std::uint32_t mask) {
  note_write();
  warp.live &= ~mask;
  live_ -= count_of(mask);
  for (unsigned i = 0; i < barriers_.size(); ++i) {
    if (barriers_[i].expected == 0 && barriers_[i].arrived > 0 && barriers_[i].arrived >= live_) {
      open_barrier(i);
    }
  }
}

void Block::arrive(Group& group, Run& run, const Instruction& instruction) {
  const unsigned lane = first_lane(group.mask);
  const std::uint32_t number = run.in(instruction.a)[lane];
  if (number >= barriers_.size()) {
    throw Fault(Fault::Kind::trap, "there are 16 barriers");
  }
  note_write();
  Barrier& barrier = barriers_[number];
  barrier.expected = instruction.b == no_place ? 0 : run.in(instruction.b)[lane];
  barrier.arrived += count_of(group.mask);
  if (instruction.c != no_place) {
    const std::uint32_t votes = *run.in(instruction.c);
    barrier.votes += count_of(group.mask & (instruction.is_signed ? ~votes : votes));
  }
  if (instruction.value == barrier_arrives) {
    ++group.pc;
  } else {
    group.state = Group::State::barrier;
    group.barrier = static_cast<std::uint8_t>(number);
  }
  if (barrier.arrived >= (barrier.expected == 0 ? live_ : barrier.expected)) {
    open_barrier(number);
  }
}

void Block::open_barrier(unsigned number) {
  const Barrier barrier = std::exchange(barriers_[number], {});
  for (Warp& warp : warps_) {
    for (Group& group : warp.groups) {
      if (group.state != Group::State::barrier || group.barrier != number) {
        continue;
      }
      const Instruction& instruction = kernel_.program->code[group.pc];
      Run run{warp.registers.data() + group.frame, kernel_.constants.data(), group.mask, group.local, warp, *this};
      switch (instruction.value) {
        case barrier_counts:
          each_lane<std::uint32_t>(run, instruction.to, [&](unsigned) { return barrier.votes; });
          break;
        case barrier_all:
          put_predicate(run, instruction.to, barrier.votes == barrier.arrived ? ~0u : 0);
          break;
        case barrier_any:
          put_predicate(run, instruction.to, barrier.votes > 0 ? ~0u : 0);
          break;
        default:
          break;
      }
      group.state = Group::State::ready;
      ++group.pc;
    }
  }
}

std::uint64_t Block::cycles(const Warp& warp) const noexcept {
  return static_cast<std::uint64_t>(static_cast<double>(started_ns_ + slept_) * kernel_.rates.clock_ghz) +
         warp.issued * cycles_of_instruction;
}

std::uint64_t Block::now_ns(const Warp& warp) const noexcept {
  return started_ns_ + slept_ +
         static_cast<std::uint64_t>(static_cast<double>(warp.issued * cycles_of_instruction) / kernel_.rates.clock_ghz);
}

void Block::note_read(std::uint64_t address, std::uint64_t value) {
  end_trial();
  reads_ = true;
  const auto number = static_cast<std::size_t>(current_ - kernel_.program->code.data());
  Seen& seen = seen_[number % seen_.size()];
  if (seen.instruction == current_ && seen.address == address && seen.value == value) {
    waits_ = true;
  } else {
    seen = {address, value, current_};
    fresh_ = true;
  }
}

std::string Block::place() const {
  const std::string text = "kernel " + kernel_.entry->name + ", block (" + std::to_string(position_[0]) + ", " +
                           std::to_string(position_[1]) + ", " + std::to_string(position_[2]) + ")";
  return text + ", line " + std::to_string(current_ == nullptr ? 0 : current_->line) + " of the PTX";
}

const Span& Block::global_span(std::uint64_t address) {
  for (const Span& span : spans_) {
    if (address - span.begin < span.end - span.begin) {
      return span;
    }
  }
  Span& span = spans_[next_span_++ % spans_.size()];
  if ((address & window_mask) == workspace_window) {
    span = {workspace_window, workspace_window + sizeof *kernel_.workspace,
            reinterpret_cast<char*>(kernel_.workspace->data()), true, false};
  } else {
    span = surroundings_.find(address);
  }
  return span;
}

void Block::forget_spans() { spans_ = {}; }

char* Block::at(const Run& run, Space space, unsigned lane, std::uint64_t address, unsigned size, bool writes) {
  if (writes) {
    end_trial();
  }
  const auto refuse = [&](Fault::Kind kind, const char* what) {
    char text[160];
    std::snprintf(text, sizeof text, "%s of %u bytes at %#llx by thread %u: %s", writes ? "a write" : "a read", size,
                  static_cast<unsigned long long>(address), run.warp.number * warp_lanes + lane, what);
    throw Fault(kind, text);
  };
  if ((address & (size - 1)) != 0) {
    refuse(Fault::Kind::misaligned_address, "the address is not aligned");
  }
  if (space == Space::generic) {
    switch (address & window_mask) {
      case shared_window:
        space = Space::shared;
        break;
      case local_window:
        space = Space::local;
        break;
      case parameter_window:
        space = Space::parameter;
        break;
      default:
        space = Space::global;
    }
    address &= space == Space::global ? ~std::uint64_t{0} : ~window_mask;
  }
  char* begin = nullptr;
  std::uint64_t bytes = 0;
  switch (space) {
    case Space::shared:
      address &= ~window_mask;
      begin = shared_.data();
      bytes = shared_.size();
      break;
    case Space::local:
      address &= ~window_mask;
      begin = local_memory(run.warp, lane);
      bytes = kernel_.local_bytes;
      break;
    case Space::parameter:
      address &= ~window_mask;
      begin = reinterpret_cast<char*>(const_cast<unsigned char*>(kernel_.parameters.data()));
      bytes = writes ? 0 : kernel_.parameters.size();
      break;
    default: {
      const Span& span = global_span(address);
      if (address < span.begin || address >= span.end || size > span.end - address) {
        refuse(Fault::Kind::illegal_address, "no memory is there");
      }
      if (writes && !span.is_writable) {
        refuse(Fault::Kind::illegal_address, "the memory can only be read");
      }
      if (span.is_watched) {
        writes ? surroundings_.writes(address, size) : surroundings_.reads(address, size);
      }
      return span.host + (address - span.begin);
    }
  }
  if (address >= bytes || size > bytes - address) {
    refuse(Fault::Kind::illegal_address, space == Space::shared  ? "outside of the block's shared memory"
                                         : space == Space::local ? "outside of the thread's local memory"
                                                                 : "outside of the parameters");
  }
  return begin + address;
}

}  // namespace software_driver::ptx
