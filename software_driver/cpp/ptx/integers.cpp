// Integer and bit instructions.
#include <limits>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
inline constexpr unsigned width_of = 8 * sizeof(T);
__extension__ using Signed128 = __int128;
__extension__ using Unsigned128 = unsigned __int128;
template <class T>
using Wider = std::conditional_t<
    std::is_signed_v<T>,
    std::conditional_t<sizeof(T) == 2, std::int32_t, std::conditional_t<sizeof(T) == 4, std::int64_t, Signed128>>,
    std::conditional_t<sizeof(T) == 2, std::uint32_t, std::conditional_t<sizeof(T) == 4, std::uint64_t, Unsigned128>>>;

template <class T>
T wrapped(Unsigned<T> value) {
  return static_cast<T>(value);
}

constexpr auto sum = []<class T>(T a, T b) {
  return wrapped<T>(static_cast<Unsigned<T>>(Unsigned<T>(a) + Unsigned<T>(b)));
};
constexpr auto difference = []<class T>(T a, T b) {
  return wrapped<T>(static_cast<Unsigned<T>>(Unsigned<T>(a) - Unsigned<T>(b)));
};
constexpr auto product_low = []<class T>(T a, T b) {
  using Wide = Unsigned<Lane<T>>;
  return wrapped<T>(static_cast<Unsigned<T>>(static_cast<Wide>(Unsigned<T>(a)) * static_cast<Wide>(Unsigned<T>(b))));
};
constexpr auto product_high = []<class T>(T a, T b) {
  return static_cast<T>((static_cast<Wider<T>>(a) * static_cast<Wider<T>>(b)) >> width_of<T>);
};
// Without a hardware trap: a division by zero has all bits, and a remainder keeps the dividend. Assumed.
constexpr auto quotient = []<class T>(T a, T b) {
  if (b == 0) {
    return static_cast<T>(~T{0});
  }
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {
      return wrapped<T>(static_cast<Unsigned<T>>(0 - Unsigned<T>(a)));
    }
  }
  return static_cast<T>(a / b);
};
constexpr auto rest = []<class T>(T a, T b) {
  if (b == 0) {
    return a;
  }
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {
      return T{0};
    }
  }
  return static_cast<T>(a % b);
};
constexpr auto smaller = []<class T>(T a, T b) { return a < b ? a : b; };
constexpr auto larger = []<class T>(T a, T b) { return a > b ? a : b; };
constexpr auto both = []<class T>(T a, T b) { return static_cast<T>(a & b); };
constexpr auto either = []<class T>(T a, T b) { return static_cast<T>(a | b); };
constexpr auto one_of = []<class T>(T a, T b) { return static_cast<T>(a ^ b); };
constexpr auto inverse = []<class T>(T a) { return static_cast<T>(~a); };
constexpr auto is_nothing = []<class T>(T a) { return static_cast<T>(a == 0 ? 1 : 0); };
constexpr auto negative = []<class T>(T a) { return wrapped<T>(static_cast<Unsigned<T>>(0 - Unsigned<T>(a))); };
constexpr auto magnitude = []<class T>(T a) {
  return a < 0 ? wrapped<T>(static_cast<Unsigned<T>>(0 - Unsigned<T>(a))) : a;
};
constexpr auto distance_plus = []<class T>(T a, T b, T c) {
  const Unsigned<T> apart = a < b ? static_cast<Unsigned<T>>(Unsigned<T>(b) - Unsigned<T>(a))
                                  : static_cast<Unsigned<T>>(Unsigned<T>(a) - Unsigned<T>(b));
  return wrapped<T>(static_cast<Unsigned<T>>(apart + Unsigned<T>(c)));
};
constexpr auto clamped_sum = [](std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{a} + b, INT32_MIN, INT32_MAX));
};
constexpr auto clamped_difference = [](std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{a} - b, INT32_MIN, INT32_MAX));
};
constexpr auto fused_low = []<class T>(T a, T b, T c) { return sum(product_low(a, b), c); };
constexpr auto fused_high = []<class T>(T a, T b, T c) { return sum(product_high(a, b), c); };
constexpr auto fused_high_clamped = [](std::int32_t a, std::int32_t b, std::int32_t c) {
  return clamped_sum(product_high(a, b), c);
};
constexpr auto wide_product = []<class T>(T a, T b) { return static_cast<Wider<T>>(static_cast<Wider<T>>(a) * b); };
constexpr auto wide_fused = []<class T>(T a, T b, Wider<T> c) {
  return sum(static_cast<Wider<T>>(static_cast<Wider<T>>(a) * b), c);
};
template <class T>
T short_factor(T value) {
  return static_cast<T>(static_cast<T>(Unsigned<T>(value) << 8) >> 8);
}
constexpr auto product24_low = []<class T>(T a, T b) { return product_low(short_factor(a), short_factor(b)); };
constexpr auto product24_high = []<class T>(T a, T b) {
  return static_cast<T>((static_cast<Wider<T>>(short_factor(a)) * short_factor(b)) >> 16);
};
constexpr auto fused24_low = []<class T>(T a, T b, T c) { return sum(product24_low(a, b), c); };

template <auto function>
Operation unary_of(Type type) {
  switch (type) {
    case Type::u16:
    case Type::b16:
      return &apply1<std::uint16_t, std::uint16_t, function>;
    case Type::s16:
      return &apply1<std::int16_t, std::int16_t, function>;
    case Type::u32:
    case Type::b32:
      return &apply1<std::uint32_t, std::uint32_t, function>;
    case Type::s32:
      return &apply1<std::int32_t, std::int32_t, function>;
    case Type::u64:
    case Type::b64:
      return &apply1<std::uint64_t, std::uint64_t, function>;
    case Type::s64:
      return &apply1<std::int64_t, std::int64_t, function>;
    default:
      return nullptr;
  }
}
template <auto function>
Operation binary_of(Type type) {
  switch (type) {
    case Type::u16:
    case Type::b16:
      return &apply2<std::uint16_t, std::uint16_t, function>;
    case Type::s16:
      return &apply2<std::int16_t, std::int16_t, function>;
    case Type::u32:
    case Type::b32:
      return &apply2<std::uint32_t, std::uint32_t, function>;
    case Type::s32:
      return &apply2<std::int32_t, std::int32_t, function>;
    case Type::u64:
    case Type::b64:
      return &apply2<std::uint64_t, std::uint64_t, function>;
    case Type::s64:
      return &apply2<std::int64_t, std::int64_t, function>;
    default:
      return nullptr;
  }
}
template <auto function>
Operation ternary_of(Type type) {
  switch (type) {
    case Type::u16:
      return &apply3<std::uint16_t, std::uint16_t, std::uint16_t, function>;
    case Type::s16:
      return &apply3<std::int16_t, std::int16_t, std::int16_t, function>;
    case Type::u32:
      return &apply3<std::uint32_t, std::uint32_t, std::uint32_t, function>;
    case Type::s32:
      return &apply3<std::int32_t, std::int32_t, std::int32_t, function>;
    case Type::u64:
      return &apply3<std::uint64_t, std::uint64_t, std::uint64_t, function>;
    case Type::s64:
      return &apply3<std::int64_t, std::int64_t, std::int64_t, function>;
    default:
      return nullptr;
  }
}
template <auto function>
Operation only_32(Type type) {
  return type == Type::u32   ? &apply2<std::uint32_t, std::uint32_t, function>
         : type == Type::s32 ? &apply2<std::int32_t, std::int32_t, function>
                             : nullptr;
}

Operation wide_binary(Type type) {
  switch (type) {
    case Type::u16:
      return &apply2<std::uint32_t, std::uint16_t, wide_product>;
    case Type::s16:
      return &apply2<std::int32_t, std::int16_t, wide_product>;
    case Type::u32:
      return &apply2<std::uint64_t, std::uint32_t, wide_product>;
    case Type::s32:
      return &apply2<std::int64_t, std::int32_t, wide_product>;
    default:
      return nullptr;
  }
}
Operation wide_ternary(Type type) {
  switch (type) {
    case Type::u16:
      return &apply3<std::uint32_t, std::uint16_t, std::uint32_t, wide_fused>;
    case Type::s16:
      return &apply3<std::int32_t, std::int16_t, std::int32_t, wide_fused>;
    case Type::u32:
      return &apply3<std::uint64_t, std::uint32_t, std::uint64_t, wide_fused>;
    case Type::s32:
      return &apply3<std::int64_t, std::int32_t, std::int64_t, wide_fused>;
    default:
      return nullptr;
  }
}

// Sums with the carry of the thread: read by addc, subc and madc, written where ".cc" stands.
enum class Carry : std::uint8_t { add, subtract, low, high };
constexpr std::uint32_t reads_carry = 1;
constexpr std::uint32_t writes_carry = 2;

template <class T, Carry kind>
void with_carry(Run& run, const Instruction& i) {
  constexpr bool multiplies = kind == Carry::low || kind == Carry::high;
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  const auto* c = lanes<T>(run, multiplies ? i.c : i.a);
  const std::uint32_t before = (i.value & reads_carry) != 0 ? run.warp.carry : 0;
  std::uint32_t after = 0;
  each_lane<T>(run, i.to, [&](unsigned lane) -> T {
    using Wide = Unsigned128;
    const Wide in = lane_is(before, lane) ? 1 : 0;
    const auto left = static_cast<Unsigned<T>>(a[lane]);
    const auto right = static_cast<Unsigned<T>>(b[lane]);
    Wide result = 0;
    if constexpr (kind == Carry::add) {
      result = Wide{left} + right + in;
    } else if constexpr (kind == Carry::subtract) {
      result = Wide{left} - right - in;
    } else {
      const auto factors = kind == Carry::low ? product_low(static_cast<T>(left), static_cast<T>(right))
                                              : product_high(static_cast<T>(left), static_cast<T>(right));
      result = Wide{static_cast<Unsigned<T>>(factors)} + static_cast<Unsigned<T>>(c[lane]) + in;
    }
    after |= (result >> width_of<T>) != 0 ? lane_bit[lane] : 0;
    return static_cast<T>(static_cast<Unsigned<T>>(result));
  });
  if ((i.value & writes_carry) != 0) {
    run.warp.carry = (run.warp.carry & ~run.mask) | (after & run.mask);
  }
}

template <Carry kind>
Operation carry_of(Type type) {
  switch (type) {
    case Type::u32:
    case Type::b32:
      return &with_carry<std::uint32_t, kind>;
    case Type::s32:
      return &with_carry<std::int32_t, kind>;
    case Type::u64:
    case Type::b64:
      return &with_carry<std::uint64_t, kind>;
    case Type::s64:
      return &with_carry<std::int64_t, kind>;
    default:
      return nullptr;
  }
}

constexpr auto shifted_left = []<class T>(T a, std::uint32_t by) {
  return by >= width_of<T> ? T{0} : wrapped<T>(static_cast<Unsigned<T>>(Unsigned<T>(a) << by));
};
constexpr auto shifted_right = []<class T>(T a, std::uint32_t by) {
  return by >= width_of<T> ? static_cast<T>(a < 0 ? -1 : 0) : static_cast<T>(a >> by);
};
template <class T, auto function>
void shift(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const std::uint32_t* b = run.in(i.b);
  each_lane<T>(run, i.to, [&](unsigned lane) -> T { return function(lane_value<T>(a[lane]), b[lane]); });
}
template <auto function>
Operation shift_of(Type type) {
  switch (type) {
    case Type::u16:
    case Type::b16:
      return &shift<std::uint16_t, function>;
    case Type::s16:
      return &shift<std::int16_t, function>;
    case Type::u32:
    case Type::b32:
      return &shift<std::uint32_t, function>;
    case Type::s32:
      return &shift<std::int32_t, function>;
    case Type::u64:
    case Type::b64:
      return &shift<std::uint64_t, function>;
    case Type::s64:
      return &shift<std::int64_t, function>;
    default:
      return nullptr;
  }
}

// The number of bits, leading zeros and the like: 32 bits of any width.
template <class T, auto function>
void count(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  each_lane<std::uint32_t>(run, i.to,
                           [&](unsigned lane) { return static_cast<std::uint32_t>(function(lane_value<T>(a[lane]))); });
}
constexpr auto ones = []<class T>(T a) { return std::popcount(Unsigned<T>(a)); };
constexpr auto leading_zeros = []<class T>(T a) { return std::countl_zero(Unsigned<T>(a)); };
constexpr auto highest_bit = []<class T>(T a) {
  const Unsigned<T> bits = a < 0 ? static_cast<Unsigned<T>>(~a) : static_cast<Unsigned<T>>(a);
  return bits == 0 ? ~0u : width_of<T> - 1 - static_cast<unsigned>(std::countl_zero(bits));
};
constexpr auto highest_bit_shift = []<class T>(T a) {
  const Unsigned<T> bits = a < 0 ? static_cast<Unsigned<T>>(~a) : static_cast<Unsigned<T>>(a);
  return bits == 0 ? ~0u : static_cast<unsigned>(std::countl_zero(bits));
};
template <auto function>
Operation count_of(Type type) {
  switch (type) {
    case Type::b32:
    case Type::u32:
      return &count<std::uint32_t, function>;
    case Type::s32:
      return &count<std::int32_t, function>;
    case Type::b64:
    case Type::u64:
      return &count<std::uint64_t, function>;
    case Type::s64:
      return &count<std::int64_t, function>;
    default:
      return nullptr;
  }
}

constexpr auto reversed = []<class T>(T a) {
  T result = 0;
  for (unsigned i = 0; i < width_of<T>; ++i) {
    result = static_cast<T>(result | ((a >> i & 1) << (width_of<T> - 1 - i)));
  }
  return result;
};

// A field of bits, its position and length in the low bytes of b and c.
template <class T>
void extract(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  each_lane<T>(run, i.to, [&](unsigned lane) -> T {
    constexpr unsigned top = width_of<T> - 1;
    const unsigned position = b[lane] & 0xff;
    const unsigned length = c[lane] & 0xff;
    const T value = lane_value<T>(a[lane]);
    const bool filler =
        std::is_signed_v<T> && length != 0 && (Unsigned<T>(value) >> std::min(position + length - 1, top) & 1) != 0;
    Unsigned<T> result = 0;
    for (unsigned bit = 0; bit <= top; ++bit) {
      const bool one =
          bit < length && position + bit <= top ? (Unsigned<T>(value) >> (position + bit) & 1) != 0 : filler;
      result |= static_cast<Unsigned<T>>(one ? Unsigned<T>{1} << bit : 0);
    }
    return static_cast<T>(result);
  });
}

template <class T>
void insert(Run& run, const Instruction& i) {
  const auto* a = lanes<T>(run, i.a);
  const auto* b = lanes<T>(run, i.b);
  const std::uint32_t* c = run.in(i.c);
  const std::uint32_t* d = run.in(i.d);
  each_lane<T>(run, i.to, [&](unsigned lane) -> T {
    const unsigned position = c[lane] & 0xff;
    const unsigned length = d[lane] & 0xff;
    if (position >= width_of<T> || length == 0) {
      return static_cast<T>(b[lane]);
    }
    const T field = length >= width_of<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
    const T mask = static_cast<T>(field << position);
    return static_cast<T>((b[lane] & ~mask) | ((static_cast<T>(a[lane]) << position) & mask));
  });
}

constexpr auto mask_wrapped = [](std::uint32_t a, std::uint32_t b) {
  const std::uint32_t position = a & 31;
  const std::uint32_t length = b & 31;
  return (length == 0 ? 0u : ((std::uint32_t{1} << length) - 1)) << position;
};
constexpr auto mask_clamped = [](std::uint32_t a, std::uint32_t b) {
  if (a >= 32 || b == 0) {
    return 0u;
  }
  return (b >= 32 ? ~0u : ((std::uint32_t{1} << b) - 1)) << a;
};
// Extends the lowest b bits of a.
template <class T, bool wraps>
void extend(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) -> std::uint32_t {
    const std::uint32_t bits = wraps ? b[lane] & 31 : b[lane];
    if (bits == 0) {
      return 0;
    }
    if (bits >= 32) {
      return a[lane];
    }
    return static_cast<std::uint32_t>(static_cast<T>(a[lane] << (32 - bits)) >> (32 - bits));
  });
}

template <bool left, bool wraps>
void funnel(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) -> std::uint32_t {
    const std::uint32_t by = wraps ? c[lane] & 31 : std::min(c[lane], 32u);
    const std::uint64_t both_words = std::uint64_t{b[lane]} << 32 | a[lane];
    return static_cast<std::uint32_t>(left ? (both_words << by) >> 32 : both_words >> by);
  });
}

void look_up(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  const std::uint32_t table = i.value;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    std::uint32_t result = 0;
    for (unsigned row = 0; row < 8; ++row) {
      if ((table >> row & 1) != 0) {
        result |= ((row & 4) != 0 ? a[lane] : ~a[lane]) & ((row & 2) != 0 ? b[lane] : ~b[lane]) &
                  ((row & 1) != 0 ? c[lane] : ~c[lane]);
      }
    }
    return result;
  });
}

enum class Permutation : std::uint32_t { free, f4e, b4e, rc8, ecl, ecr, rc16 };

void permute(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  const auto mode = static_cast<Permutation>(i.value);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    const std::uint64_t bytes = std::uint64_t{b[lane]} << 32 | a[lane];
    const std::uint32_t start = c[lane] & 3;
    std::uint32_t result = 0;
    for (std::uint32_t at = 0; at < 4; ++at) {
      std::uint32_t from = 0;
      bool is_sign = false;
      switch (mode) {
        case Permutation::free:
          from = c[lane] >> (4 * at) & 7;
          is_sign = (c[lane] >> (4 * at) & 8) != 0;
          break;
        case Permutation::f4e:
          from = start + at;
          break;
        case Permutation::b4e:
          from = (start - at) & 7;
          break;
        case Permutation::rc8:
          from = start;
          break;
        case Permutation::ecl:
          from = std::max(start, at);
          break;
        case Permutation::ecr:
          from = std::min(start, at);
          break;
        case Permutation::rc16:
          from = 2 * (start & 1) + (at & 1);
          break;
      }
      auto byte = static_cast<std::uint32_t>(bytes >> (8 * from) & 0xff);
      byte = is_sign ? (byte & 0x80 ? 0xff : 0) : byte;
      result |= byte << (8 * at);
    }
    return result;
  });
}

// The n-th bit that is set, counted from a base upwards or downwards.
void find_set_bit(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) -> std::uint32_t {
    const auto base = static_cast<std::int32_t>(b[lane]);
    const auto wanted = static_cast<std::int32_t>(c[lane]);
    if (wanted == 0) {
      return base >= 0 && base < 32 && (a[lane] >> base & 1) != 0 ? static_cast<std::uint32_t>(base) : ~0u;
    }
    std::int32_t left = std::abs(wanted);
    for (std::int32_t at = base; at >= 0 && at < 32; at += wanted > 0 ? 1 : -1) {
      if ((a[lane] >> at & 1) != 0 && --left == 0) {
        return static_cast<std::uint32_t>(at);
      }
    }
    return ~0u;
  });
}

template <class A, class B>
void dot4(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    std::uint32_t result = c[lane];
    for (unsigned at = 0; at < 32; at += 8) {
      result += static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<A>(a[lane] >> at)) *
                                           static_cast<std::int32_t>(static_cast<B>(b[lane] >> at)));
    }
    return result;
  });
}
template <class A, class B, bool high>
void dot2(Run& run, const Instruction& i) {
  const std::uint32_t* a = run.in(i.a);
  const std::uint32_t* b = run.in(i.b);
  const std::uint32_t* c = run.in(i.c);
  using A16 = std::conditional_t<std::is_signed_v<A>, std::int16_t, std::uint16_t>;
  each_lane<std::uint32_t>(run, i.to, [&](unsigned lane) {
    std::uint32_t result = c[lane];
    for (unsigned at = 0; at < 2; ++at) {
      result +=
          static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<A16>(a[lane] >> (16 * at))) *
                                     static_cast<std::int32_t>(static_cast<B>(b[lane] >> (8 * at + (high ? 16 : 0)))));
    }
    return result;
  });
}

Operation dot_product(std::string_view name, Words& words) {
  using S = std::int8_t;
  using U = std::uint8_t;
  const bool high = words.take("hi");
  words.take("lo");
  const Type a = words.take_type();
  const Type b = words.take_type();
  const auto pick = [&](auto ss, auto su, auto us, auto uu) -> Operation {
    return a == Type::s32 ? (b == Type::s32 ? ss : su) : (b == Type::s32 ? us : uu);
  };
  if (name == "dp4a") {
    return pick(&dot4<S, S>, &dot4<S, U>, &dot4<U, S>, &dot4<U, U>);
  }
  return high ? pick(&dot2<S, S, true>, &dot2<S, U, true>, &dot2<U, S, true>, &dot2<U, U, true>)
              : pick(&dot2<S, S, false>, &dot2<S, U, false>, &dot2<U, S, false>, &dot2<U, U, false>);
}

// Logic of predicates works on all lanes at once.
template <auto function>
void predicates(Run& run, const Instruction& i) {
  put_predicate(run, i.to, function(*run.in(i.a), *run.in(i.b)));
}
void predicate_inverse(Run& run, const Instruction& i) { put_predicate(run, i.to, ~*run.in(i.a)); }

template <auto function>
Operation logic_of(Type type) {
  return type == Type::pred ? &predicates<function> : binary_of<function>(type);
}

}  // namespace

Operation integer_operation(std::string_view name, Words& words, Type type) {
  const bool carries = words.take("cc") || name == "addc" || name == "subc" || name == "madc";
  if (carries) {
    if (name == "add" || name == "addc") {
      return carry_of<Carry::add>(type);
    }
    if (name == "sub" || name == "subc") {
      return carry_of<Carry::subtract>(type);
    }
    if (name == "mad" || name == "madc") {
      const bool high = words.take("hi");
      return high ? carry_of<Carry::high>(type) : words.take("lo") ? carry_of<Carry::low>(type) : nullptr;
    }
    return nullptr;
  }
  if (name == "add" || name == "sub") {
    if (words.take("sat")) {
      return type != Type::s32 ? nullptr
             : name == "add"   ? &apply2<std::int32_t, std::int32_t, clamped_sum>
                               : &apply2<std::int32_t, std::int32_t, clamped_difference>;
    }
    return name == "add" ? binary_of<sum>(type) : binary_of<difference>(type);
  }
  if (name == "mul") {
    return words.take("wide") ? wide_binary(type)
           : words.take("hi") ? binary_of<product_high>(type)
           : words.take("lo") ? binary_of<product_low>(type)
                              : nullptr;
  }
  if (name == "mad") {
    if (words.take("hi")) {
      return !words.take("sat")  ? ternary_of<fused_high>(type)
             : type == Type::s32 ? &apply3<std::int32_t, std::int32_t, std::int32_t, fused_high_clamped>
                                 : nullptr;
    }
    return words.take("wide") ? wide_ternary(type) : words.take("lo") ? ternary_of<fused_low>(type) : nullptr;
  }
  if (name == "mul24") {
    return words.take("lo") ? only_32<product24_low>(type) : words.take("hi") ? only_32<product24_high>(type) : nullptr;
  }
  if (name == "mad24" && words.take("lo")) {
    return type == Type::u32   ? &apply3<std::uint32_t, std::uint32_t, std::uint32_t, fused24_low>
           : type == Type::s32 ? &apply3<std::int32_t, std::int32_t, std::int32_t, fused24_low>
                               : nullptr;
  }
  if (name == "div") {
    return binary_of<quotient>(type);
  }
  if (name == "rem") {
    return binary_of<rest>(type);
  }
  if (name == "min") {
    return binary_of<smaller>(type);
  }
  if (name == "max") {
    return binary_of<larger>(type);
  }
  if (name == "abs") {
    return type == Type::s16   ? &apply1<std::int16_t, std::int16_t, magnitude>
           : type == Type::s32 ? &apply1<std::int32_t, std::int32_t, magnitude>
           : type == Type::s64 ? &apply1<std::int64_t, std::int64_t, magnitude>
                               : nullptr;
  }
  if (name == "neg") {
    return unary_of<negative>(type);
  }
  if (name == "sad") {
    return ternary_of<distance_plus>(type);
  }
  return nullptr;
}

Operation bit_operation(std::string_view name, Words& words, Type type) {
  if (name == "and") {
    return logic_of<both>(type);
  }
  if (name == "or") {
    return logic_of<either>(type);
  }
  if (name == "xor") {
    return logic_of<one_of>(type);
  }
  if (name == "not") {
    return type == Type::pred ? &predicate_inverse : unary_of<inverse>(type);
  }
  if (name == "cnot") {
    return unary_of<is_nothing>(type);
  }
  if (name == "shl") {
    return shift_of<shifted_left>(type);
  }
  if (name == "shr") {
    return shift_of<shifted_right>(type);
  }
  if (name == "popc") {
    return count_of<ones>(type);
  }
  if (name == "clz") {
    return count_of<leading_zeros>(type);
  }
  if (name == "bfind") {
    return words.take("shiftamt") ? count_of<highest_bit_shift>(type) : count_of<highest_bit>(type);
  }
  if (name == "brev") {
    return type == Type::b32   ? &apply1<std::uint32_t, std::uint32_t, reversed>
           : type == Type::b64 ? &apply1<std::uint64_t, std::uint64_t, reversed>
                               : nullptr;
  }
  if (name == "bfe") {
    return type == Type::u32   ? &extract<std::uint32_t>
           : type == Type::s32 ? &extract<std::int32_t>
           : type == Type::u64 ? &extract<std::uint64_t>
           : type == Type::s64 ? &extract<std::int64_t>
                               : nullptr;
  }
  if (name == "bfi") {
    return type == Type::b32 ? &insert<std::uint32_t> : type == Type::b64 ? &insert<std::uint64_t> : nullptr;
  }
  if (name == "bmsk") {
    return words.take("wrap")    ? &apply2<std::uint32_t, std::uint32_t, mask_wrapped>
           : words.take("clamp") ? &apply2<std::uint32_t, std::uint32_t, mask_clamped>
                                 : nullptr;
  }
  if (name == "szext") {
    const bool wraps = words.take("wrap") || !words.take("clamp");
    return type == Type::s32   ? (wraps ? &extend<std::int32_t, true> : &extend<std::int32_t, false>)
           : type == Type::u32 ? (wraps ? &extend<std::uint32_t, true> : &extend<std::uint32_t, false>)
                               : nullptr;
  }
  if (name == "shf") {
    const bool left = words.take("l");
    words.take("r");
    const bool wraps = words.take("wrap");
    words.take("clamp");
    return left ? (wraps ? &funnel<true, true> : &funnel<true, false>)
                : (wraps ? &funnel<false, true> : &funnel<false, false>);
  }
  if (name == "lop3") {
    return &look_up;
  }
  if (name == "prmt") {
    return &permute;
  }
  if (name == "fns") {
    return &find_set_bit;
  }
  if (name == "dp4a" || name == "dp2a") {
    return dot_product(name, words);
  }
  return nullptr;
}

}  // namespace software_driver::ptx
