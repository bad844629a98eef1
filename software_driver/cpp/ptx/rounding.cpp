// Operations in rounding modes other than the nearest. This file is compiled so that the compiler respects the mode.
#include <cfenv>

#include "ptx/numbers.hpp"

namespace software_driver::ptx {
namespace {

int mode_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::zero:
      return FE_TOWARDZERO;
    case Rounding::down:
      return FE_DOWNWARD;
    case Rounding::up:
      return FE_UPWARD;
    default:
      return FE_TONEAREST;
  }
}

// Keeps the mode of the host program.
class Mode {
 public:
  explicit Mode(Rounding rounding) : before_(std::fegetround()) { std::fesetround(mode_of(rounding)); }
  ~Mode() { std::fesetround(before_); }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

 private:
  int before_;
};

// Volatile operands keep the operation between the two changes of the mode.
template <class T, class Operation>
T in_mode(Rounding rounding, T a, T b, T c, Operation&& operation) {
  volatile T first = a;
  volatile T second = b;
  volatile T third = c;
  volatile T result;
  {
    const Mode mode(rounding);
    result = operation(static_cast<T>(first), static_cast<T>(second), static_cast<T>(third));
  }
  return result;
}

template <class To, class From>
To convert(From value, Rounding rounding) {
  volatile From from = value;
  volatile To result;
  {
    const Mode mode(rounding);
    result = static_cast<To>(from);
  }
  return result;
}

}  // namespace

#define SOFTWARE_DRIVER_ROUNDED(T)                                                         \
  T add(T a, T b, Rounding rounding) {                                                     \
    return in_mode<T>(rounding, a, b, 0, [](T x, T y, T) { return x + y; });               \
  }                                                                                        \
  T multiply(T a, T b, Rounding rounding) {                                                \
    return in_mode<T>(rounding, a, b, 0, [](T x, T y, T) { return x * y; });               \
  }                                                                                        \
  T fused(T a, T b, T c, Rounding rounding) {                                              \
    return in_mode<T>(rounding, a, b, c, [](T x, T y, T z) { return std::fma(x, y, z); }); \
  }                                                                                        \
  T divide(T a, T b, Rounding rounding) {                                                  \
    return in_mode<T>(rounding, a, b, 0, [](T x, T y, T) { return x / y; });               \
  }                                                                                        \
  T square_root(T a, Rounding rounding) {                                                  \
    return in_mode<T>(rounding, a, 0, 0, [](T x, T, T) { return std::sqrt(x); });          \
  }
SOFTWARE_DRIVER_ROUNDED(float)
SOFTWARE_DRIVER_ROUNDED(double)
#undef SOFTWARE_DRIVER_ROUNDED

float to_single(double value, Rounding rounding) { return convert<float>(value, rounding); }
float to_single(std::int64_t value, Rounding rounding) { return convert<float>(value, rounding); }
float to_single(std::uint64_t value, Rounding rounding) { return convert<float>(value, rounding); }
double to_double(std::int64_t value, Rounding rounding) { return convert<double>(value, rounding); }
double to_double(std::uint64_t value, Rounding rounding) { return convert<double>(value, rounding); }

}  // namespace software_driver::ptx
