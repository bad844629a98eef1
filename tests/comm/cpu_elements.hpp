// The numbers of a word, of the type of the kernels, which cpu_kernels.py defines before this file. With the compiler's
// own functions: to read <cmath> takes three times as long as to compile a kernel.
struct Numbers {
  float of[NUMBERS_OF_WORD];
};

inline float as_float(u32 bits) {
  float number;
  __builtin_memcpy(&number, &bits, 4);
  return number;
}

#if ELEMENT == BFLOAT16
inline u32 round_to_bfloat16(float number) {
  u32 bits;
  __builtin_memcpy(&bits, &number, 4);
  if (number != number) {
    return 0x7fff;
  }
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE Numbers widen(u32 word) { return {as_float(word << 16), as_float(word & 0xffff0000u)}; }
DEVICE u32 narrow(const Numbers& numbers) {
  return round_to_bfloat16(numbers.of[1]) << 16 | round_to_bfloat16(numbers.of[0]);
}
#elif ELEMENT == FLOAT32
DEVICE Numbers widen(u32 word) { return {as_float(word)}; }
DEVICE u32 narrow(const Numbers& numbers) {
  u32 bits;
  __builtin_memcpy(&bits, &numbers.of[0], 4);
  return bits;
}
#elif ELEMENT == FLOAT8_E4M3FN
// One bit of sign, four of the exponent, three of the fraction; all ones are no number, and nothing is infinite.
inline float from_e4m3(u32 bits) {
  u32 exponent = bits >> 3 & 15, fraction = bits & 7;
  float size = exponent == 0 ? __builtin_ldexpf(float(fraction), -9)
                             : __builtin_ldexpf(8.0f + float(fraction), int(exponent) - 10);
  if ((bits & 0x7f) == 0x7f) {
    size = __builtin_nanf("");
  }
  return (bits & 0x80) != 0 ? -size : size;
}
inline u32 to_e4m3(float number) {
  if (number != number) {
    return 0x7f;
  }
  u32 sign = __builtin_signbit(number) ? 0x80 : 0;
  float size = __builtin_fabsf(number);
  if (size >= 448) {
    return sign | 0x7e;
  }
  int logarithm = size == 0 ? -6 : __builtin_ilogbf(size);
  int exponent = logarithm < -6 ? -6 : logarithm;
  u32 eighths = u32(__builtin_nearbyintf(__builtin_ldexpf(size, 3 - exponent)));
  // Eight of them are the smallest number of the exponent; sixteen that of the next one.
  return sign | u32((exponent + 6) * 8 + int(eighths));
}
DEVICE Numbers widen(u32 word) {
  return {from_e4m3(word & 0xff), from_e4m3(word >> 8 & 0xff), from_e4m3(word >> 16 & 0xff), from_e4m3(word >> 24)};
}
DEVICE u32 narrow(const Numbers& numbers) {
  return to_e4m3(numbers.of[0]) | to_e4m3(numbers.of[1]) << 8 | to_e4m3(numbers.of[2]) << 16 |
         to_e4m3(numbers.of[3]) << 24;
}
#else
inline float from_half(uint16_t bits) {
  _Float16 number;
  __builtin_memcpy(&number, &bits, 2);
  return static_cast<float>(number);
}
inline u32 to_half(float number) {
  _Float16 half = static_cast<_Float16>(number);
  uint16_t bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
}
DEVICE Numbers widen(u32 word) { return {from_half(word & 0xffff), from_half(word >> 16)}; }
DEVICE u32 narrow(const Numbers& numbers) { return to_half(numbers.of[1]) << 16 | to_half(numbers.of[0]); }
#endif

DEVICE float add(float a, float b) { return a + b; }
