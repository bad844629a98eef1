"""The arguments of the kernels: one description, from which the host's structs and those of the kernels come.

The compiler of the kernels compares the offset of each field with the host's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

__all__ = [
    "EXCHANGE",
    "ONE_EXCHANGE",
    "PLAN",
    "STRUCTS_OF",
    "TORN",
    "TWO_EXCHANGE",
    "Address",
    "Packed",
    "Struct",
    "declarations",
]

u32, u64 = ctypes.c_uint32, ctypes.c_uint64
NUMBERS = {"u32": u32, "u64": u64}


# Where a field is. NVRTC before 13.5 knows the offset of a field by another name than the compilers of C++.
FIELD_AT = """#ifdef __CUDACC_RTC__
#define FIELD_AT(type, field) __INTADDR__(&((type*)0)->field)
#else
#define FIELD_AT(type, field) __builtin_offsetof(type, field)
#endif
"""


class Field(NamedTuple):
    """kind: a number, or the name of another struct; length: the define that is the number of elements of an array."""

    kind: str
    name: str
    length: str = ""


@dataclass(frozen=True)
class Address:
    """An address that is known when a call is launched: number `given` of the addresses of the call, and an offset."""

    given: int
    offset: int = 0

    def __add__(self, size: int) -> Address:
        return Address(self.given, self.offset + size)


class Packed(NamedTuple):
    """The content of a struct, and by offset the words that are addresses of a call."""

    content: bytes
    addresses: dict[int, Address]


@dataclass(frozen=True)
class Struct:
    """A struct by its name in the kernels."""

    name: str
    fields: tuple[Field, ...]

    def host(self, **counts: int) -> Any:
        """The type for the host, with arrays of these lengths."""
        return _host(self, tuple(sorted(counts.items())))

    def packed(self, values: Mapping[str, Any], **counts: int) -> Packed:
        """The struct with these values: numbers, addresses, sequences of both, and mappings for nested structs."""
        struct, addresses = self.host(**counts)(), dict[int, Address]()
        _fill(struct, values, 0, addresses)
        return Packed(bytes(struct), addresses)

    def declaration(self, counts: Mapping[str, int]) -> str:
        """The struct for the kernels. It does not compile unless every offset is that of the host."""
        host = self.host(**counts)
        fields = "".join(f"  {one.kind} {one.name}{f'[{one.length}]' if one.length else ''};\n" for one in self.fields)
        places = {f"FIELD_AT({self.name}, {one.name})": getattr(host, one.name).offset for one in self.fields}
        places[f"sizeof({self.name})"] = ctypes.sizeof(host)
        checks = "".join(f'static_assert({what} == {size}, "{self.name}");\n' for what, size in places.items())
        return f"struct {self.name} {{\n{fields}}};\n{checks}"


@cache
def _host(struct: Struct, counts: tuple[tuple[str, int], ...]) -> Any:
    numbers = dict(counts)

    def kind_of(field: Field) -> Any:
        kind = NUMBERS.get(field.kind) or _host(NESTED[field.kind], counts)
        return kind * numbers[field.length] if field.length else kind

    fields = [(one.name, kind_of(one)) for one in struct.fields]
    return type(struct.name, (ctypes.Structure,), {"_fields_": fields})


def _fill(struct: Any, values: Mapping[str, Any], begin: int, addresses: dict[int, Address]) -> None:
    for name, value in values.items():
        at = begin + getattr(type(struct), name).offset
        if isinstance(value, Mapping):
            _fill(getattr(struct, name), value, at, addresses)
        elif isinstance(value, Address):
            addresses[at] = value
        elif isinstance(value, int):
            setattr(struct, name, value)
        else:
            numbers = [0 if isinstance(one, Address) else one for one in value]
            getattr(struct, name)[: len(numbers)] = numbers
            width = ctypes.sizeof(getattr(struct, name)._type_)
            found = {at + width * n: one for n, one in enumerate(value) if isinstance(one, Address)}
            addresses.update(found)


# What a rank knows of a call, whichever kernel it runs. Ranks are those that meet in the kernel: all of the world, or
# those of one node.
CALL = Struct(
    "Call",
    (
        Field("u64", "peer", "WORLD"),  # the workspaces, by rank, as this rank has mapped them; its own among them
        Field("u64", "fault"),  # the record that the host reads
        Field("u64", "limit"),  # nanoseconds that one wait may take
        Field("u32", "rank"),
        Field("u32", "first_world_rank"),  # of the ranks that meet here
        Field("u32", "signature"),  # of what was called: operation, mode, dtype, size
        Field("u32", "number"),  # of this call, or of its capture in a graph: 20 bits, not 0
        Field("u32", "stops"),  # whether a fault stops the device
        Field("u32", "is_held"),  # whether the first kernel of the plan has taken the control words
    ),
)

ONE_EXCHANGE = Struct(
    "OneExchange",
    (
        Field("Call", "call"),
        Field("u64", "input"),
        Field("u64", "output"),
        # Of one block of the output, or of the piece of it that this launch brings; a multiple of 16.
        Field("u64", "block_bytes"),
        Field("u64", "block_stride"),  # from one block to the next one, in the input and in the output
        Field("u32", "chunk", "WORLD"),  # which block of the input goes to each rank
    ),
)

# One for each rank.
COPIES = Struct(
    "Copies",
    (
        Field("u64", "to", "WORLD"),
        Field("u64", "source", "WORLD"),
        Field("u64", "size", "WORLD"),  # a multiple of 16; 0: none
    ),
)

NESTED = {one.name: one for one in (CALL, COPIES)}

TWO_EXCHANGE = Struct(
    "TwoExchange",
    (
        Field("Call", "call"),
        Field("u64", "input"),  # of this rank: of its tensor, or of its staging buffer
        Field("u64", "output"),
        # The same tensors as each rank has them mapped; with PLACED, what this rank reads of each rank, and writes for
        # each rank, unless it is 0.
        Field("u64", "input_at", "WORLD"),
        Field("u64", "output_at", "WORLD"),
        Field("u64", "input_offset", "SOURCES"),  # bytes into the input of each source where this rank's share begins
        Field("u64", "output_offset"),  # bytes into the output of each target where it goes
        Field("u64", "share_bytes"),  # a multiple of 16
        Field("u64", "output_bytes"),  # of the output of this rank that kernels of all ranks store to; 0 elsewhere
        Field("u32", "tile_bytes"),  # a multiple of 16, at most TILE_BYTES
        # STAGED_IN: the input of every rank is its staging buffer; STAGED_OUT: the output; PLACED: as above; with it,
        # COPIED: this kernel makes the copies, too; 0: tensors that all ranks reach.
        Field("u32", "is_staged"),
        Field("u32", "source", "SOURCES"),
        Field("u32", "target", "TARGETS"),
        Field("Copies", "sends"),  # with COPIED: before the sums, and behind them
        Field("Copies", "fetches"),
    ),
)

EXCHANGE = Struct(
    "Exchange",
    (
        Field("Call", "call"),
        # Of the equal local ranks, by node, as this rank has mapped them; of NVSHMEM: its own alone.
        Field("u64", "region", "NODES"),
        Field("u64", "piece_bytes"),  # of this call; a multiple of 16
        Field("u32", "node"),
        Field("u32", "piece", "NODES"),  # which of its pieces this rank sends to each node
    ),
)

# Of the first and the last kernel of a plan with several steps.
PLAN = Struct(
    "Plan",
    (
        Field("Call", "call"),
        Field("u64", "words"),  # the control words that the plan holds: bit n for the word in line n of the workspace
        # The two parts of the output that may be wrong after a fault.
        Field("u64", "output"),
        Field("u64", "bytes"),
        Field("u64", "second_output"),
        Field("u64", "second_bytes"),
    ),
)

TORN = Struct("Torn", (Field("Call", "call"), Field("u32", "packets")))  # how many, from each thread to each rank

# By the file of the kernels that take them.
STRUCTS_OF = {
    "one_exchange.cuh": (ONE_EXCHANGE,),
    "two_exchange.cuh": (COPIES, TWO_EXCHANGE),
    "nodes.cuh": (EXCHANGE,),
    "plan.cuh": (PLAN,),
    "torn.cuh": (TORN,),
}


def declarations(defines: Mapping[str, str], files: tuple[str, ...]) -> str:
    """The structs of some files of kernels, for the numbers of ranks in their defines."""
    counts = {name: int(defines[name]) for name in ("WORLD", "SOURCES", "TARGETS", "NODES") if name in defines}
    structs = [CALL, *(one for file in files for one in STRUCTS_OF.get(file, ()))]
    return FIELD_AT + "\n".join(one.declaration(counts) for one in structs)
