// Instructions that reach memory: loads, stores, atomic operations, address windows.
#include <utility>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

using Addresses = std::array<std::uint64_t, warp_lanes>;
using Pointers = std::array<char*, warp_lanes>;

unsigned first_lane(const Run& run) { return static_cast<unsigned>(std::countr_zero(run.mask)); }

Addresses addresses_of(const Run& run, const Instruction& i) {
  Addresses addresses;
  const auto offset = static_cast<std::uint64_t>(i.offset) + (i.is_frame_relative ? run.local : 0);
  if (i.a == no_place) {
    addresses.fill(offset);
  } else if (i.is_wide_address) {
    const auto* base = lanes<std::uint64_t>(run, i.a);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      addresses[lane] = base[lane] + offset;
    }
  } else {
    const auto* base = lanes<std::uint32_t>(run, i.a);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      addresses[lane] = static_cast<std::uint32_t>(base[lane] + static_cast<std::uint32_t>(offset));
    }
  }
  return addresses;
}

// The places of the bytes of each lane, and whether those of all 32 stand one behind the other.
Pointers pointers_of(Run& run, Space space, const Addresses& addresses, unsigned size, bool writes, bool& is_dense) {
  Pointers pointers{};
  Block& block = run.block;
  const std::uint64_t first = addresses[first_lane(run)];
  const bool is_global =
      space == Space::global || space == Space::constant || (space == Space::generic && (first & window_mask) == 0);
  is_dense = false;
  if (is_global) {
    const Span& span = block.global_span(first);
    if (!span.is_watched && span.host != nullptr && (!writes || span.is_writable) && span.end - span.begin >= size) {
      const std::uint64_t last = span.end - span.begin - size;
      std::uint64_t wrong = 0;
      std::uint64_t uneven = 0;
      for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const std::uint64_t at = addresses[lane] - span.begin;
        const bool is_bad = at > last || (addresses[lane] & (size - 1)) != 0;
        wrong |= is_bad ? lane_bit[lane] : 0;
        uneven |= addresses[lane] ^ (addresses[0] + std::uint64_t{lane} * size);
        // A lane that takes no part has any address.
        pointers[lane] = reinterpret_cast<Pointers::value_type>(reinterpret_cast<std::uintptr_t>(span.host) + at);
      }
      if ((wrong & run.mask) == 0) {
        block.count_bytes(std::uint64_t{size} * static_cast<unsigned>(std::popcount(run.mask)));
        is_dense = run.mask == ~0u && uneven == 0;
        return pointers;
      }
    }
    block.count_bytes(std::uint64_t{size} * static_cast<unsigned>(std::popcount(run.mask)));
  }
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (lane_is(run.mask, lane)) {
      pointers[lane] = block.at(run, space, lane, addresses[lane], size, writes);
    }
  }
  return pointers;
}

Place place_of(const Run& run, const Instruction& i, unsigned element) {
  return i.elements == 1 ? i.to : run.block.kernel().program->vectors[i.extra][element];
}

// `Memory` is what stands in memory, `Kept` what the register is.
template <class Memory, class Kept>
void load_element(Run& run, Place to, const Pointers& pointers, unsigned offset, bool is_dense) {
  Lane<Kept>* out = result_lanes<Kept>(run, to);
  if constexpr (sizeof(Memory) == sizeof(Lane<Kept>)) {
    if (is_dense) {
      std::memcpy(out, pointers[0], sizeof(Memory) * warp_lanes);
      return;
    }
  }
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (lane_is(run.mask, lane)) {
      Memory value;
      std::memcpy(&value, pointers[lane] + offset, sizeof value);
      out[lane] = lane_bits<Kept>(static_cast<Kept>(value));
    }
  }
}

// A parameter of the kernel: the same value in all lanes.
template <class Memory>
void load_parameter(Run& run, const Instruction& i) {
  Memory value;
  std::memcpy(&value, run.block.at(run, i.space, 0, static_cast<std::uint64_t>(i.offset), sizeof value, false),
              sizeof value);
  if (i.width == 8) {
    each_lane<std::uint64_t>(run, i.to, [&](unsigned) { return static_cast<std::uint64_t>(value); });
  } else {
    const auto kept = static_cast<std::uint32_t>(value);
    each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return i.width == 2 ? kept & 0xffff : kept; });
  }
}

template <class Memory>
void load(Run& run, const Instruction& i) {
  const Addresses addresses = addresses_of(run, i);
  bool is_dense = false;
  const unsigned size = sizeof(Memory) * i.elements;
  const Pointers pointers = pointers_of(run, i.space, addresses, size, false, is_dense);
  const unsigned lane = first_lane(run);
  std::uint64_t seen = 0;
  std::memcpy(&seen, pointers[lane], std::min<std::size_t>(size, sizeof seen));
  if (i.space != Space::parameter) {
    run.block.note_read(addresses[lane], seen);
  }
  using Signed = std::is_signed<Memory>;
  for (unsigned element = 0; element < i.elements; ++element) {
    const Place to = place_of(run, i, element);
    const unsigned offset = element * sizeof(Memory);
    if (to == no_place) {
      continue;
    }
    if (i.width == 8) {
      load_element<Memory, std::conditional_t<Signed::value, std::int64_t, std::uint64_t>>(run, to, pointers, offset,
                                                                                           is_dense && i.elements == 1);
    } else if constexpr (sizeof(Memory) <= 4) {
      if (i.width == 4) {
        load_element<Memory, std::conditional_t<Signed::value, std::int32_t, std::uint32_t>>(
            run, to, pointers, offset, is_dense && i.elements == 1);
      } else {
        load_element<Memory, std::conditional_t<Signed::value, std::int16_t, std::uint16_t>>(run, to, pointers, offset,
                                                                                             false);
      }
    }
  }
}

template <class Memory>
void store(Run& run, const Instruction& i) {
  const Addresses addresses = addresses_of(run, i);
  bool is_dense = false;
  const Pointers pointers = pointers_of(run, i.space, addresses, sizeof(Memory) * i.elements, true, is_dense);
  if (i.space != Space::local) {
    run.block.note_write();
  }
  for (unsigned element = 0; element < i.elements; ++element) {
    const Place from = place_of(run, i, element);
    const unsigned offset = element * sizeof(Memory);
    if (i.width == 8) {
      const auto* values = lanes<std::uint64_t>(run, from);
      if (is_dense && i.elements == 1 && sizeof(Memory) == 8) {
        std::memcpy(pointers[0], values, 8 * warp_lanes);
        continue;
      }
      for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if (lane_is(run.mask, lane)) {
          const auto value = static_cast<Memory>(values[lane]);
          std::memcpy(pointers[lane] + offset, &value, sizeof value);
        }
      }
    } else {
      const auto* values = lanes<std::uint32_t>(run, from);
      if (is_dense && i.elements == 1 && sizeof(Memory) == 4) {
        std::memcpy(pointers[0], values, 4 * warp_lanes);
        continue;
      }
      for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if (lane_is(run.mask, lane)) {
          const auto value = static_cast<Memory>(values[lane]);
          std::memcpy(pointers[lane] + offset, &value, sizeof value);
        }
      }
    }
  }
}

// Atomic operations. Other processes and threads of the host may reach the same memory.
enum class Atomic : std::uint32_t { add, min, max, bit_and, bit_or, bit_xor, exchange, compare, increment, decrement };

template <class T>
T atomic_result(Atomic operation, T old, T value, T other, std::uint32_t flags) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    switch (operation) {
      case Atomic::add:
        return static_cast<T>(static_cast<U>(static_cast<U>(old) + static_cast<U>(value)));
      case Atomic::min:
        return std::min(old, value);
      case Atomic::max:
        return std::max(old, value);
      case Atomic::bit_and:
        return static_cast<T>(old & value);
      case Atomic::bit_or:
        return static_cast<T>(old | value);
      case Atomic::bit_xor:
        return static_cast<T>(old ^ value);
      case Atomic::compare:
        return old == value ? other : old;
      case Atomic::increment:
        return old >= value ? T{0} : static_cast<T>(old + 1);
      case Atomic::decrement:
        return old == 0 || old > value ? value : static_cast<T>(old - 1);
      default:
        return value;
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    const bool flushes = (flags & flag_flush) != 0;
    return flushes ? canonical(flushed(flushed(old) + flushed(value))) : canonical(old + value);
  } else {
    return T::of(old.value() + value.value());
  }
}

// Two numbers of 16 bits in one word.
template <class S>
struct Pair {
  S low;
  S high;
  static Pair of_sum(Pair a, Pair b) {
    return {S::of(a.low.value() + b.low.value()), S::of(a.high.value() + b.high.value())};
  }
};

template <class T>
using Bits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

template <class T>
void atomic(Run& run, const Instruction& i) {
  const Addresses addresses = addresses_of(run, i);
  bool is_dense = false;
  const Pointers pointers = pointers_of(run, i.space, addresses, sizeof(T), true, is_dense);
  const auto* values = lanes<T>(run, i.b);
  const auto* others = lanes<T>(run, i.c == no_place ? i.b : i.c);
  const auto operation = static_cast<Atomic>(i.value & 15);
  const bool is_shared = i.space == Space::shared ||
                         (i.space == Space::generic && (addresses[first_lane(run)] & window_mask) == shared_window);
  // Single-precision sums in global memory flush subnormal numbers. Documented.
  const std::uint32_t flags = is_shared ? 0 : flag_flush;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (!lane_is(run.mask, lane)) {
      continue;
    }
    auto* word = reinterpret_cast<Bits<T>*>(pointers[lane]);
    Bits<T> before = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    Bits<T> after = before;
    do {
      const T old = std::bit_cast<T>(before);
      const T value = lane_value<T>(values[lane]);
      if constexpr (requires { T::of_sum(old, value); }) {
        after = std::bit_cast<Bits<T>>(T::of_sum(old, value));
      } else {
        after = std::bit_cast<Bits<T>>(atomic_result(operation, old, value, lane_value<T>(others[lane]), flags));
      }
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (after != before) {
      run.block.note_write();
    } else {
      run.block.note_read(addresses[lane], before);
    }
    if (i.to != no_place) {
      result_lanes<T>(run, i.to)[lane] = lane_bits<T>(std::bit_cast<T>(before));
    }
  }
}

Operation atomic_operation(Words& words, Instruction& instruction) {
  constexpr std::pair<std::string_view, Atomic> operations[] = {
      {"add", Atomic::add},       {"min", Atomic::min},      {"max", Atomic::max},       {"and", Atomic::bit_and},
      {"or", Atomic::bit_or},     {"xor", Atomic::bit_xor},  {"exch", Atomic::exchange}, {"cas", Atomic::compare},
      {"inc", Atomic::increment}, {"dec", Atomic::decrement}};
  const Atomic* operation = nullptr;
  for (const auto& [word, which] : operations) {
    if (words.take(word)) {
      operation = &which;
      instruction.value = static_cast<std::uint32_t>(which);
    }
  }
  const bool keeps_subnormals = words.take("noftz");
  const Type type = words.take_type();
  instruction.bytes = static_cast<std::uint8_t>(size_of(type));
  if (operation == nullptr) {
    return nullptr;
  }
  const bool is_add = *operation == Atomic::add;
  switch (type) {
    case Type::u32:
    case Type::b32:
      return &atomic<std::uint32_t>;
    case Type::s32:
      return &atomic<std::int32_t>;
    case Type::u64:
    case Type::b64:
      return &atomic<std::uint64_t>;
    case Type::s64:
      return &atomic<std::int64_t>;
    case Type::b16:
      return &atomic<std::uint16_t>;
    case Type::f32:
      return is_add ? &atomic<float> : nullptr;
    case Type::f64:
      return is_add ? &atomic<double> : nullptr;
    case Type::f16:
      return is_add && keeps_subnormals ? &atomic<Half> : nullptr;
    case Type::bf16:
      return is_add && keeps_subnormals ? &atomic<Bfloat> : nullptr;
    case Type::f16x2:
      return is_add && keeps_subnormals ? &atomic<Pair<Half>> : nullptr;
    case Type::bf16x2:
      return is_add && keeps_subnormals ? &atomic<Pair<Bfloat>> : nullptr;
    default:
      return nullptr;
  }
}

// cp.async: the copy is there at once. Bytes beyond the size of the source are zero.
void copy_to_shared(Run& run, const Instruction& i) {
  const auto* from = lanes<std::uint64_t>(run, i.b);
  const Addresses to = addresses_of(run, i);
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if (!lane_is(run.mask, lane)) {
      continue;
    }
    const std::uint32_t size = i.bytes;
    const std::uint32_t wanted = i.c == no_place ? size : std::min(size, run.in(i.c)[lane]);
    char* target = run.block.at(run, Space::shared, lane, to[lane], size, true);
    std::array<char, 16> bytes{};
    for (std::uint32_t done = 0; done < wanted; ++done) {
      bytes[done] = *run.block.at(run, Space::global, lane, from[lane] + done, 1, false);
    }
    std::memcpy(target, bytes.data(), size);
  }
  run.block.count_bytes(std::uint64_t{i.bytes} * static_cast<unsigned>(std::popcount(run.mask)));
  run.block.note_write();
}

// Between addresses of a window and generic ones.
template <bool to_generic>
void change_window(Run& run, const Instruction& i) {
  const auto* a = lanes<std::uint64_t>(run, i.a);
  const std::uint64_t window = i.space == Space::shared      ? shared_window
                               : i.space == Space::local     ? local_window
                               : i.space == Space::parameter ? parameter_window
                                                             : 0;
  each_lane<std::uint64_t>(run, i.to, [&](unsigned lane) {
    return to_generic ? a[lane] | window : window == 0 ? a[lane] : a[lane] & ~window_mask;
  });
}

void is_in_window(Run& run, const Instruction& i) {
  const auto* a = lanes<std::uint64_t>(run, i.a);
  put_predicate(run, i.to, each_bit([&](unsigned lane) {
                  const std::uint64_t window = a[lane] & window_mask;
                  return i.space == Space::shared      ? window == shared_window
                         : i.space == Space::local     ? window == local_window
                         : i.space == Space::parameter ? window == parameter_window
                                                       : window == 0 || window == workspace_window;
                }));
}

void local_address(Run& run, const Instruction& i) {
  const std::uint64_t address = static_cast<std::uint64_t>(i.offset) + run.local;
  if (i.width == 8) {
    each_lane<std::uint64_t>(run, i.to, [&](unsigned) { return address; });
  } else {
    each_lane<std::uint32_t>(run, i.to, [&](unsigned) { return static_cast<std::uint32_t>(address); });
  }
}

void nothing(Run&, const Instruction&) {}

template <class Memory>
Operation load_as(const Instruction& i) {
  const bool is_parameter = i.space == Space::parameter && i.a == no_place && i.elements == 1 && i.to != no_place;
  return is_parameter ? &load_parameter<Memory> : &load<Memory>;
}

Operation load_of(const Instruction& i) {
  switch (i.bytes) {
    case 1:
      return i.is_signed ? load_as<std::int8_t>(i) : load_as<std::uint8_t>(i);
    case 2:
      return i.is_signed ? load_as<std::int16_t>(i) : load_as<std::uint16_t>(i);
    case 4:
      return i.is_signed ? load_as<std::int32_t>(i) : load_as<std::uint32_t>(i);
    case 8:
      return load_as<std::uint64_t>(i);
    default:
      return nullptr;
  }
}
Operation store_of(unsigned bytes) {
  switch (bytes) {
    case 1:
      return &store<std::uint8_t>;
    case 2:
      return &store<std::uint16_t>;
    case 4:
      return &store<std::uint32_t>;
    case 8:
      return &store<std::uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

Operation memory_operation(std::string_view name, Words& words, Instruction& instruction) {
  if (name == "ld") {
    return load_of(instruction);
  }
  if (name == "st") {
    return store_of(instruction.bytes);
  }
  if (name == "atom" || name == "red") {
    return atomic_operation(words, instruction);
  }
  if (name == "cp") {
    return &copy_to_shared;
  }
  if (name == "cvta") {
    return words.take("to") ? &change_window<false> : &change_window<true>;
  }
  if (name == "isspacep") {
    return &is_in_window;
  }
  if (name == "local") {
    return &local_address;
  }
  return name == "nothing" ? &nothing : nullptr;
}

}  // namespace software_driver::ptx
