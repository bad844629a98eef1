"""Objects that partitions must not share: ``check(control=[...], rest=[...])`` finds them among the objects of each
partition.

The check uses no device, and imports no library. docs/guarantee.md lists the objects that it cannot find.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from itertools import chain, combinations
from types import FunctionType, MethodType, ModuleType
from typing import Any

from cuda_gctx._core.text import table

__all__ = ["CublasHandle", "Shared", "SharingReport", "check"]

# Names of attributes that kernels write to. Other tensors of objects, such as weights, may be shared.
_WRITTEN = re.compile(r"(^|_)(locks?|workspaces?|semaphores?|barriers?|counters?|scratch)(_|$)")
# Limits of the search: levels of references, and objects.
_DEEPEST = 12
_MOST = 200_000
# Dictionaries in which modules of torch keep their attributes.
_DICTIONARIES_OF_TORCH = ("_parameters", "_buffers", "_modules")
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), ModuleType, range)

_ADVICE = {
    "communicator": "make one group for each partition: cuda_gctx.interop.nccl.new_group(part)",
    "cuBLAS handle": "make one handle for each partition, with its own stream and workspace",
    "cuBLAS workspace": "give each handle its own workspace",
    "CUDA graph": "capture one graph in each partition: GraphSet does so",
    "memory pool of graphs": "capture with a pool for each partition: GraphSet does so",
    "scratch memory": "allocate it once for each partition",
}


@dataclass(frozen=True)
class CublasHandle:
    """A cuBLAS handle that a program created, and its workspace, by address and size in bytes."""

    handle: int
    workspace: int | None = None
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Shared:
    """An object that two partitions use: its kind, its place in each partition, and advice."""

    kind: str
    places: tuple[str, str]
    advice: str


@dataclass(frozen=True)
class SharingReport:
    """The result of `check`. ``shared`` is empty if nothing is shared; ``seen`` counts the objects of each kind.

    is_complete: whether `check` searched all objects that the given ones refer to. If not, pass the relevant parts.
    """

    shared: tuple[Shared, ...]
    seen: Mapping[str, int]
    is_complete: bool

    def __str__(self) -> str:
        counted = ", ".join(f"{count} x {kind}" for kind, count in self.seen.items() if count) or "nothing it knows"
        if not self.is_complete:
            counted += f"; not searched: beyond {_DEEPEST} levels or {_MOST} objects"
        if not self.shared:
            return f"nothing is shared (compared: {counted})"
        rows = [(shared.kind, *shared.places, shared.advice) for shared in self.shared]
        return f"{table(('shared', 'in', 'and in', 'do instead'), rows)}\ncompared: {counted}"


@dataclass(frozen=True)
class _Use:
    """An object of a kind that must not be shared. Equal keys, or overlapping memory, mean that it is shared."""

    kind: str
    place: str
    key: object = None
    memory: tuple[int, int] | None = None  # the address of the first byte, and the address behind the last byte

    def is_shared_with(self, other: _Use) -> bool:
        if self.kind != other.kind:
            return False
        if self.memory is None or other.memory is None:
            return self.key == other.key
        return self.memory[0] < other.memory[1] and other.memory[0] < self.memory[1]


def _type_of(module: str, *names: str) -> type | None:
    """Return a class of a module, or None if the program has not imported the module."""
    value: Any = sys.modules.get(module)
    for name in names:
        value = getattr(value, name, None)
    return value if isinstance(value, type) else None


def _is(thing: object, module: str, *names: str) -> bool:
    kind = _type_of(module, *names)
    return kind is not None and isinstance(thing, kind)


def _memory_of_tensor(thing: Any) -> tuple[int, int] | None:
    """The device memory of a tensor of torch or an array with __cuda_array_interface__, or None."""
    if _is(thing, "torch", "Tensor"):
        if not thing.is_cuda or thing.numel() == 0:
            return None
        last = sum((size - 1) * stride for size, stride in zip(thing.shape, thing.stride(), strict=True))
        start = thing.data_ptr()
        return start, start + (last + 1) * thing.element_size()
    if getattr_static(type(thing), "__cuda_array_interface__", None) is None:
        return None
    described = thing.__cuda_array_interface__
    item = int(re.sub(r"\D", "", described["typestr"]))
    shape, strides = described["shape"], described.get("strides")
    if 0 in shape:
        return None
    start = described["data"][0]
    if strides is None:
        strides = [item] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return start + sum(step for step in steps if step < 0), start + sum(step for step in steps if step > 0) + item


def _address(value: Any) -> int | None:
    """An int, or the number in an object of ctypes."""
    value = getattr(value, "value", value)
    return value if type(value) is int else None


def _communicator(thing: Any) -> object:
    """The key of a communicator of NCCL; None for other objects."""
    if _is(thing, "torch.distributed", "ProcessGroup"):
        distributed = sys.modules["torch.distributed"]
        with suppress(RuntimeError, ValueError):  # raised for a destroyed group
            return ("group", thing.group_name) if "nccl" in distributed.get_backend(thing) else None
        return None
    # CuPy, nccl4py, and the wrappers of serving engines.
    if type(thing).__name__.endswith("Communicator"):
        for name in ("comm", "ptr", "handle"):
            address = _address(getattr(thing, name, None))
            if address:
                return ("ncclComm_t", address)
    return None


def _recognised(thing: Any, place: str) -> Iterator[_Use]:
    if isinstance(thing, CublasHandle):
        yield _Use("cuBLAS handle", place, thing.handle)
        if thing.workspace is not None:
            memory = (thing.workspace, thing.workspace + max(1, thing.workspace_bytes))
            yield _Use("cuBLAS workspace", place, memory=memory)
    elif _is(thing, "torch.cuda", "CUDAGraph"):
        yield _Use("CUDA graph", place, id(thing))
        with suppress(RuntimeError):  # raised for a graph without a capture, which has no pool
            yield _Use("memory pool of graphs", place, tuple(thing.pool()))
    else:
        key = _communicator(thing)
        if key is not None:
            yield _Use("communicator", place, key)


def _parts_of(thing: Any, place: str) -> Iterator[tuple[Any, str, bool]]:
    """Yield the objects that an object refers to: each with its place, and whether kernels write to it by its name."""
    if isinstance(thing, Mapping):
        for key, value in list(thing.items()):
            yield value, f"{place}[{key!r}]", bool(isinstance(key, str) and _WRITTEN.search(key))
    elif isinstance(thing, (list, tuple, AbstractSet)):
        for number, value in enumerate(list(thing)):
            yield value, f"{place}[{number}]", False
    elif isinstance(thing, partial):
        yield thing.func, place, False
        yield thing.args, place, False
        yield thing.keywords, place, False
    elif isinstance(thing, MethodType):
        yield thing.__self__, place, False
        yield thing.__func__, place, False
    elif isinstance(thing, FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield cell.cell_contents, f"{place}.{name}", bool(_WRITTEN.search(name))
            except ValueError:  # an unbound variable
                continue
    elif isinstance(thing, type):
        # torch.cuda.make_graphed_callables puts its graphs into functions of a class of their own.
        if "<locals>" in thing.__qualname__:
            for name, value in list(vars(thing).items()):
                yield getattr(value, "__func__", value), f"{place}.{name}", False
    else:
        for name, value in list(getattr(thing, "__dict__", {}).items()):
            if name in _DICTIONARIES_OF_TORCH and isinstance(value, Mapping):
                yield from ((item, f"{place}.{key}", bool(_WRITTEN.search(key))) for key, item in list(value.items()))
            else:
                yield value, f"{place}.{name}", bool(_WRITTEN.search(name))


def _search(name: str, given: Any) -> tuple[list[_Use], bool]:
    """The objects of one partition that must not be shared, and whether the search was complete.

    Tensors count if the caller passes them themselves, or if their names say that kernels write to them.
    """
    is_complete = True
    uses: list[_Use] = []
    visited: set[tuple[int, bool]] = set()
    kept: list[Any] = []  # keeps the objects alive, so that each id stays unique
    waiting: list[tuple[Any, str, bool, int]] = [(given, name, True, 0)]
    while waiting and len(visited) < _MOST:
        thing, place, counts, depth = waiting.pop()
        # Another name may refer to the same list and make its tensors count.
        if isinstance(thing, _LEAVES) or (id(thing), counts) in visited:
            continue
        visited.add((id(thing), counts))
        kept.append(thing)
        memory = _memory_of_tensor(thing)
        if memory is not None:
            if counts:
                uses.append(_Use("scratch memory", place, memory=memory))
            continue
        recognised = list(_recognised(thing, place))
        uses += recognised
        if recognised or _is(thing, "torch", "Tensor"):
            continue
        if depth == _DEEPEST:
            is_complete = is_complete and next(_parts_of(thing, place), None) is None
            continue
        in_container = counts and isinstance(thing, (list, tuple, AbstractSet, Mapping))
        waiting += [
            (part, where, written or in_container, depth + 1) for part, where, written in _parts_of(thing, place)
        ]
    return uses, is_complete and not waiting


def check(**uses: Any) -> SharingReport:
    """Find objects that partitions share and must not: ``check(control=[model, group], rest=[other, group])``.

    Each keyword names a partition. Its value is an object, or a list of objects, that the partition uses concurrently
    with the others. check() compares communicators (groups of torch.distributed with NCCL, and those of CuPy, nccl4py
    and others), CUDA graphs and their memory pools (also inside functions of torch.cuda.make_graphed_callables),
    `CublasHandle`, and memory that kernels write to: tensors that are passed as such, and attributes whose name
    contains lock, workspace, semaphore, barrier, counter or scratch. Weights and inputs may be shared.

    Returns a SharingReport. Raises ValueError for fewer than two keywords.
    """
    if len(uses) < 2:
        raise ValueError("check() compares partitions: pass the objects of at least two, as in check(a=[...], b=[...])")
    searched = [_search(name, given) for name, given in uses.items()]
    uses_of_each = [objects for objects, _ in searched]
    shared: dict[tuple[str, object, object], Shared] = {}
    for (name, ours), (other_name, theirs) in combinations(zip(uses, uses_of_each, strict=True), 2):
        for use in ours:
            for other in theirs:
                if use.is_shared_with(other):
                    identity = (use.kind, use.key or use.memory, (name, other_name))
                    shared.setdefault(identity, Shared(use.kind, (use.place, other.place), _ADVICE[use.kind]))
    seen = dict.fromkeys(_ADVICE, 0)
    for use in chain(*uses_of_each):
        seen[use.kind] += 1
    return SharingReport(tuple(shared.values()), seen, all(complete for _, complete in searched))
