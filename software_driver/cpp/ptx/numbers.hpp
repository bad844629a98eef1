// Arithmetic of PTX on single values: half precision, flushing, saturation, conversions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace software_driver::ptx {

enum class Rounding : std::uint8_t { nearest, zero, down, up };

inline constexpr std::uint32_t canonical_nan = 0x7fffffff;

// Single-precision results have one NaN. Documented in the instruction set.
inline float canonical(float value) { return value != value ? std::bit_cast<float>(canonical_nan) : value; }
inline double canonical(double value) { return value; }

// Turns subnormal numbers into zeros of their sign.
inline float flushed(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}
inline double flushed(double value) { return value; }

// Clamps to [0, 1]. NaN becomes +0.
template <class T>
T saturated(T value) {
  return value > 0 ? (value < 1 ? value : T{1}) : T{0};
}

// Operations in a rounding mode (rounding.cpp, which is compiled for it).
float add(float a, float b, Rounding rounding);
double add(double a, double b, Rounding rounding);
float multiply(float a, float b, Rounding rounding);
double multiply(double a, double b, Rounding rounding);
float fused(float a, float b, float c, Rounding rounding);
double fused(double a, double b, double c, Rounding rounding);
float divide(float a, float b, Rounding rounding);
double divide(double a, double b, Rounding rounding);
float square_root(float a, Rounding rounding);
double square_root(double a, Rounding rounding);
float to_single(double value, Rounding rounding);
float to_single(std::int64_t value, Rounding rounding);
float to_single(std::uint64_t value, Rounding rounding);
double to_double(std::int64_t value, Rounding rounding);
double to_double(std::uint64_t value, Rounding rounding);

// Rounds to a format of fewer bits: its exponent and mantissa bits, in the lowest bits of the result.
template <int exponent_bits, int mantissa_bits>
std::uint16_t narrowed(double value, Rounding rounding = Rounding::nearest) {
  constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  constexpr std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint32_t>(bits >> 63) << (exponent_bits + mantissa_bits);
  if (value != value) {
    return 0x7fff;
  }
  const double size = std::fabs(value);
  if (std::isinf(size)) {
    return static_cast<std::uint16_t>(sign | infinity);
  }
  if (size == 0) {
    return static_cast<std::uint16_t>(sign);
  }
  int exponent = 0;
  std::frexp(size, &exponent);  // size = [0.5, 1) * 2^exponent
  const int lowest = std::max(exponent - 1, 1 - bias) - mantissa_bits;
  const double scaled = std::ldexp(size, -lowest);  // exact: mantissas of double are longer
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  const bool away = rounding == Rounding::nearest ? rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0)
                    : rounding == Rounding::zero  ? false
                    : rounding == Rounding::up    ? rest > 0 && sign == 0
                                                  : rest > 0 && sign != 0;
  whole += away ? 1 : 0;
  // A carry out of the mantissa goes on into the exponent.
  const auto mantissa = static_cast<std::uint32_t>(whole);
  const int biased = lowest + mantissa_bits + bias;  // at least 1
  std::uint32_t result = mantissa < (1u << mantissa_bits)
                             ? mantissa
                             : mantissa + (static_cast<std::uint32_t>(biased - 1) << mantissa_bits);
  if (result >= infinity) {
    const bool to_infinity = rounding == Rounding::nearest || (rounding == Rounding::up && sign == 0) ||
                             (rounding == Rounding::down && sign != 0);
    result = to_infinity ? infinity : infinity - 1;
  }
  return static_cast<std::uint16_t>(sign | result);
}

inline float widened_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  const std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 0x7f800000 : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | wide | (mantissa << 13));
}

inline float widened_bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// A number of 16 bits. Sums, products and quotients of two round once: single precision has more than twice their bits.
template <int exponent_bits, int mantissa_bits>
struct Short {
  std::uint16_t bits = 0;

  static Short of(double value, Rounding rounding = Rounding::nearest) {
    return {narrowed<exponent_bits, mantissa_bits>(value, rounding)};
  }
  double value() const {
    if constexpr (exponent_bits == 5) {
      return widened_half(bits);
    } else {
      return widened_bfloat(bits);
    }
  }
  Short flushed() const { return {static_cast<std::uint16_t>((bits & infinity) == 0 ? bits & 0x8000 : bits)}; }
  Short saturated() const { return of(ptx::saturated(value())); }

  static constexpr std::uint16_t infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
};
using Half = Short<5, 10>;
using Bfloat = Short<8, 7>;

// Converts a number to an integer: what does not fit becomes the nearest that does. NaN becomes 0, or the highest bit
// alone where one of both types has 64 bits. Documented.
template <class To>
To to_integer(double value, bool is_wide) {
  if (value != value) {
    return is_wide ? static_cast<To>(To{1} << (8 * sizeof(To) - 1)) : To{0};
  }
  constexpr double above = std::is_signed_v<To> ? 2.0 * static_cast<double>(std::uint64_t{1} << (8 * sizeof(To) - 2))
                                                : 4.0 * static_cast<double>(std::uint64_t{1} << (8 * sizeof(To) - 2));
  if (value >= above) {
    return std::numeric_limits<To>::max();
  }
  if (value <= (std::is_signed_v<To> ? -above : 0.0)) {
    return std::numeric_limits<To>::min();
  }
  return static_cast<To>(value);
}

inline double rounded_to_integer(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest:
      return std::nearbyint(value);
    case Rounding::zero:
      return std::trunc(value);
    case Rounding::down:
      return std::floor(value);
    default:
      return std::ceil(value);
  }
}

}  // namespace software_driver::ptx
