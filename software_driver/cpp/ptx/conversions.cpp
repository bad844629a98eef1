// Conversions between types, and comparisons.
#include <limits>
#include <utility>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

// The deeds of a conversion besides rounding, in Instruction::value.
constexpr std::uint32_t flag_relu = 16;
constexpr std::uint32_t flag_integral = 64;  // to the nearest whole number, in the type of floating point

template <class T>
inline constexpr bool is_short_float = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;
template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T> || is_short_float<T>;

template <class T>
double exact_value(T value) {
  if constexpr (is_short_float<T>) {
    return value.value();
  } else {
    return static_cast<double>(value);
  }
}

// Rounds to odd, so that a second rounding, to fewer bits, gives what one rounding gives.
template <class Wide>
double odd_double(Wide value) {
  const double result = to_double(value, Rounding::zero);
  return static_cast<Wide>(result) == value ? result : std::bit_cast<double>(std::bit_cast<std::uint64_t>(result) | 1);
}

template <class To, class From>
To converted(From from, std::uint32_t flags) {
  const auto rounding = static_cast<Rounding>(flags & flag_rounding);
  const bool flushes = (flags & flag_flush) != 0;
  const bool saturates = (flags & flag_saturate) != 0;
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    if (!saturates) {
      return static_cast<To>(from);
    }
    using Limits = std::numeric_limits<To>;
    return std::cmp_less(from, Limits::min())      ? Limits::min()
           : std::cmp_greater(from, Limits::max()) ? Limits::max()
                                                   : static_cast<To>(from);
  } else if constexpr (std::is_integral_v<To>) {
    From value = from;
    if constexpr (std::is_same_v<From, float>) {
      value = flushes ? flushed(value) : value;
    }
    return to_integer<To>(rounded_to_integer(exact_value(value), rounding),
                          sizeof(To) == 8 || std::is_same_v<From, double>);
  } else if constexpr (std::is_integral_v<From>) {
    using Wide = std::conditional_t<std::is_signed_v<From>, std::int64_t, std::uint64_t>;
    const Wide wide = from;
    To result{};
    if constexpr (std::is_same_v<To, double>) {
      result = rounding == Rounding::nearest ? static_cast<double>(wide) : to_double(wide, rounding);
    } else if constexpr (std::is_same_v<To, float>) {
      result = rounding == Rounding::nearest ? static_cast<float>(wide) : to_single(wide, rounding);
    } else {
      result = To::of(odd_double(wide), rounding);
    }
    if constexpr (is_short_float<To>) {
      return saturates ? result.saturated() : result;
    } else {
      return saturates ? saturated(result) : result;
    }
  } else {
    From value = from;
    if constexpr (std::is_same_v<From, float>) {
      value = flushes ? flushed(value) : value;
    }
    double exact = exact_value(value);
    if ((flags & flag_integral) != 0) {
      exact = rounded_to_integer(exact, rounding);
    }
    if ((flags & flag_relu) != 0 && exact < 0) {
      exact = 0;
    }
    if (saturates) {
      exact = saturated(exact);
    }
    if constexpr (std::is_same_v<To, double>) {
      return exact;
    } else if constexpr (std::is_same_v<To, float>) {
      const float result = rounding == Rounding::nearest ? static_cast<float>(exact) : to_single(exact, rounding);
      return canonical(flushes ? flushed(result) : result);
    } else {
      return To::of(exact, rounding);
    }
  }
}

// `Kept` is the register's type: a shorter result is extended to it.
template <class Kept, class To, class From>
void convert(Run& run, const Instruction& i) {
  const auto* a = lanes<From>(run, i.a);
  const std::uint32_t flags = i.value;
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    if (flags == 0) {
      return each_lane<Kept>(
          run, i.to, [&](unsigned lane) { return static_cast<Kept>(static_cast<To>(lane_value<From>(a[lane]))); });
    }
  }
  each_lane<Kept>(run, i.to, [&](unsigned lane) -> Kept {
    const To result = converted<To>(lane_value<From>(a[lane]), flags);
    if constexpr (std::is_integral_v<Kept>) {
      return static_cast<Kept>(result);
    } else {
      return result;
    }
  });
}

template <class To, class From>
Operation convert_into(std::uint8_t width) {
  if constexpr (!std::is_integral_v<To>) {
    return &convert<To, To, From>;
  } else {
    using Signed = std::is_signed<To>;
    using Kept2 = std::conditional_t<Signed::value, std::int16_t, std::uint16_t>;
    using Kept4 = std::conditional_t<Signed::value, std::int32_t, std::uint32_t>;
    using Kept8 = std::conditional_t<Signed::value, std::int64_t, std::uint64_t>;
    if (width < sizeof(To)) {
      return nullptr;
    }
    if constexpr (sizeof(To) <= 2) {
      if (width == 2) {
        return &convert<Kept2, To, From>;
      }
    }
    if constexpr (sizeof(To) <= 4) {
      if (width == 4) {
        return &convert<Kept4, To, From>;
      }
    }
    return &convert<Kept8, To, From>;
  }
}

template <class To>
Operation convert_from(Type from, std::uint8_t width) {
  switch (from) {
    case Type::u8:
    case Type::b8:
      return convert_into<To, std::uint8_t>(width);
    case Type::s8:
      return convert_into<To, std::int8_t>(width);
    case Type::u16:
    case Type::b16:
      return convert_into<To, std::uint16_t>(width);
    case Type::s16:
      return convert_into<To, std::int16_t>(width);
    case Type::u32:
    case Type::b32:
      return convert_into<To, std::uint32_t>(width);
    case Type::s32:
      return convert_into<To, std::int32_t>(width);
    case Type::u64:
    case Type::b64:
      return convert_into<To, std::uint64_t>(width);
    case Type::s64:
      return convert_into<To, std::int64_t>(width);
    case Type::f16:
      return convert_into<To, Half>(width);
    case Type::bf16:
      return convert_into<To, Bfloat>(width);
    case Type::f32:
      return convert_into<To, float>(width);
    case Type::f64:
      return convert_into<To, double>(width);
    default:
      return nullptr;
  }
}

template <class S>
void convert_pair(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    const auto half = [&](std::uint32_t bits) {
      return std::uint32_t{converted<S>(std::bit_cast<float>(bits), i.value).bits};
    };
    return half(a[lane]) << 16 | half(b[lane]);
  });
}

// To the 19 bits of tensor float: ties away from zero.
void to_tensor_float(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    const bool is_number = (a[lane] & 0x7f800000) != 0x7f800000;
    return is_number ? (a[lane] + 0x1000) & ~0x1fffu : a[lane] & ~0x1fffu;
  });
}

enum class Compare : std::uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <Compare how, class T>
bool holds(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool unordered = a != a || b != b;
    switch (how) {
      case Compare::ne:
        return !unordered && a != b;
      case Compare::equ:
        return unordered || a == b;
      case Compare::neu:
        return unordered || a != b;
      case Compare::ltu:
        return unordered || a < b;
      case Compare::leu:
        return unordered || a <= b;
      case Compare::gtu:
        return unordered || a > b;
      case Compare::geu:
        return unordered || a >= b;
      case Compare::num:
        return !unordered;
      case Compare::nan:
        return unordered;
      default:
        break;
    }
  }
  switch (how) {
    case Compare::eq:
      return a == b;
    case Compare::ne:
      return a != b;
    case Compare::lt:
      return a < b;
    case Compare::le:
      return a <= b;
    case Compare::gt:
      return a > b;
    default:
      return a >= b;
  }
}

// The way in which a comparison is combined with a third operand, and what is written: Instruction::value.
constexpr std::uint32_t combines_and = 256;
constexpr std::uint32_t combines_or = 512;
constexpr std::uint32_t combines_xor = 1024;
constexpr std::uint32_t writes_float = 2048;  // set: 1.0 instead of all bits
constexpr std::uint32_t writes_short = 4096;
constexpr std::uint32_t writes_predicate = 8192;
constexpr std::uint32_t negates_third = 16384;

template <Compare how, class T>
std::uint32_t compare_lanes(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  return each_bit([&](unsigned lane) {
    if constexpr (is_short_float<T>) {
      return holds<how>(lane_value<T>(a[lane]).value(), lane_value<T>(b[lane]).value());
    } else if constexpr (std::is_same_v<T, float>) {
      const bool flushes = (i.value & flag_flush) != 0;
      const float x = lane_value<T>(a[lane]);
      const float y = lane_value<T>(b[lane]);
      return flushes ? holds<how>(flushed(x), flushed(y)) : holds<how>(x, y);
    } else {
      return holds<how>(lane_value<T>(a[lane]), lane_value<T>(b[lane]));
    }
  });
}

template <Compare how, class T>
void compare(Run& run, const Instruction& i) {
  std::uint32_t bits = compare_lanes<how, T>(run, i);
  std::uint32_t other = ~bits;
  if ((i.value & (combines_and | combines_or | combines_xor)) != 0) {
    std::uint32_t third = *run.in(i.c);
    third = (i.value & negates_third) != 0 ? ~third : third;
    const auto combine = [&](std::uint32_t result) {
      return (i.value & combines_and) != 0  ? result & third
             : (i.value & combines_or) != 0 ? result | third
                                            : result ^ third;
    };
    bits = combine(bits);
    other = combine(other);
  }
  if ((i.value & writes_predicate) != 0) {
    put_predicate(run, i.to, bits);
    put_predicate(run, i.second, other);
    return;
  }
  const std::uint32_t one = (i.value & writes_float) != 0   ? std::bit_cast<std::uint32_t>(1.0F)
                            : (i.value & writes_short) != 0 ? 0x3c00
                                                            : ~0u;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return lane_is(bits, lane) ? one : 0; });
}

template <class T, bool is_unsigned>
Operation compare_of(std::string_view word) {
  // "lo", "ls", "hi" and "hs" compare without signs.
  constexpr std::pair<std::string_view, Operation> all[] = {
      {"eq", &compare<Compare::eq, T>}, {"ne", &compare<Compare::ne, T>}, {"lt", &compare<Compare::lt, T>},
      {"le", &compare<Compare::le, T>}, {"gt", &compare<Compare::gt, T>}, {"ge", &compare<Compare::ge, T>}};
  for (const auto& [name, operation] : all) {
    if (name == word) {
      return operation;
    }
  }
  if constexpr (is_unsigned) {
    constexpr std::pair<std::string_view, Operation> without_sign[] = {{"lo", &compare<Compare::lt, T>},
                                                                       {"ls", &compare<Compare::le, T>},
                                                                       {"hi", &compare<Compare::gt, T>},
                                                                       {"hs", &compare<Compare::ge, T>}};
    for (const auto& [name, operation] : without_sign) {
      if (name == word) {
        return operation;
      }
    }
  }
  if constexpr (is_float<T>) {
    constexpr std::pair<std::string_view, Operation> with_nan[] = {
        {"equ", &compare<Compare::equ, T>}, {"neu", &compare<Compare::neu, T>}, {"ltu", &compare<Compare::ltu, T>},
        {"leu", &compare<Compare::leu, T>}, {"gtu", &compare<Compare::gtu, T>}, {"geu", &compare<Compare::geu, T>},
        {"num", &compare<Compare::num, T>}, {"nan", &compare<Compare::nan, T>}};
    for (const auto& [name, operation] : with_nan) {
      if (name == word) {
        return operation;
      }
    }
  }
  return nullptr;
}

}  // namespace

Operation conversion(Words& words, Type to, Type from, Instruction& instruction) {
  std::uint32_t flags = 0;
  constexpr std::pair<std::string_view, Rounding> roundings[] = {
      {"rn", Rounding::nearest}, {"rz", Rounding::zero}, {"rm", Rounding::down}, {"rp", Rounding::up}};
  constexpr std::pair<std::string_view, Rounding> to_whole[] = {
      {"rni", Rounding::nearest}, {"rzi", Rounding::zero}, {"rmi", Rounding::down}, {"rpi", Rounding::up}};
  for (const auto& [word, rounding] : roundings) {
    flags |= words.take(word) ? static_cast<std::uint32_t>(rounding) : 0;
  }
  for (const auto& [word, rounding] : to_whole) {
    if (words.take(word)) {
      flags |= static_cast<std::uint32_t>(rounding) | flag_integral;
    }
  }
  flags |= words.take("ftz") ? flag_flush : 0;
  flags |= words.take("sat") ? flag_saturate : 0;
  flags |= words.take("relu") ? flag_relu : 0;
  if (words.take("rna") && words.take("tf32") && from == Type::none && to == Type::f32) {
    return &to_tensor_float;
  }
  instruction.value = flags;
  if (from == Type::f32 && (to == Type::f16x2 || to == Type::bf16x2)) {
    return to == Type::f16x2 ? &convert_pair<Half> : &convert_pair<Bfloat>;
  }
  const std::uint8_t width = instruction.width;
  switch (to) {
    case Type::u8:
    case Type::b8:
      return convert_from<std::uint8_t>(from, width);
    case Type::s8:
      return convert_from<std::int8_t>(from, width);
    case Type::u16:
    case Type::b16:
      return convert_from<std::uint16_t>(from, width);
    case Type::s16:
      return convert_from<std::int16_t>(from, width);
    case Type::u32:
    case Type::b32:
      return convert_from<std::uint32_t>(from, width);
    case Type::s32:
      return convert_from<std::int32_t>(from, width);
    case Type::u64:
    case Type::b64:
      return convert_from<std::uint64_t>(from, width);
    case Type::s64:
      return convert_from<std::int64_t>(from, width);
    case Type::f16:
      return convert_from<Half>(from, width);
    case Type::bf16:
      return convert_from<Bfloat>(from, width);
    case Type::f32:
      return convert_from<float>(from, width);
    case Type::f64:
      return convert_from<double>(from, width);
    default:
      return nullptr;
  }
}

Operation comparison(Words& words, Type type, Instruction& instruction) {
  std::uint32_t flags = instruction.value;
  flags |= words.take("ftz") ? flag_flush : 0;
  flags |= words.take("and") ? combines_and : words.take("or") ? combines_or : words.take("xor") ? combines_xor : 0;
  instruction.value = flags;
  const std::string_view how = words.take_first();
  switch (type) {
    case Type::b16:
    case Type::u16:
      return compare_of<std::uint16_t, true>(how);
    case Type::s16:
      return compare_of<std::int16_t, false>(how);
    case Type::b32:
    case Type::u32:
      return compare_of<std::uint32_t, true>(how);
    case Type::s32:
      return compare_of<std::int32_t, false>(how);
    case Type::b64:
    case Type::u64:
      return compare_of<std::uint64_t, true>(how);
    case Type::s64:
      return compare_of<std::int64_t, false>(how);
    case Type::f16:
      return compare_of<Half, false>(how);
    case Type::bf16:
      return compare_of<Bfloat, false>(how);
    case Type::f32:
      return compare_of<float, false>(how);
    case Type::f64:
      return compare_of<double, false>(how);
    default:
      return nullptr;
  }
}

}  // namespace software_driver::ptx
