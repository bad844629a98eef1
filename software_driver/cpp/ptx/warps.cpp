// Instructions between the lanes of a warp, moves, and special registers.
#include <utility>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

enum class Shuffle : std::uint32_t { up, down, butterfly, index };

void shuffle(Run& run, const Instruction& i) {
  const std::uint32_t* values = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  const auto mode = static_cast<Shuffle>(i.value);
  std::array<std::uint32_t, warp_lanes> result{};
  const std::uint32_t inside = each_bit([&](unsigned lane) {
    const std::uint32_t segment = c[lane] >> 8 & 31;
    const std::uint32_t by = b[lane] & 31;
    const std::uint32_t least = lane & segment;
    const std::uint32_t most = least | (c[lane] & 31 & ~segment);
    std::int32_t from = 0;
    bool is_inside = false;
    switch (mode) {
      case Shuffle::up:
        from = static_cast<std::int32_t>(lane) - static_cast<std::int32_t>(by);
        is_inside = from >= static_cast<std::int32_t>(most);
        break;
      case Shuffle::down:
        from = static_cast<std::int32_t>(lane + by);
        is_inside = from <= static_cast<std::int32_t>(most);
        break;
      case Shuffle::butterfly:
        from = static_cast<std::int32_t>(lane ^ by);
        is_inside = from <= static_cast<std::int32_t>(most);
        break;
      case Shuffle::index:
        from = static_cast<std::int32_t>(least | (by & ~segment));
        is_inside = from <= static_cast<std::int32_t>(most);
        break;
    }
    result[lane] = values[is_inside ? static_cast<std::uint32_t>(from) & 31 : lane];
    return is_inside;
  });
  if (i.to != no_place) {
    each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return result[lane]; });
  }
  put_predicate(run, i.second, inside);
}

enum class Vote : std::uint32_t { all, any, uniform, ballot };

void vote(Run& run, const Instruction& i) {
  const std::uint32_t bits = (i.is_signed ? ~*run.in(i.a) : *run.in(i.a)) & run.mask;
  const bool all = bits == run.mask;
  switch (static_cast<Vote>(i.value)) {
    case Vote::all:
      return put_predicate(run, i.to, all ? ~0u : 0);
    case Vote::any:
      return put_predicate(run, i.to, bits != 0 ? ~0u : 0);
    case Vote::uniform:
      return put_predicate(run, i.to, all || bits == 0 ? ~0u : 0);
    default:
      return each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return bits; });
  }
}

template <class T>
void match_any(Run& run, const Instruction& i) {
  std::array<Lane<T>, warp_lanes> values;
  std::copy_n(lanes<T>(run, i.a), warp_lanes, values.begin());
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    return each_bit([&](unsigned other) { return lane_is(run.mask, other) && values[other] == values[lane]; });
  });
}
template <class T>
void match_all(Run& run, const Instruction& i) {
  const auto* values = lanes<T>(run, i.a);
  const auto first = values[static_cast<unsigned>(std::countr_zero(run.mask))];
  const bool all = (each_bit([&](unsigned lane) { return values[lane] == first; }) & run.mask) == run.mask;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return all ? run.mask : 0; });
  put_predicate(run, i.second, all ? ~0u : 0);
}

enum class Reduction : std::uint32_t { add, min, max, bit_and, bit_or, bit_xor };

template <class T>
void reduce(Run& run, const Instruction& i) {
  const auto* values = lanes<T>(run, i.a);
  const auto kind = static_cast<Reduction>(i.value);
  bool is_first = true;
  std::uint32_t result = 0;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (!lane_is(run.mask, lane)) {
      continue;
    }
    const std::uint32_t value = values[lane];
    if (is_first) {
      result = value;
      is_first = false;
      continue;
    }
    const T a = static_cast<T>(result);
    const T b = static_cast<T>(value);
    result = kind == Reduction::add       ? result + value
             : kind == Reduction::min     ? static_cast<std::uint32_t>(std::min(a, b))
             : kind == Reduction::max     ? static_cast<std::uint32_t>(std::max(a, b))
             : kind == Reduction::bit_and ? result & value
             : kind == Reduction::bit_or  ? result | value
                                          : result ^ value;
  }
  each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return result; });
}

void active_mask(Run& run, const Instruction& i) {
  each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return run.mask; });
}

void elect(Run& run, const Instruction& i) {
  const auto leader = static_cast<std::uint32_t>(std::countr_zero(run.mask));
  if (i.to != no_place) {
    each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return leader; });
  }
  put_predicate(run, i.second, lane_bit[leader]);
}

void sleep(Run& run, const Instruction& i) {
  run.block.sleep(run.in(i.a)[static_cast<unsigned>(std::countr_zero(run.mask))]);
}

template <class T>
constexpr auto same = [](T a) { return a; };

template <class T>
void select(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  const std::uint32_t bits = i.is_signed ? ~*run.in(i.c) : *run.in(i.c);
  each_lane<T>(run, i.to, [&](unsigned lane) { return static_cast<T>(lane_is(bits, lane) ? a[lane] : b[lane]); });
}

// slct: by the sign of the third operand.
template <class T, bool is_float>
void select_by_sign(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  const std::uint32_t* c = run.in(i.c);
  each_lane<T>(run, i.to, [&](unsigned lane) {
    const bool is_first = is_float ? std::bit_cast<float>(c[lane]) >= 0 : static_cast<std::int32_t>(c[lane]) >= 0;
    return static_cast<T>(is_first ? a[lane] : b[lane]);
  });
}

void move_predicate(Run& run, const Instruction& i) { put_predicate(run, i.to, *run.in(i.a)); }

// Vectors of registers as one, and one as a vector.
void pack(Run& run, const Instruction& i) {
  const auto& parts = run.block.kernel().program->vectors[i.extra];
  const unsigned bits = 8u * i.bytes;
  const auto value = [&](unsigned lane) {
    std::uint64_t all = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const std::uint64_t one = run.in(parts[part])[lane];
      all |= (bits == 32 ? one : one & ((std::uint64_t{1} << bits) - 1)) << (bits * part);
    }
    return all;
  };
  if (i.width == 8) {
    each_lane<std::uint64_t>(run, i.to, value);
  } else {
    each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return static_cast<std::uint32_t>(value(lane)); });
  }
}
void unpack(Run& run, const Instruction& i) {
  const auto& parts = run.block.kernel().program->vectors[i.extra];
  const unsigned bits = 8u * i.bytes;
  std::array<std::uint64_t, warp_lanes> all{};
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    all[lane] = i.width == 8 ? lanes<std::uint64_t>(run, i.a)[lane] : run.in(i.a)[lane];
  }
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part] != no_place) {
      each_lane<std::uint32_t>(run, parts[part], [&](unsigned lane) {
        const std::uint64_t one = all[lane] >> (bits * part);
        return static_cast<std::uint32_t>(bits == 32 ? one : one & ((std::uint64_t{1} << bits) - 1));
      });
    }
  }
}

void narrow(Run& run, const Instruction& i) {
  const auto* a = lanes<std::uint64_t>(run, i.a);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return static_cast<std::uint32_t>(a[lane]); });
}

void add_offset(Run& run, const Instruction& i) {
  const auto* a = lanes<std::uint64_t>(run, i.a);
  each_lane<std::uint64_t>(run, i.to, [&](unsigned lane) { return a[lane] + static_cast<std::uint64_t>(i.offset); });
}

// Special registers.
enum class Special : std::uint32_t {
  thread,
  threads,
  block,
  blocks,
  cluster,
  clusters,
  block_of_cluster,
  blocks_of_cluster,
  rank_of_cluster,
  size_of_cluster,
  is_cluster,
  lane,
  warp,
  warps,
  sm,
  sms,
  grid,
  mask_eq,
  mask_le,
  mask_lt,
  mask_ge,
  mask_gt,
  clock,
  clock_high,
  timer,
  timer_high,
  dynamic_shared,
  total_shared,
  workspace_low,
  workspace_high,
  zero
};

struct SpecialName {
  std::string_view name;
  Special which;
  bool is_wide;
};
constexpr SpecialName special_names[] = {{"%tid", Special::thread, false},
                                         {"%ntid", Special::threads, false},
                                         {"%ctaid", Special::block, false},
                                         {"%nctaid", Special::blocks, false},
                                         {"%clusterid", Special::cluster, false},
                                         {"%nclusterid", Special::clusters, false},
                                         {"%cluster_ctaid", Special::block_of_cluster, false},
                                         {"%cluster_nctaid", Special::blocks_of_cluster, false},
                                         {"%cluster_ctarank", Special::rank_of_cluster, false},
                                         {"%cluster_nctarank", Special::size_of_cluster, false},
                                         {"%laneid", Special::lane, false},
                                         {"%warpid", Special::warp, false},
                                         {"%nwarpid", Special::warps, false},
                                         {"%smid", Special::sm, false},
                                         {"%nsmid", Special::sms, false},
                                         {"%gridid", Special::grid, true},
                                         {"%lanemask_eq", Special::mask_eq, false},
                                         {"%lanemask_le", Special::mask_le, false},
                                         {"%lanemask_lt", Special::mask_lt, false},
                                         {"%lanemask_ge", Special::mask_ge, false},
                                         {"%lanemask_gt", Special::mask_gt, false},
                                         {"%clock", Special::clock, false},
                                         {"%clock_hi", Special::clock_high, false},
                                         {"%clock64", Special::clock, true},
                                         {"%globaltimer", Special::timer, true},
                                         {"%globaltimer_lo", Special::timer, false},
                                         {"%globaltimer_hi", Special::timer_high, false},
                                         {"%dynamic_smem_size", Special::dynamic_shared, false},
                                         {"%total_smem_size", Special::total_shared, false},
                                         {"%envreg1", Special::workspace_high, false},
                                         {"%envreg2", Special::workspace_low, false},
                                         {"%current_graph_exec", Special::zero, true}};

unsigned component(std::uint32_t axis, const std::array<unsigned, 3>& all) { return all[axis]; }

// The same value in all lanes.
std::uint64_t uniform_value(const Run& run, Special which, std::uint32_t axis) {
  const Block& block = run.block;
  const Kernel& kernel = block.kernel();
  const auto in_cluster = [&](std::size_t i) { return block.position()[i] % kernel.cluster[i]; };
  switch (which) {
    case Special::threads:
      return component(axis, kernel.threads);
    case Special::block:
      return component(axis, block.position());
    case Special::blocks:
      return component(axis, kernel.grid);
    case Special::cluster:
      return block.position()[axis] / kernel.cluster[axis];
    case Special::clusters:
      return kernel.grid[axis] / kernel.cluster[axis];
    case Special::block_of_cluster:
      return in_cluster(axis);
    case Special::blocks_of_cluster:
      return kernel.cluster[axis];
    case Special::rank_of_cluster:
      return in_cluster(0) + std::uint64_t{kernel.cluster[0]} * (in_cluster(1) + kernel.cluster[1] * in_cluster(2));
    case Special::size_of_cluster:
      return std::uint64_t{kernel.cluster[0]} * kernel.cluster[1] * kernel.cluster[2];
    case Special::warp:
      return run.warp.number;
    case Special::warps:
      return (kernel.thread_count() + warp_lanes - 1) / warp_lanes;
    case Special::sm:
      return block.smid();
    case Special::sms:
      return kernel.rates.sms;
    case Special::grid:
      return kernel.grid_id;
    case Special::clock:
      return block.cycles(run.warp);
    case Special::clock_high:
      return block.cycles(run.warp) >> 32;
    case Special::timer:
      return block.now_ns(run.warp);
    case Special::timer_high:
      return block.now_ns(run.warp) >> 32;
    case Special::dynamic_shared:
      return kernel.dynamic_shared;
    case Special::total_shared:
      return std::uint64_t{kernel.static_shared} + kernel.dynamic_shared;
    case Special::workspace_low:
      return workspace_window & 0xffffffff;
    case Special::workspace_high:
      return workspace_window >> 32;
    default:
      return 0;
  }
}

void read_special(Run& run, const Instruction& i) {
  const auto which = static_cast<Special>(i.value & 0xff);
  const std::uint32_t axis = i.value >> 8;
  const auto put = [&](auto&& value) {
    if (i.width == 8) {
      each_lane<std::uint64_t>(run, i.to, [&](unsigned lane) { return static_cast<std::uint64_t>(value(lane)); });
    } else {
      each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return static_cast<std::uint32_t>(value(lane)); });
    }
  };
  const auto below = [](unsigned lane) { return lane_bit[lane] - 1; };
  switch (which) {
    case Special::thread: {
      const auto& threads = run.block.kernel().threads;
      const unsigned first = run.warp.number * warp_lanes;
      if (axis == 0 && threads[0] % warp_lanes == 0) {
        const unsigned x = first % threads[0];
        return put([x](unsigned lane) { return x + lane; });
      }
      return put([&](unsigned lane) {
        const unsigned thread = first + lane;
        return axis == 0   ? thread % threads[0]
               : axis == 1 ? thread / threads[0] % threads[1]
                           : thread / threads[0] / threads[1];
      });
    }
    case Special::lane:
      return put([](unsigned lane) { return lane; });
    case Special::mask_eq:
      return put([](unsigned lane) { return lane_bit[lane]; });
    case Special::mask_lt:
      return put(below);
    case Special::mask_le:
      return put([&](unsigned lane) { return below(lane) | lane_bit[lane]; });
    case Special::mask_ge:
      return put([&](unsigned lane) { return ~below(lane); });
    case Special::mask_gt:
      return put([&](unsigned lane) { return ~below(lane) & ~lane_bit[lane]; });
    case Special::clock:
    case Special::clock_high:
    case Special::timer:
    case Special::timer_high:
      run.block.note_time();
      break;
    default:
      break;
  }
  const std::uint64_t value = uniform_value(run, which, axis);
  put([value](unsigned) { return value; });
}

template <class Kind, std::size_t count>
bool take_kind(Words& words, const std::pair<std::string_view, Kind> (&kinds)[count], Instruction& instruction) {
  for (const auto& [word, kind] : kinds) {
    if (words.take(word)) {
      instruction.value = static_cast<std::uint32_t>(kind);
      return true;
    }
  }
  return false;
}

}  // namespace

void move_32(Run& run, const Instruction& i) { apply1<std::uint32_t, std::uint32_t, same<std::uint32_t>>(run, i); }
void move_64(Run& run, const Instruction& i) { apply1<std::uint64_t, std::uint64_t, same<std::uint64_t>>(run, i); }

Operation special_register(std::string_view name, Instruction& instruction) {
  std::uint32_t axis = 0;
  if (name.size() > 2 && name[name.size() - 2] == '.' && name.back() >= 'x' && name.back() <= 'z') {
    axis = static_cast<std::uint32_t>(name.back() - 'x');
    name.remove_suffix(2);
  }
  for (const SpecialName& special : special_names) {
    if (special.name == name) {
      instruction.value = static_cast<std::uint32_t>(special.which) | axis << 8;
      instruction.width = special.is_wide ? 8 : 4;
      return &read_special;
    }
  }
  return nullptr;
}

Operation warp_operation(std::string_view name, Words& words, Type type, Instruction& instruction) {
  const bool is_wide = size_of(type) == 8;
  if (name == "mov") {
    return type == Type::pred ? &move_predicate : is_wide ? &move_64 : &move_32;
  }
  if (name == "pack") {
    return &pack;
  }
  if (name == "unpack") {
    return &unpack;
  }
  if (name == "narrow") {
    return &narrow;
  }
  if (name == "offset") {
    return &add_offset;
  }
  if (name == "selp") {
    return is_wide ? &select<std::uint64_t> : &select<std::uint32_t>;
  }
  if (name == "slct") {
    words.take("ftz");
    const Type by = words.take_type();
    return by == Type::f32   ? (is_wide ? &select_by_sign<std::uint64_t, true> : &select_by_sign<std::uint32_t, true>)
           : by == Type::s32 ? (is_wide ? &select_by_sign<std::uint64_t, false> : &select_by_sign<std::uint32_t, false>)
                             : nullptr;
  }
  if (name == "activemask") {
    return &active_mask;
  }
  if (name == "nanosleep") {
    return &sleep;
  }
  if (!words.take("sync")) {
    return nullptr;
  }
  if (name == "shfl") {
    constexpr std::pair<std::string_view, Shuffle> modes[] = {
        {"up", Shuffle::up}, {"down", Shuffle::down}, {"bfly", Shuffle::butterfly}, {"idx", Shuffle::index}};
    return take_kind(words, modes, instruction) ? &shuffle : nullptr;
  }
  if (name == "vote") {
    constexpr std::pair<std::string_view, Vote> kinds[] = {
        {"all", Vote::all}, {"any", Vote::any}, {"uni", Vote::uniform}, {"ballot", Vote::ballot}};
    return take_kind(words, kinds, instruction) ? &vote : nullptr;
  }
  if (name == "match") {
    return words.take("any")   ? (is_wide ? &match_any<std::uint64_t> : &match_any<std::uint32_t>)
           : words.take("all") ? (is_wide ? &match_all<std::uint64_t> : &match_all<std::uint32_t>)
                               : nullptr;
  }
  if (name == "redux") {
    constexpr std::pair<std::string_view, Reduction> kinds[] = {{"add", Reduction::add},   {"min", Reduction::min},
                                                                {"max", Reduction::max},   {"and", Reduction::bit_and},
                                                                {"or", Reduction::bit_or}, {"xor", Reduction::bit_xor}};
    return !take_kind(words, kinds, instruction)    ? nullptr
           : type == Type::s32                      ? &reduce<std::int32_t>
           : type == Type::u32 || type == Type::b32 ? &reduce<std::uint32_t>
                                                    : nullptr;
  }
  return name == "elect" ? &elect : nullptr;
}

}  // namespace software_driver::ptx
