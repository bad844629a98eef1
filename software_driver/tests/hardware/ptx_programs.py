"""Random programs in PTX, each with its inputs and the results that the instruction set documents.

The results are computed here with Python's integers and fractions, one thread after the other, and share nothing with
the interpreter of the software driver. `compare_ptx.py` compares a card with the same results.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

LANES = 32
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
NAN = 0x7FFFFFFF
ROUNDINGS = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Format:
    """A binary format of IEEE 754."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    def is_nan(self, bits: int) -> bool:
        return bits & ~(1 << (self.bits - 1)) > self.infinity

    def is_negative(self, bits: int) -> bool:
        return bits >> (self.bits - 1) != 0

    def is_infinite(self, bits: int) -> bool:
        return bits & ~(1 << (self.bits - 1)) == self.infinity

    def value(self, bits: int) -> Fraction:
        """The value of a finite number."""
        size = bits & ~(1 << (self.bits - 1))
        exponent, mantissa = size >> self.mantissa, size & ((1 << self.mantissa) - 1)
        whole = mantissa + (1 << self.mantissa if exponent else 0)
        value = Fraction(whole) * Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa)
        return -value if self.is_negative(bits) else value

    def rounded(self, value: Fraction, mode: str = "rn", *, negative_zero: bool = False) -> int:
        """The bits of the number that a value rounds to."""
        sign = 1 << (self.bits - 1)
        negative = value < 0 or (value == 0 and negative_zero)
        size = abs(value)
        if size == 0:
            return sign if negative else 0
        exponent = 0
        while size >= Fraction(2) ** (exponent + 1):
            exponent += max(1, (size.numerator.bit_length() - size.denominator.bit_length() - exponent) // 2)
        while size < Fraction(2) ** exponent:
            exponent -= 1
        exponent = max(exponent, 1 - self.bias)
        unit = Fraction(2) ** (exponent - self.mantissa)
        whole, rest = divmod(size, unit)
        up = {
            "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
            "rz": False,
            "rm": negative and rest > 0,
            "rp": not negative and rest > 0,
        }[mode]
        whole += up
        bits = int(whole) + ((exponent - 1 + self.bias) << self.mantissa)
        if bits >= self.infinity:
            away = mode == "rn" or (mode == "rp" and not negative) or (mode == "rm" and negative)
            bits = self.infinity if away else self.infinity - 1
        return bits | (sign if negative else 0)


HALF, SINGLE, DOUBLE = Format(5, 10), Format(8, 23), Format(11, 52)


def quiet_nan(kind: Format) -> int:
    return {16: 0x7FFF, 32: NAN, 64: 0xFFF8 << 48}[kind.bits]


def summed(kind: Format, a: int, b: int, mode: str = "rn") -> int:
    if kind.is_nan(a) or kind.is_nan(b):
        return quiet_nan(kind)
    if kind.is_infinite(a) or kind.is_infinite(b):
        if kind.is_infinite(a) and kind.is_infinite(b) and a != b:
            return quiet_nan(kind)
        return a if kind.is_infinite(a) else b
    total = kind.value(a) + kind.value(b)
    both = kind.is_negative(a) and kind.is_negative(b)
    either = kind.is_negative(a) != kind.is_negative(b) or total != 0
    zero = both or (mode == "rm" and either)
    return kind.rounded(total, mode, negative_zero=zero)


def multiplied(kind: Format, a: int, b: int, mode: str = "rn") -> int:
    if kind.is_nan(a) or kind.is_nan(b):
        return quiet_nan(kind)
    negative = kind.is_negative(a) != kind.is_negative(b)
    if kind.is_infinite(a) or kind.is_infinite(b):
        other = b if kind.is_infinite(a) else a
        if not kind.is_infinite(other) and kind.value(other) == 0:
            return quiet_nan(kind)
        return kind.infinity | (1 << (kind.bits - 1) if negative else 0)
    return kind.rounded(kind.value(a) * kind.value(b), mode, negative_zero=negative)


def fused(kind: Format, a: int, b: int, c: int, mode: str = "rn") -> int:
    if any(kind.is_nan(one) for one in (a, b, c)):
        return quiet_nan(kind)
    negative = kind.is_negative(a) != kind.is_negative(b)
    if kind.is_infinite(a) or kind.is_infinite(b) or kind.is_infinite(c):
        if kind.is_infinite(a) or kind.is_infinite(b):
            product = multiplied(kind, a, b)
            return quiet_nan(kind) if kind.is_nan(product) else summed(kind, product, c)
        return c
    total = kind.value(a) * kind.value(b) + kind.value(c)
    both = negative and kind.is_negative(c)
    zero = both or (mode == "rm" and (negative != kind.is_negative(c) or total != 0))
    return kind.rounded(total, mode, negative_zero=zero)


def divided(kind: Format, a: int, b: int, mode: str = "rn") -> int:
    if kind.is_nan(a) or kind.is_nan(b):
        return quiet_nan(kind)
    negative = kind.is_negative(a) != kind.is_negative(b)
    sign = 1 << (kind.bits - 1) if negative else 0
    if kind.is_infinite(a):
        return quiet_nan(kind) if kind.is_infinite(b) else kind.infinity | sign
    if kind.is_infinite(b):
        return sign
    if kind.value(b) == 0:
        return quiet_nan(kind) if kind.value(a) == 0 else kind.infinity | sign
    return kind.rounded(kind.value(a) / kind.value(b), mode, negative_zero=negative)


def root(kind: Format, a: int) -> int:
    if kind.is_nan(a) or (kind.is_negative(a) and a != 1 << (kind.bits - 1)):
        return quiet_nan(kind)
    if kind.is_infinite(a) or kind.value(a) == 0:
        return a
    # A root of so many bits that only the last of them is not exact, which decides no tie.
    value, shift = kind.value(a), 400
    scaled = (value.numerator << (2 * shift)) // value.denominator
    whole = isqrt(scaled)
    exact = whole * whole == scaled and scaled * value.denominator == value.numerator << (2 * shift)
    return kind.rounded(Fraction(2 * whole + (0 if exact else 1), 1 << (shift + 1)))


def extreme(kind: Format, a: int, b: int, largest: bool) -> int:
    if kind.is_nan(a) or kind.is_nan(b):
        return quiet_nan(kind) if kind.is_nan(a) and kind.is_nan(b) else b if kind.is_nan(a) else a

    def key(bits: int) -> int:
        size = bits & ~(1 << (kind.bits - 1))
        return -size - 1 if kind.is_negative(bits) else size

    return (max if largest else min)(a, b, key=key)


def flushed(a: int) -> int:
    return a & 0x80000000 if a & 0x7F800000 == 0 else a


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def rounded_whole(value: Fraction, mode: str) -> int:
    floor = value.numerator // value.denominator
    rest = value - floor
    up = {
        "rni": rest * 2 > 1 or (rest * 2 == 1 and floor % 2 == 1),
        "rzi": value < 0 and rest > 0,
        "rmi": False,
        "rpi": rest > 0,
    }[mode]
    return floor + up


def whole_of(kind: Format, a: int, mode: str, bits: int, is_signed: bool) -> int:
    """The integer that a number converts to."""
    lowest = -(1 << (bits - 1)) if is_signed else 0
    highest = (1 << (bits - 1)) - 1 if is_signed else (1 << bits) - 1
    if kind.is_nan(a):
        return 0 if bits < 64 and kind.bits < 64 else 1 << (bits - 1)
    if kind.is_infinite(a):
        return lowest if kind.is_negative(a) else highest
    return min(max(rounded_whole(kind.value(a), mode), lowest), highest)


def permuted(a: int, b: int, selector: int, mode: str) -> int:
    data = [(b << 32 | a) >> (8 * i) & 255 for i in range(8)]
    start = selector & 3
    if mode == "":
        out = []
        for i in range(4):
            nibble = selector >> (4 * i) & 15
            byte = data[nibble & 7]
            out.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    else:
        places = {
            "f4e": [start + i for i in range(4)],
            "b4e": [(start - i) % 8 for i in range(4)],
            "rc8": [start] * 4,
            "ecl": [max(start, i) for i in range(4)],
            "ecr": [min(start, i) for i in range(4)],
            "rc16": [2 * (start & 1) + (i & 1) for i in range(4)],
        }[mode]
        out = [data[place] for place in places]
    return sum(byte << (8 * i) for i, byte in enumerate(out))


def field(a: int, position: int, length: int, bits: int, is_signed: bool) -> int:
    position, length = position & 255, length & 255
    top = bits - 1
    filler = a >> min(position + length - 1, top) & 1 if is_signed and length else 0
    return sum((a >> (position + i) & 1 if i < length and position + i <= top else filler) << i for i in range(bits))


def inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    for i in range(min(length & 255, bits)):
        at = (position & 255) + i
        if at < bits:
            b = b & ~(1 << at) | (a >> i & 1) << at
    return b


def dot(a: int, b: int, c: int, a_signed: bool, b_signed: bool) -> int:
    def byte(word: int, i: int, is_signed: bool) -> int:
        one = word >> (8 * i) & 255
        return signed(one, 8) if is_signed else one

    return (c + sum(byte(a, i, a_signed) * byte(b, i, b_signed) for i in range(4))) & M32


def table_of(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))


Values = list[int]


class Generator:
    """Builds one program, and runs each instruction on the values of 32 threads while it does."""

    words, longs, singles, halves, doubles, predicates = 10, 4, 8, 4, 3, 4

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.active = list(range(LANES))
        self.labels = 0
        choose = self.random
        edges = [0, 1, M32, 1 << 31, (1 << 31) - 1, 255, 256]
        floats = [0, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0x00800000, 0x7F7FFFFF, 0x4F000000]

        def word() -> int:
            return choose.choice(edges) if choose.random() < 0.2 else choose.getrandbits(32)

        def single() -> int:
            if choose.random() < 0.2:
                return choose.choice(floats)
            if choose.random() < 0.5:
                return choose.getrandbits(1) << 31 | choose.randrange(110, 145) << 23 | choose.getrandbits(23)
            return choose.getrandbits(32)

        self.inputs: list[Values] = []
        self.r = [self._input(word) for _ in range(self.words)]
        self.f = [self._input(single) for _ in range(self.singles)]
        self.d = [[choose.getrandbits(64) for _ in range(LANES)] for _ in range(self.longs)]
        for values in self.d:
            self.inputs += [[one & M32 for one in values], [one >> 32 for one in values]]
        self.h = [[one & 0xFFFF for one in self.r[i]] for i in range(self.halves)]
        self.e = [[DOUBLE.rounded(Fraction(signed(one))) for one in self.r[i]] for i in range(self.doubles)]
        self.p = [[one & 1 == 1 for one in self.r[i]] for i in range(self.predicates)]

    def _input(self, value: Callable[[], int]) -> Values:
        self.inputs.append([value() for _ in range(LANES)])
        return list(self.inputs[-1])

    def put(self, line: str) -> None:
        self.lines.append(line)

    def set(self, bank: list[Values], to: int, value: Callable[[int], int]) -> None:
        results = {lane: value(lane) for lane in self.active}
        for lane, result in results.items():
            bank[to][lane] = result

    # ---- groups of instructions

    def integer(self) -> None:
        c = self.random
        to, a, b, x = (c.randrange(self.words) for _ in range(4))
        r = self.r
        # Beyond 31, the compiler of driver 580 makes bfe.s32 -1 and bfi.b32 the word without the field.
        amount, position, length, table = c.randrange(45), c.randrange(32), c.randrange(32), c.randrange(256)
        divisor = c.choice([3, 7, 10, 255, 65537])
        mode = c.choice(["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
        kinds = [c.choice("us") for _ in range(2)]
        s = signed
        one: list[tuple[str, Callable[[int], int]]] = [
            (f"add.s32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] + r[b][i]),
            (f"sub.s32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] - r[b][i]),
            (f"mul.lo.s32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] * r[b][i]),
            (f"mul.hi.s32 %r{to}, %r{a}, %r{b}", lambda i: s(r[a][i]) * s(r[b][i]) >> 32),
            (f"mul.hi.u32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] * r[b][i] >> 32),
            (f"mad.lo.s32 %r{to}, %r{a}, %r{b}, %r{x}", lambda i: r[a][i] * r[b][i] + r[x][i]),
            (f"mad.hi.u32 %r{to}, %r{a}, %r{b}, %r{x}", lambda i: (r[a][i] * r[b][i] >> 32) + r[x][i]),
            (f"min.s32 %r{to}, %r{a}, %r{b}", lambda i: min(s(r[a][i]), s(r[b][i]))),
            (f"max.u32 %r{to}, %r{a}, %r{b}", lambda i: max(r[a][i], r[b][i])),
            (f"div.s32 %r{to}, %r{a}, {divisor}", lambda i: int(Fraction(s(r[a][i]), divisor))),
            (f"rem.u32 %r{to}, %r{a}, {divisor}", lambda i: r[a][i] % divisor),
            (f"and.b32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] & r[b][i]),
            (f"or.b32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] | r[b][i]),
            (f"xor.b32 %r{to}, %r{a}, %r{b}", lambda i: r[a][i] ^ r[b][i]),
            (f"not.b32 %r{to}, %r{a}", lambda i: ~r[a][i]),
            (f"shl.b32 %r{to}, %r{a}, {amount}", lambda i: r[a][i] << amount),
            (f"shr.u32 %r{to}, %r{a}, {amount}", lambda i: r[a][i] >> amount),
            (f"shr.s32 %r{to}, %r{a}, {amount}", lambda i: s(r[a][i]) >> amount),
            (f"popc.b32 %r{to}, %r{a}", lambda i: r[a][i].bit_count()),
            (f"clz.b32 %r{to}, %r{a}", lambda i: 32 - r[a][i].bit_length()),
            (f"bfind.u32 %r{to}, %r{a}", lambda i: r[a][i].bit_length() - 1),
            (f"brev.b32 %r{to}, %r{a}", lambda i: int(f"{r[a][i]:032b}"[::-1], 2)),
            (f"bfe.u32 %r{to}, %r{a}, {position}, {length}", lambda i: field(r[a][i], position, length, 32, False)),
            (f"bfe.s32 %r{to}, %r{a}, {position}, {length}", lambda i: field(r[a][i], position, length, 32, True)),
            (
                f"bfi.b32 %r{to}, %r{a}, %r{b}, {position}, {length}",
                lambda i: inserted(r[a][i], r[b][i], position, length, 32),
            ),
            (
                f"prmt.b32{'.' * (mode != '')}{mode} %r{to}, %r{a}, %r{b}, %r{x}",
                lambda i: permuted(r[a][i], r[b][i], r[x][i], mode),
            ),
            (
                f"shf.l.wrap.b32 %r{to}, %r{a}, %r{b}, {amount}",
                lambda i: (r[b][i] << 32 | r[a][i]) << amount % 32 >> 32,
            ),
            (
                f"shf.r.clamp.b32 %r{to}, %r{a}, %r{b}, {amount}",
                lambda i: (r[b][i] << 32 | r[a][i]) >> min(amount, 32),
            ),
            (
                f"lop3.b32 %r{to}, %r{a}, %r{b}, %r{x}, {table}",
                lambda i: table_of(r[a][i], r[b][i], r[x][i], table),
            ),
            (
                f"dp4a.{kinds[0]}32.{kinds[1]}32 %r{to}, %r{a}, %r{b}, %r{x}",
                lambda i: dot(r[a][i], r[b][i], r[x][i], kinds[0] == "s", kinds[1] == "s"),
            ),
            (f"sad.s32 %r{to}, %r{a}, %r{b}, %r{x}", lambda i: abs(s(r[a][i]) - s(r[b][i])) + r[x][i]),
            (f"abs.s32 %r{to}, %r{a}", lambda i: abs(s(r[a][i]))),
            (f"neg.s32 %r{to}, %r{a}", lambda i: -r[a][i]),
            (f"cvt.u32.u8 %r{to}, %r{a}", lambda i: r[a][i] & 255),
            (f"cvt.s32.s8 %r{to}, %r{a}", lambda i: s(r[a][i], 8)),
            (f"cvt.s32.s16 %r{to}, %r{a}", lambda i: s(r[a][i], 16)),
            (f"mul24.lo.u32 %r{to}, %r{a}, %r{b}", lambda i: (r[a][i] & 0xFFFFFF) * (r[b][i] & 0xFFFFFF)),
            (f"cnot.b32 %r{to}, %r{a}", lambda i: int(r[a][i] == 0)),
            (
                f"add.sat.s32 %r{to}, %r{a}, %r{b}",
                lambda i: min(max(s(r[a][i]) + s(r[b][i]), -(1 << 31)), (1 << 31) - 1),
            ),
        ]
        text, value = c.choice(one)
        self.put(text)
        self.set(r, to, lambda i: value(i) & M32)

    def long(self) -> None:
        c = self.random
        to, a, b = (c.randrange(self.longs) for _ in range(3))
        w, v = c.randrange(self.words), c.randrange(self.words)
        d, r, s = self.d, self.r, signed
        amount = c.randrange(70)
        position, length = c.randrange(80), c.randrange(80)
        one: list[tuple[str, Callable[[int], int]]] = [
            (f"add.s64 %d{to}, %d{a}, %d{b}", lambda i: d[a][i] + d[b][i]),
            (f"sub.s64 %d{to}, %d{a}, %d{b}", lambda i: d[a][i] - d[b][i]),
            (f"mul.lo.s64 %d{to}, %d{a}, %d{b}", lambda i: d[a][i] * d[b][i]),
            (f"mul.hi.u64 %d{to}, %d{a}, %d{b}", lambda i: d[a][i] * d[b][i] >> 64),
            (f"mul.hi.s64 %d{to}, %d{a}, %d{b}", lambda i: s(d[a][i], 64) * s(d[b][i], 64) >> 64),
            (f"xor.b64 %d{to}, %d{a}, %d{b}", lambda i: d[a][i] ^ d[b][i]),
            (f"shl.b64 %d{to}, %d{a}, {amount}", lambda i: d[a][i] << amount),
            (f"shr.s64 %d{to}, %d{a}, {amount}", lambda i: s(d[a][i], 64) >> amount),
            (f"mul.wide.s32 %d{to}, %r{w}, %r{v}", lambda i: s(r[w][i]) * s(r[v][i])),
            (f"mul.wide.u32 %d{to}, %r{w}, %r{v}", lambda i: r[w][i] * r[v][i]),
            (f"mad.wide.u32 %d{to}, %r{w}, %r{v}, %d{a}", lambda i: r[w][i] * r[v][i] + d[a][i]),
            (f"cvt.s64.s32 %d{to}, %r{w}", lambda i: s(r[w][i])),
            (f"cvt.u64.u32 %d{to}, %r{w}", lambda i: r[w][i]),
            (f"mov.b64 %d{to}, {{%r{w}, %r{v}}}", lambda i: r[v][i] << 32 | r[w][i]),
            (f"brev.b64 %d{to}, %d{a}", lambda i: int(f"{d[a][i]:064b}"[::-1], 2)),
            (f"bfe.s64 %d{to}, %d{a}, {position}, {length}", lambda i: field(d[a][i], position, length, 64, True)),
            (
                f"bfi.b64 %d{to}, %d{a}, %d{b}, {position}, {length}",
                lambda i: inserted(d[a][i], d[b][i], position, length, 64),
            ),
        ]
        text, value = c.choice(one)
        self.put(text)
        self.set(d, to, lambda i: value(i) & M64)
        self.put(f"cvt.u32.u64 %r{w}, %d{to}")
        self.set(r, w, lambda i: d[to][i] & M32)

    def carry(self) -> None:
        c = self.random
        low, high = c.sample(range(self.words), 2)
        a, b = c.randrange(self.longs), c.randrange(self.longs)
        name = c.choice(["add", "sub"])
        self.put(f"mov.b64 {{%t0, %t1}}, %d{a}")
        self.put(f"mov.b64 {{%t2, %t3}}, %d{b}")
        self.put(f"{name}.cc.u32 %r{low}, %t0, %t2")
        self.put(f"{name}c.u32 %r{high}, %t1, %t3")

        def total(i: int) -> int:
            one, other = self.d[a][i], self.d[b][i]
            return (one + other if name == "add" else one - other) & M64

        self.set(self.r, low, lambda i: total(i) & M32)
        self.set(self.r, high, lambda i: total(i) >> 32)

    def single(self) -> None:
        c = self.random
        to, a, b, x = (c.randrange(self.singles) for _ in range(4))
        y = (a + 1) % self.singles  # another register than a: a card keeps the bits of a NaN where both are one
        w = c.randrange(self.words)
        f, r = self.f, self.r
        mode = c.choice(ROUNDINGS)
        flush = c.random() < 0.2
        z = flushed if flush else lambda bits: bits
        ftz = ".ftz" if flush else ""
        one: list[tuple[str, Callable[[int], int]]] = [
            (f"add.{mode}{ftz}.f32 %f{to}, %f{a}, %f{b}", lambda i: z(summed(SINGLE, z(f[a][i]), z(f[b][i]), mode))),
            (
                f"sub.{mode}{ftz}.f32 %f{to}, %f{a}, %f{b}",
                lambda i: z(summed(SINGLE, z(f[a][i]), z(f[b][i]) ^ 1 << 31, mode)),
            ),
            (
                f"mul.{mode}{ftz}.f32 %f{to}, %f{a}, %f{b}",
                lambda i: z(multiplied(SINGLE, z(f[a][i]), z(f[b][i]), mode)),
            ),
            (
                f"fma.{mode}{ftz}.f32 %f{to}, %f{a}, %f{b}, %f{x}",
                lambda i: z(fused(SINGLE, z(f[a][i]), z(f[b][i]), z(f[x][i]), mode)),
            ),
            (f"div.{mode}.f32 %f{to}, %f{a}, %f{b}", lambda i: divided(SINGLE, f[a][i], f[b][i], mode)),
            (f"rcp.{mode}.f32 %f{to}, %f{a}", lambda i: divided(SINGLE, 0x3F800000, f[a][i], mode)),
            (f"sqrt.rn.f32 %f{to}, %f{a}", lambda i: root(SINGLE, f[a][i])),
            (f"min{ftz}.f32 %f{to}, %f{a}, %f{y}", lambda i: extreme(SINGLE, z(f[a][i]), z(f[y][i]), False)),
            (f"max{ftz}.f32 %f{to}, %f{a}, %f{y}", lambda i: extreme(SINGLE, z(f[a][i]), z(f[y][i]), True)),
            (f"cvt.{mode}.f32.s32 %f{to}, %r{w}", lambda i: SINGLE.rounded(Fraction(signed(r[w][i])), mode)),
            (f"cvt.{mode}.f32.u32 %f{to}, %r{w}", lambda i: SINGLE.rounded(Fraction(r[w][i]), mode)),
            (f"copysign.f32 %f{to}, %f{a}, %f{b}", lambda i: f[a][i] & 1 << 31 | f[b][i] & 0x7FFFFFFF),
        ]
        text, value = c.choice(one)
        self.put(text)
        self.set(f, to, value)

    def whole(self) -> None:
        c = self.random
        a, w = c.randrange(self.singles), c.randrange(self.words)
        mode, kind = c.choice(["rni", "rzi", "rmi", "rpi"]), c.choice(["s32", "u32"])
        self.put(f"cvt.{mode}.{kind}.f32 %r{w}, %f{a}")
        self.set(self.r, w, lambda i: whole_of(SINGLE, self.f[a][i], mode, 32, kind == "s32") & M32)

    def half(self) -> None:
        c = self.random
        to, a, b, x = (c.randrange(self.halves) for _ in range(4))
        f = c.randrange(self.singles)
        h = self.h
        mode = c.choice(["rn", "rz"])

        def narrow(i: int) -> int:
            bits = self.f[f][i]
            if SINGLE.is_nan(bits):
                return 0x7FFF
            if SINGLE.is_infinite(bits):
                return HALF.infinity | bits >> 31 << 15
            return HALF.rounded(SINGLE.value(bits), mode, negative_zero=SINGLE.is_negative(bits))

        def wide(i: int) -> int:
            bits = h[a][i]
            if HALF.is_nan(bits):
                return NAN
            if HALF.is_infinite(bits):
                return SINGLE.infinity | bits >> 15 << 31
            return SINGLE.rounded(HALF.value(bits), negative_zero=HALF.is_negative(bits))

        if c.random() < 0.3:
            self.put(f"cvt.{mode}.f16.f32 %h{to}, %f{f}")
            return self.set(h, to, narrow)
        if c.random() < 0.3:
            self.put(f"cvt.f32.f16 %f{f}, %h{a}")
            return self.set(self.f, f, wide)
        one: list[tuple[str, Callable[[int], int]]] = [
            (f"add.rn.f16 %h{to}, %h{a}, %h{b}", lambda i: summed(HALF, h[a][i], h[b][i])),
            (f"mul.rn.f16 %h{to}, %h{a}, %h{b}", lambda i: multiplied(HALF, h[a][i], h[b][i])),
            (f"fma.rn.f16 %h{to}, %h{a}, %h{b}, %h{x}", lambda i: fused(HALF, h[a][i], h[b][i], h[x][i])),
        ]
        text, value = c.choice(one)
        self.put(text)
        return self.set(h, to, value)

    def double(self) -> None:
        """Finite numbers: the bits of a NaN of double precision are not documented."""
        c = self.random
        to, a, w = c.randrange(self.doubles), c.randrange(self.doubles), c.randrange(self.words)
        e, r = self.e, self.r
        mode = c.choice(ROUNDINGS)
        self.put(f"cvt.rn.f64.s32 %e{to}, %r{w}")
        self.set(e, to, lambda i: DOUBLE.rounded(Fraction(signed(r[w][i]))))
        third = DOUBLE.rounded(Fraction(1, 3))
        self.put(f"mul.{mode}.f64 %e{to}, %e{to}, 0d{third:016X}")
        self.set(e, to, lambda i: multiplied(DOUBLE, e[to][i], third, mode))
        self.put(f"fma.{mode}.f64 %e{a}, %e{to}, 0d{third:016X}, %e{to}")
        self.set(e, a, lambda i: fused(DOUBLE, e[to][i], third, e[to][i], mode))
        self.put(f"cvt.{mode}.f32.f64 %f0, %e{a}")
        self.set(
            self.f, 0, lambda i: SINGLE.rounded(DOUBLE.value(e[a][i]), mode, negative_zero=DOUBLE.is_negative(e[a][i]))
        )

    def compare(self) -> None:
        c = self.random
        to, x, w = c.randrange(self.predicates), c.randrange(self.predicates), c.randrange(self.words)
        a, b = c.randrange(self.words), c.randrange(self.words)
        how = c.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        test = {
            "eq": lambda one, other: one == other,
            "ne": lambda one, other: one != other,
            "lt": lambda one, other: one < other,
            "le": lambda one, other: one <= other,
            "gt": lambda one, other: one > other,
            "ge": lambda one, other: one >= other,
        }[how]
        combine = c.choice(["and", "or", "xor"])
        if c.random() < 0.5:
            self.put(f"setp.{how}.{combine}.s32 %p{to}, %r{a}, %r{b}, %p{x}")
            values = {i: test(signed(self.r[a][i]), signed(self.r[b][i])) for i in self.active}
        else:
            fa, fb = c.randrange(self.singles), c.randrange(self.singles)
            unordered = c.random() < 0.5
            name = {"eq": "equ", "ne": "neu"}.get(how, how + "u") if unordered else how
            self.put(f"setp.{name}.{combine}.f32 %p{to}, %f{fa}, %f{fb}, %p{x}")

            def holds(i: int) -> bool:
                one, other = self.f[fa][i], self.f[fb][i]
                if SINGLE.is_nan(one) or SINGLE.is_nan(other):
                    return unordered

                def key(bits: int) -> Fraction:
                    if SINGLE.is_infinite(bits):
                        return Fraction(2) ** 200 * (-1 if SINGLE.is_negative(bits) else 1)
                    return SINGLE.value(bits)

                return bool(test(key(one), key(other)))

            values = {i: holds(i) for i in self.active}
        for i, value in values.items():
            other = self.p[x][i]
            self.p[to][i] = {"and": value and other, "or": value or other, "xor": value != other}[combine]
        self.put(f"selp.b32 %r{w}, %r{a}, %r{b}, %p{to}")
        self.set(self.r, w, lambda i: self.r[a][i] if self.p[to][i] else self.r[b][i])

    def warp(self) -> None:
        c = self.random
        to, a = c.randrange(self.words), c.randrange(self.words)
        mask = sum(1 << lane for lane in self.active)
        kind = c.randrange(4)
        r, p = self.r, c.randrange(self.predicates)
        if kind == 0:
            lane = c.choice(self.active)
            self.put(f"shfl.sync.idx.b32 %r{to}, %r{a}, {lane}, 31, {mask}")
            value = r[a][lane]
            self.set(r, to, lambda _: value)
        elif kind == 1:
            self.put(f"vote.sync.ballot.b32 %r{to}, %p{p}, {mask}")
            bits = sum(1 << lane for lane in self.active if self.p[p][lane])
            self.set(r, to, lambda _: bits)
        elif kind == 2:
            self.put(f"and.b32 %t0, %r{a}, 3")
            self.put(f"match.any.sync.b32 %r{to}, %t0, {mask}")
            before = list(r[a])
            self.set(r, to, lambda i: sum(1 << lane for lane in self.active if before[lane] & 3 == before[i] & 3))
        else:
            name = c.choice(["add", "min", "max", "and", "or", "xor"])
            self.put(f"redux.sync.{name}.{'b32' if name in ('and', 'or', 'xor') else 's32'} %r{to}, %r{a}, {mask}")
            values = [signed(r[a][lane]) for lane in self.active]
            result = values[0]
            for one in values[1:]:
                result = {
                    "add": result + one,
                    "min": min(result, one),
                    "max": max(result, one),
                    "and": result & one,
                    "or": result | one,
                    "xor": result ^ one,
                }[name]
            self.set(r, to, lambda _: result & M32)

    # ---- paths

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def branch(self, depth: int) -> None:
        p = self.random.randrange(self.predicates)
        other, end = self.label(), self.label()
        all_lanes = self.active
        yes = [lane for lane in all_lanes if self.p[p][lane]]
        no = [lane for lane in all_lanes if not self.p[p][lane]]
        self.put(f"@!%p{p} bra {other}")
        for lanes, label in ((yes, other), (no, end)):
            self.active = lanes
            if lanes:
                self.statements(self.random.randrange(1, 5), depth + 1)
            self.put(f"bra.uni {end}" if label == other else "")
            self.put(f"{label}:")
        self.active = all_lanes

    def loop(self) -> None:
        """Each thread repeats one sum as often as its word says."""
        a, b = self.random.sample(range(self.words), 2)
        begin = self.label()
        self.put(f"and.b32 %t0, %r{b}, 7")
        self.put(f"{begin}:")
        self.put(f"mad.lo.s32 %r{a}, %r{a}, 5, %t0")
        self.put("sub.s32 %t0, %t0, 1")
        self.put("setp.ge.s32 %q, %t0, 0")
        self.put(f"@%q bra {begin}")

        def repeated(i: int) -> int:
            value = self.r[a][i]
            for left in range(self.r[b][i] & 7, -1, -1):
                value = value * 5 + left & M32
            return value

        self.set(self.r, a, repeated)

    def statements(self, count: int, depth: int = 0) -> None:
        kinds = [self.integer] * 8 + [self.single] * 5 + [self.long] * 3
        kinds += [self.compare] * 3 + [self.whole, self.half, self.double, self.carry, self.warp, self.loop]
        for _ in range(count):
            if depth < 2 and self.random.random() < 0.08:
                self.branch(depth)
            else:
                self.random.choice(kinds)()


@dataclass(frozen=True)
class PtxProgram:
    """A program: one warp reads each input word of its lane, and writes each result word."""

    text: bytes
    inputs: Sequence[Sequence[int]]
    results: Sequence[Sequence[int]]
    names: Sequence[str]


def make_program(seed: int, statements: int = 25) -> PtxProgram:
    """Make one program. The same seed makes the same program."""
    made = Generator(seed)
    made.statements(statements)
    head = [
        ".version 7.0",
        ".target sm_80",
        ".address_size 64",
        ".visible .entry program(.param .u64 inputs, .param .u64 results)",
        "{",
        ".reg .pred %p<8>, %q;",
        f".reg .b32 %r<{made.words}>, %t<4>, %lane;",
        f".reg .b64 %d<{made.longs}>, %in, %out;",
        f".reg .f32 %f<{made.singles}>;",
        f".reg .f64 %e<{made.doubles}>;",
        f".reg .b16 %h<{made.halves}>;",
        "ld.param.u64 %in, [inputs];",
        "ld.param.u64 %out, [results];",
        "mov.u32 %lane, %tid.x;",
        "mad.wide.u32 %in, %lane, 4, %in;",
        "mad.wide.u32 %out, %lane, 4, %out;",
    ]
    at = 0

    def load(register: str, kind: str) -> None:
        nonlocal at
        head.append(f"ld.global.{kind} {register}, [%in+{4 * LANES * at}];")
        at += 1

    for i in range(made.words):
        load(f"%r{i}", "u32")
    for i in range(made.singles):
        load(f"%f{i}", "f32")
    for i in range(made.longs):
        load("%t0", "u32")
        load("%t1", "u32")
        head.append(f"mov.b64 %d{i}, {{%t0, %t1}};")
    head += [f"cvt.u16.u32 %h{i}, %r{i};" for i in range(made.halves)]
    head += [f"cvt.rn.f64.s32 %e{i}, %r{i};" for i in range(made.doubles)]
    for i in range(made.predicates):
        head += [f"and.b32 %t0, %r{i}, 1;", f"setp.ne.u32 %p{i}, %t0, 0;"]
    body = [line if line.endswith(":") or not line else line + ";" for line in made.lines]
    results: list[Values] = []
    names: list[str] = []
    tail: list[str] = []

    def store(register: str, values: Values) -> None:
        tail.append(f"st.global.b32 [%out+{4 * LANES * len(results)}], {register};")
        results.append(values)
        names.append(register)

    for i, values in enumerate(made.r):
        store(f"%r{i}", values)
    for i, values in enumerate(made.f):
        store(f"%f{i}", values)
    for bank, letter in ((made.d, "d"), (made.e, "e")):
        for i, values in enumerate(bank):
            tail.append(f"mov.b64 {{%t0, %t1}}, %{letter}{i};")
            store("%t0", [one & M32 for one in values])
            store("%t1", [one >> 32 for one in values])
    for i, values in enumerate(made.h):
        tail.append(f"cvt.u32.u16 %t0, %h{i};")
        store("%t0", values)
    for i, flags in enumerate(made.p):
        tail.append(f"selp.b32 %t0, 1, 0, %p{i};")
        store("%t0", [int(flag) for flag in flags])
    text = "\n".join([*head, *body, *tail, "ret;", "}", ""])
    return PtxProgram(text.encode() + b"\0", made.inputs, results, names)


def differences(program: PtxProgram, found: Sequence[int]) -> Iterator[str]:
    """Tell each result word that is not as documented. `found` has the words of all lanes of each result."""
    for number, (name, values) in enumerate(zip(program.names, program.results, strict=True)):
        for lane, value in enumerate(values):
            if (word := found[number * LANES + lane]) != value:
                yield f"result {number} ({name}) of lane {lane}: {word:#010x}, should be {value:#010x}"


class Driver:
    """The few calls that a program needs."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} answered {code}")

    def run(self, program: PtxProgram) -> list[int]:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), program.text)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"program")
        words = [word for values in program.inputs for word in values]
        given = (ctypes.c_uint32 * len(words))(*words)
        found = (ctypes.c_uint32 * (LANES * len(program.results)))()
        inputs, results = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(inputs), ctypes.c_size_t(ctypes.sizeof(given)))
        self.call("cuMemAlloc_v2", ctypes.byref(results), ctypes.c_size_t(ctypes.sizeof(found)))
        self.call("cuMemcpyHtoD_v2", inputs, given, ctypes.c_size_t(ctypes.sizeof(given)))
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(inputs), ctypes.addressof(results))
        self.call("cuLaunchKernel", function, 1, 1, 1, LANES, 1, 1, 0, None, arguments, None)
        self.call("cuMemcpyDtoH_v2", found, results, ctypes.c_size_t(ctypes.sizeof(found)))
        for address in (inputs, results):
            self.call("cuMemFree_v2", address)
        self.call("cuModuleUnload", module)
        return list(found)
