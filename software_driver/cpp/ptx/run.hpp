// The state of a running warp as instructions see it, and loops over its lanes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ptx/numbers.hpp"
#include "ptx/program.hpp"

namespace software_driver::ptx {

class Block;
struct Warp;

struct Run {
  std::uint32_t* frame;
  const std::uint32_t* constants;
  std::uint32_t mask;   // lanes that execute
  std::uint32_t local;  // where the local memory of the function begins in that of the thread
  Warp& warp;
  Block& block;

  const std::uint32_t* in(Place place) const { return place >= 0 ? frame + place : constants + ~place; }
};

// Ends a kernel.
struct Fault : std::runtime_error {
  enum class Kind { illegal_address, misaligned_address, trap, assertion, stuck };
  Fault(Kind which, const std::string& what) : std::runtime_error(what), kind(which) {}
  Kind kind;
};

template <class T>
inline constexpr bool is_long = sizeof(T) == 8;
// A lane in the frame.
template <class T>
using Lane = std::conditional_t<is_long<T>, std::uint64_t, std::uint32_t>;

template <class T>
T lane_value(Lane<T> lane) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(lane);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>(static_cast<std::uint16_t>(lane));
  } else {
    return std::bit_cast<T>(lane);
  }
}

template <class T>
Lane<T> lane_bits(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<std::uint16_t>(value);
  } else {
    return std::bit_cast<Lane<T>>(value);
  }
}

template <class T>
const Lane<T>* lanes(const Run& run, Place place) {
  return reinterpret_cast<const Lane<T>*>(run.in(place));
}
template <class T>
Lane<T>* result_lanes(const Run& run, Place place) {
  return reinterpret_cast<Lane<T>*>(run.frame + place);
}

inline constexpr std::array<std::uint32_t, warp_lanes> lane_bit = [] {
  std::array<std::uint32_t, warp_lanes> bits{};
  for (unsigned i = 0; i < warp_lanes; ++i) {
    bits[i] = 1u << i;
  }
  return bits;
}();

// Writes a value in each lane of the mask.
template <class T, class Value>
void each_lane(const Run& run, Place to, Value&& value) {
  Lane<T>* out = result_lanes<T>(run, to);
  if (run.mask == ~0u) {
    for (unsigned i = 0; i < warp_lanes; ++i) {
      out[i] = lane_bits<T>(value(i));
    }
    return;
  }
  std::array<Lane<T>, warp_lanes> all;
  for (unsigned i = 0; i < warp_lanes; ++i) {
    all[i] = lane_bits<T>(value(i));
  }
  for (unsigned i = 0; i < warp_lanes; ++i) {
    out[i] = (run.mask & lane_bit[i]) != 0 ? all[i] : out[i];
  }
}

// Writes a predicate: a bit for each lane of the mask.
inline void put_predicate(const Run& run, Place to, std::uint32_t bits) {
  if (to != no_place) {
    std::uint32_t& word = run.frame[to];
    word = (word & ~run.mask) | (bits & run.mask);
  }
}

template <class Value>
std::uint32_t each_bit(Value&& value) {
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < warp_lanes; ++i) {
    bits |= value(i) ? lane_bit[i] : 0u;
  }
  return bits;
}

inline bool lane_is(std::uint32_t bits, unsigned lane) { return (bits & lane_bit[lane]) != 0; }

// Instructions of one, two and three operands of a type, and a result of another.
template <class To, class T, auto function>
void apply1(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  each_lane<To>(run, i.to, [&](unsigned lane) -> To { return function(lane_value<T>(a[lane])); });
}
template <class To, class T, auto function>
void apply2(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  each_lane<To>(run, i.to,
                [&](unsigned lane) -> To { return function(lane_value<T>(a[lane]), lane_value<T>(b[lane])); });
}
template <class To, class T, class Third, auto function>
void apply3(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  const auto* c = lanes<Third>(run, i.c);
  each_lane<To>(run, i.to, [&](unsigned lane) -> To {
    return function(lane_value<T>(a[lane]), lane_value<T>(b[lane]), lane_value<Third>(c[lane]));
  });
}

// The words of an instruction's name behind its first, each of which is taken once.
class Words {
 public:
  explicit Words(const std::vector<std::string_view>& opcode) : words_(opcode.begin() + 1, opcode.end()) {}

  bool take(std::string_view word) {
    const auto found = std::find(words_.begin(), words_.end(), word);
    if (found == words_.end()) {
      return false;
    }
    words_.erase(found);
    return true;
  }
  // Takes the first type; `none` where there is none.
  Type take_type() {
    for (auto it = words_.begin(); it != words_.end(); ++it) {
      if (const Type type = type_of(*it); type != Type::none) {
        words_.erase(it);
        return type;
      }
    }
    return Type::none;
  }
  bool is_empty() const { return words_.empty(); }
  const std::vector<std::string_view>& left() const { return words_; }
  std::string_view take_first() {
    const std::string_view word = words_.empty() ? std::string_view{} : words_.front();
    if (!words_.empty()) {
      words_.erase(words_.begin());
    }
    return word;
  }

 private:
  std::vector<std::string_view> words_;
};

// Floating-point modifiers, as the flags of Instruction::value.
inline constexpr std::uint32_t flag_rounding = 3;
inline constexpr std::uint32_t flag_flush = 4;
inline constexpr std::uint32_t flag_saturate = 8;

// The operations of each group; null for what the group does not have. They take the words that they understand.
Operation integer_operation(std::string_view name, Words& words, Type type);
Operation bit_operation(std::string_view name, Words& words, Type type);
Operation float_operation(std::string_view name, Words& words, Type type, Instruction& instruction);
Operation conversion(Words& words, Type to, Type from, Instruction& instruction);
// setp and set: the comparison, and how it is combined with a third operand.
Operation comparison(Words& words, Type type, Instruction& instruction);

}  // namespace software_driver::ptx
