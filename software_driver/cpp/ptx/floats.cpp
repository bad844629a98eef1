// Floating-point instructions.
#include <limits>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

// Multiplies and adds with one rounding. Processors with the instruction use it.
#if defined(__x86_64__) && defined(__GNUC__)
const bool has_fma = __builtin_cpu_supports("fma") != 0;
#define SOFTWARE_DRIVER_FMA __attribute__((target("fma,avx2")))
#else
#define SOFTWARE_DRIVER_FMA
constexpr bool has_fma = true;
#endif

template <class T>
SOFTWARE_DRIVER_FMA void fused_fast(const T* a, const T* b, const T* c, T* out) {
  for (unsigned i = 0; i < warp_lanes; ++i) {
    out[i] = __builtin_fma(a[i], b[i], c[i]);
  }
}
template <>
SOFTWARE_DRIVER_FMA void fused_fast(const float* a, const float* b, const float* c, float* out) {
  for (unsigned i = 0; i < warp_lanes; ++i) {
    out[i] = __builtin_fmaf(a[i], b[i], c[i]);
  }
}

template <class T, bool flushes>
void fused_lanes(Run& run, const Instruction& i) {
  std::array<T, warp_lanes> a;
  std::array<T, warp_lanes> b;
  std::array<T, warp_lanes> c;
  std::array<T, warp_lanes> out;
  const auto read = [&](Place place, std::array<T, warp_lanes>& to) {
    const auto* from = lanes<T>(run, place);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      to[lane] = flushes ? flushed(lane_value<T>(from[lane])) : lane_value<T>(from[lane]);
    }
  };
  read(i.a, a);
  read(i.b, b);
  read(i.c, c);
  if (has_fma) {
    fused_fast(a.data(), b.data(), c.data(), out.data());
  } else {
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      out[lane] = std::fma(a[lane], b[lane], c[lane]);
    }
  }
  each_lane<T>(run, i.to, [&](unsigned lane) { return canonical(flushes ? flushed(out[lane]) : out[lane]); });
}

// min and max. -0 is below +0.
template <bool largest, bool keeps_nan>
constexpr auto extreme = []<class T>(T a, T b) -> T {
  if (a != a || b != b) {
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    return keeps_nan || (a != a && b != b) ? canonical(nan) : a != a ? b : a;
  }
  if (a == b) {
    return std::signbit(a) == largest ? b : a;
  }
  return (a < b) == largest ? b : a;
};

constexpr auto float_sum = []<class T>(T a, T b) { return canonical(a + b); };
constexpr auto float_difference = []<class T>(T a, T b) { return canonical(a - b); };
constexpr auto float_product = []<class T>(T a, T b) { return canonical(a * b); };
constexpr auto float_quotient = []<class T>(T a, T b) { return canonical(a / b); };
constexpr auto float_negative = []<class T>(T a) { return -a; };
constexpr auto float_magnitude = []<class T>(T a) { return std::fabs(a); };
constexpr auto root = []<class T>(T a) { return canonical(std::sqrt(a)); };
constexpr auto reciprocal = []<class T>(T a) { return canonical(T{1} / a); };
// Approximations: the last bits may differ from those of a card.
constexpr auto reciprocal_root = []<class T>(T a) {
  return canonical(static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))));
};
constexpr auto sine = [](float a) { return canonical(static_cast<float>(std::sin(static_cast<double>(a)))); };
constexpr auto cosine = [](float a) { return canonical(static_cast<float>(std::cos(static_cast<double>(a)))); };
constexpr auto power_of_two = [](float a) { return canonical(static_cast<float>(std::exp2(static_cast<double>(a)))); };
constexpr auto logarithm_of_two = [](float a) {
  return canonical(static_cast<float>(std::log2(static_cast<double>(a))));
};
constexpr auto hyperbolic_tangent = [](float a) {
  return canonical(static_cast<float>(std::tanh(static_cast<double>(a))));
};
constexpr auto with_sign_of = []<class T>(T sign, T value) { return std::copysign(value, sign); };

template <auto function, bool flushes>
struct Flush {
  static constexpr auto one = []<class T>(T a) -> T { return flushes ? flushed(function(flushed(a))) : function(a); };
  static constexpr auto two = []<class T>(T a, T b) -> T {
    return flushes ? flushed(function(flushed(a), flushed(b))) : function(a, b);
  };
};

template <auto function>
Operation float_unary(Type type, std::uint32_t flags) {
  const bool flushes = (flags & flag_flush) != 0;
  if (type == Type::f32) {
    return flushes ? &apply1<float, float, Flush<function, true>::one> : &apply1<float, float, function>;
  }
  return type == Type::f64 ? &apply1<double, double, function> : nullptr;
}
template <auto function>
Operation float_binary(Type type, std::uint32_t flags) {
  const bool flushes = (flags & flag_flush) != 0;
  if (type == Type::f32) {
    return flushes ? &apply2<float, float, Flush<function, true>::two> : &apply2<float, float, function>;
  }
  return type == Type::f64 ? &apply2<double, double, function> : nullptr;
}
template <auto function>
Operation single_unary(Type type, std::uint32_t flags) {
  return type != Type::f32           ? nullptr
         : (flags & flag_flush) != 0 ? &apply1<float, float, Flush<function, true>::one>
                                     : &apply1<float, float, function>;
}

// Any rounding, flushing and saturation, as the flags of the instruction say.
enum class Arithmetic : std::uint8_t { add, subtract, multiply, divide, fuse, root_of, invert };

template <class T, Arithmetic kind>
void general(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b == no_place ? i.a : i.b);
  const auto* c = lanes<T>(run, i.c == no_place ? i.a : i.c);
  const auto rounding = static_cast<Rounding>(i.value & flag_rounding);
  const bool flushes = (i.value & flag_flush) != 0;
  const bool saturates = (i.value & flag_saturate) != 0;
  const auto read = [&](auto lane) { return flushes ? flushed(lane_value<T>(lane)) : lane_value<T>(lane); };
  each_lane<T>(run, i.to, [&](unsigned lane) -> T {
    if (!lane_is(run.mask, lane)) {
      return T{0};
    }
    const T x = read(a[lane]);
    const T y = read(b[lane]);
    const T z = read(c[lane]);
    const T result = kind == Arithmetic::add        ? add(x, y, rounding)
                     : kind == Arithmetic::subtract ? add(x, -y, rounding)
                     : kind == Arithmetic::multiply ? multiply(x, y, rounding)
                     : kind == Arithmetic::divide   ? divide(x, y, rounding)
                     : kind == Arithmetic::fuse     ? fused(x, y, z, rounding)
                     : kind == Arithmetic::root_of  ? square_root(x, rounding)
                                                    : divide(T{1}, x, rounding);
    const T flat = flushes ? flushed(result) : result;
    return canonical(saturates ? saturated(flat) : flat);
  });
}
template <Arithmetic kind>
Operation general_of(Type type) {
  return type == Type::f32 ? &general<float, kind> : type == Type::f64 ? &general<double, kind> : nullptr;
}

// Half precision: each operation rounds its exact result once.
template <class S, Arithmetic kind>
S short_result(S a, S b, S c, std::uint32_t flags) {
  const bool flushes = (flags & flag_flush) != 0;
  const double x = (flushes ? a.flushed() : a).value();
  const double y = (flushes ? b.flushed() : b).value();
  const double z = (flushes ? c.flushed() : c).value();
  const double exact = kind == Arithmetic::add        ? x + y
                       : kind == Arithmetic::subtract ? x - y
                       : kind == Arithmetic::multiply ? x * y
                       : kind == Arithmetic::divide   ? x / y
                                                      : std::fma(x, y, z);
  S result = S::of(exact);
  result = flushes ? result.flushed() : result;
  return (flags & flag_saturate) != 0 ? result.saturated() : result;
}
inline constexpr std::uint32_t flag_relu = 16;
inline constexpr std::uint32_t flag_nan = 32;

template <class S, bool largest>
S short_extreme(S a, S b, std::uint32_t flags) {
  const bool flushes = (flags & flag_flush) != 0;
  const auto x = static_cast<float>((flushes ? a.flushed() : a).value());
  const auto y = static_cast<float>((flushes ? b.flushed() : b).value());
  return S::of((flags & flag_nan) != 0 ? extreme<largest, true>(x, y) : extreme<largest, false>(x, y));
}
template <class S, class Function, std::size_t operands, std::size_t halves>
void short_lanes(Run& run, const Instruction& i, const Function& function) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = operands > 1 ? run.in(i.b) : a;
  const std::uint32_t* c = operands > 2 ? run.in(i.c) : a;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    std::uint32_t result = 0;
    for (unsigned at = 0; at < 16 * halves; at += 16) {
      const auto half = [&](std::uint32_t word) { return S{static_cast<std::uint16_t>(word >> at)}; };
      result |= static_cast<std::uint32_t>(function(half(a[lane]), half(b[lane]), half(c[lane])).bits) << at;
    }
    return result;
  });
}
template <class S, Arithmetic kind, std::size_t halves>
void short_arithmetic(Run& run, const Instruction& i) {
  const auto function = [flags = i.value](S a, S b, S c) {
    S result = short_result<S, kind>(a, b, c, flags);
    return (flags & flag_relu) != 0 && result.value() < 0 ? S{} : result;
  };
  short_lanes<S, decltype(function), kind == Arithmetic::fuse ? 3 : 2, halves>(run, i, function);
}
template <class S, bool largest, std::size_t halves>
void short_extremes(Run& run, const Instruction& i) {
  const auto function = [flags = i.value](S a, S b, S) { return short_extreme<S, largest>(a, b, flags); };
  short_lanes<S, decltype(function), 2, halves>(run, i, function);
}
template <std::size_t halves, bool clears>
void short_sign(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  constexpr std::uint32_t signs = halves == 2 ? 0x80008000 : 0x8000;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) { return clears ? a[lane] & ~signs : a[lane] ^ signs; });
}
template <class S, auto function, std::size_t halves>
void short_function(Run& run, const Instruction& i) {
  const auto apply = [flags = i.value](S a, S, S) {
    const bool flushes = (flags & flag_flush) != 0;
    S result = S::of(function(static_cast<float>((flushes ? a.flushed() : a).value())));
    return flushes ? result.flushed() : result;
  };
  short_lanes<S, decltype(apply), 1, halves>(run, i, apply);
}

template <class S, std::size_t halves>
Operation short_operation(std::string_view name) {
  if (name == "add") {
    return &short_arithmetic<S, Arithmetic::add, halves>;
  }
  if (name == "sub") {
    return &short_arithmetic<S, Arithmetic::subtract, halves>;
  }
  if (name == "mul") {
    return &short_arithmetic<S, Arithmetic::multiply, halves>;
  }
  if (name == "fma") {
    return &short_arithmetic<S, Arithmetic::fuse, halves>;
  }
  if (name == "min") {
    return &short_extremes<S, false, halves>;
  }
  if (name == "max") {
    return &short_extremes<S, true, halves>;
  }
  if (name == "neg") {
    return &short_sign<halves, false>;
  }
  if (name == "abs") {
    return &short_sign<halves, true>;
  }
  if (name == "ex2") {
    return &short_function<S, power_of_two, halves>;
  }
  if (name == "tanh") {
    return &short_function<S, hyperbolic_tangent, halves>;
  }
  return nullptr;
}

// testp: what kind of number a value is.
enum class Kind : std::uint32_t { finite, infinite, number, not_a_number, normal, subnormal };

template <class T>
void test(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  put_predicate(run, i.to, each_bit([&](unsigned lane) {
                  const T value = lane_value<T>(a[lane]);
                  switch (static_cast<Kind>(i.value)) {
                    case Kind::finite:
                      return std::isfinite(value);
                    case Kind::infinite:
                      return std::isinf(value);
                    case Kind::number:
                      return !std::isnan(value);
                    case Kind::not_a_number:
                      return std::isnan(value);
                    case Kind::normal:
                      return std::isnormal(value);
                    default:
                      return std::fpclassify(value) == FP_SUBNORMAL;
                  }
                }));
}

Operation test_operation(Words& words, Type type, Instruction& instruction) {
  constexpr std::pair<std::string_view, Kind> kinds[] = {{"finite", Kind::finite}, {"infinite", Kind::infinite},
                                                         {"number", Kind::number}, {"notanumber", Kind::not_a_number},
                                                         {"normal", Kind::normal}, {"subnormal", Kind::subnormal}};
  for (const auto& [word, kind] : kinds) {
    if (words.take(word)) {
      instruction.value = static_cast<std::uint32_t>(kind);
      return type == Type::f32 ? &test<float> : type == Type::f64 ? &test<double> : nullptr;
    }
  }
  return nullptr;
}

}  // namespace

Operation float_operation(std::string_view name, Words& words, Type type, Instruction& instruction) {
  if (name == "testp") {
    return test_operation(words, type, instruction);
  }
  if (name == "copysign") {
    return float_binary<with_sign_of>(type, 0);
  }
  std::uint32_t flags = 0;
  bool is_rounded = false;
  constexpr std::pair<std::string_view, Rounding> roundings[] = {
      {"rn", Rounding::nearest}, {"rz", Rounding::zero}, {"rm", Rounding::down}, {"rp", Rounding::up}};
  for (const auto& [word, rounding] : roundings) {
    if (words.take(word)) {
      flags |= static_cast<std::uint32_t>(rounding);
      is_rounded = true;
    }
  }
  flags |= words.take("ftz") ? flag_flush : 0;
  flags |= words.take("sat") ? flag_saturate : 0;
  const bool is_approximate = words.take("approx") || words.take("full");
  instruction.value = flags;
  if (type == Type::f16 || type == Type::f16x2 || type == Type::bf16 || type == Type::bf16x2) {
    instruction.value |= words.take("relu") ? flag_relu : 0;
    instruction.value |= words.take("NaN") ? flag_nan : 0;
    if ((flags & flag_rounding) != 0) {
      return nullptr;
    }
    return type == Type::f16     ? short_operation<Half, 1>(name)
           : type == Type::f16x2 ? short_operation<Half, 2>(name)
           : type == Type::bf16  ? short_operation<Bfloat, 1>(name)
                                 : short_operation<Bfloat, 2>(name);
  }
  if (type != Type::f32 && type != Type::f64) {
    return nullptr;
  }
  const bool is_plain = (flags & (flag_rounding | flag_saturate)) == 0;
  if (name == "add") {
    return is_plain ? float_binary<float_sum>(type, flags) : general_of<Arithmetic::add>(type);
  }
  if (name == "sub") {
    return is_plain ? float_binary<float_difference>(type, flags) : general_of<Arithmetic::subtract>(type);
  }
  if (name == "mul") {
    return is_plain ? float_binary<float_product>(type, flags) : general_of<Arithmetic::multiply>(type);
  }
  if (name == "fma" || name == "mad") {
    return !is_plain                   ? general_of<Arithmetic::fuse>(type)
           : type == Type::f64         ? &fused_lanes<double, false>
           : (flags & flag_flush) != 0 ? &fused_lanes<float, true>
                                       : &fused_lanes<float, false>;
  }
  if (name == "div" && (is_rounded || is_approximate)) {
    return is_plain ? float_binary<float_quotient>(type, flags) : general_of<Arithmetic::divide>(type);
  }
  if (name == "sqrt" && (is_rounded || is_approximate)) {
    return is_plain ? float_unary<root>(type, flags) : general_of<Arithmetic::root_of>(type);
  }
  if (name == "rcp" && (is_rounded || is_approximate)) {
    return is_plain ? float_unary<reciprocal>(type, flags) : general_of<Arithmetic::invert>(type);
  }
  if (name == "neg") {
    return float_unary<float_negative>(type, flags);
  }
  if (name == "abs") {
    return float_unary<float_magnitude>(type, flags);
  }
  if (name == "min" || name == "max") {
    const bool keeps_nan = words.take("NaN");
    if (words.take("abs") || words.take("xorsign")) {
      return nullptr;
    }
    return name == "min" ? (keeps_nan ? float_binary<extreme<false, true>>(type, flags)
                                      : float_binary<extreme<false, false>>(type, flags))
                         : (keeps_nan ? float_binary<extreme<true, true>>(type, flags)
                                      : float_binary<extreme<true, false>>(type, flags));
  }
  if (!is_approximate) {
    return nullptr;
  }
  if (name == "rsqrt") {
    return float_unary<reciprocal_root>(type, flags);
  }
  if (name == "sin") {
    return single_unary<sine>(type, flags);
  }
  if (name == "cos") {
    return single_unary<cosine>(type, flags);
  }
  if (name == "ex2") {
    return single_unary<power_of_two>(type, flags);
  }
  if (name == "lg2") {
    return single_unary<logarithm_of_two>(type, flags);
  }
  if (name == "tanh") {
    return single_unary<hyperbolic_tangent>(type, flags);
  }
  return nullptr;
}

}  // namespace software_driver::ptx
