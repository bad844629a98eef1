// Pairs of elements of the type of the kernels, which cpu_kernels.py defines before this file.
struct Pair {
  float low, high;
};

inline float as_float(u32 bits) {
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

#if DTYPE_IS_BFLOAT16
inline u32 round_to_bfloat16(float number) {
  u32 bits;
  std::memcpy(&bits, &number, 4);
  if (number != number) {
    return 0x7fff;
  }
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE Pair widen(u32 word) { return {as_float(word << 16), as_float(word & 0xffff0000u)}; }
DEVICE u32 narrow(Pair pair) { return round_to_bfloat16(pair.high) << 16 | round_to_bfloat16(pair.low); }
#else
inline float from_half(uint16_t bits) {
  _Float16 number;
  std::memcpy(&number, &bits, 2);
  return static_cast<float>(number);
}
inline u32 to_half(float number) {
  _Float16 half = static_cast<_Float16>(number);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
DEVICE Pair widen(u32 word) { return {from_half(word & 0xffff), from_half(word >> 16)}; }
DEVICE u32 narrow(Pair pair) { return to_half(pair.high) << 16 | to_half(pair.low); }
#endif

DEVICE float add(float a, float b) { return a + b; }
