"""Tensors that the kernels of other ranks reach: allocations of a framework, mapped into the processes of all ranks."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm._backends import CommBackend, demand_equal, gather_results
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._memory import Identity, process_identity

__all__ = ["MappedTensors", "span"]

HANDLE_BYTES = 64
# Of spans that were looked for.
MOST_KEPT = 4096


def span(tensor: Any) -> tuple[int, int]:
    """Address and size in bytes of a tensor."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


class _Exported(NamedTuple):
    """A tensor as its rank describes it to the others: its address, and the allocation that it is in."""

    address: int
    base: int
    handle: bytes


class _Mapped(NamedTuple):
    """A tensor of this rank: where it is, and by how much its address differs in the process of each rank.

    number: of the tensors that were mapped together. theirs: these tensors, by rank, as this rank reaches them.
    """

    begin: int
    end: int
    shifts: tuple[int, ...]
    number: int
    theirs: tuple[int, ...]
    opened: tuple[tuple[int, bytes], ...]  # what this rank has opened of others for it


class MappedTensors:
    """The tensors of this rank that all ranks have mapped, and the mappings of those of the others.

    The memory belongs to the framework. The caller keeps a tensor alive as long as it is mapped.
    """

    def __init__(self, device: Device, ranks: Sequence[Identity], rank: int) -> None:
        self._device = device
        self._ranks = ranks
        self._rank = rank
        self._tensors: list[_Mapped] = []
        self._arenas: list[_Mapped] = []
        # Of spans that were looked for, until other tensors are mapped; empty where none holds them.
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}
        self._count = 0
        self._opened: dict[tuple[int, bytes], int] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._tensors or self._arenas)

    def add_arena(self, size: int, addresses: tuple[int, ...], seen: tuple[int, ...]) -> None:
        """Counts the tensors of an arena as mapped. addresses, seen: those of the arena; on all ranks."""
        begin = addresses[self._rank]
        shifts = tuple(address - begin for address in seen)
        self._arenas.append(_Mapped(begin, begin + size, shifts, self._count, addresses, ()))
        self._count += 1

    def add(self, backend: CommBackend, spans: Sequence[tuple[int, int]]) -> None:
        """Maps tensors, given by address and size. Collective: all ranks raise if it fails on one."""
        demand_equal(backend, "the number of tensors", len(spans))
        exported = self._agreed(backend, lambda: [self._export(address) for address, _ in spans])
        seen = self._agreed(backend, lambda: [self._open(rank, theirs) for rank, theirs in enumerate(exported)])
        for number, (address, size) in enumerate(spans):
            shifts = tuple(of_rank[self._rank][number] - address for of_rank in seen)
            opened = tuple((rank, theirs[number].handle) for rank, theirs in enumerate(exported))
            theirs = tuple(of_owner[number] for of_owner in seen[self._rank])
            self._tensors.append(_Mapped(address, address + size, shifts, self._count + number, theirs, opened))
        self._count += len(spans)
        self._found = {}

    def demand(self, addresses: Sequence[int]) -> None:
        """ValueError unless a tensor of this rank is mapped at each of them."""
        begins = Counter(one.begin for one in self._tensors)
        begins.subtract(addresses)
        missing = next((address for address, count in begins.items() if count < 0), None)
        if missing is not None:
            raise ValueError(f"no tensor at {missing:#x} has been mapped")

    def remove(self, address: int) -> None:
        """Unmaps the tensors of the others that came with the one of this rank at an address; ValueError if none is."""
        self.demand([address])
        removed = next(one for one in self._tensors if one.begin == address)
        self._tensors.remove(removed)
        self._found = {}
        kept = {key for one in self._tensors for key in one.opened}
        with suppress(CUDAError), self._device.context.current():
            for key in set(removed.opened) - kept:
                if key in self._opened:
                    call("cuIpcCloseMemHandle", self._opened.pop(key))

    def find(self, address: int, size: int) -> tuple[int, ...] | None:
        """The address in the process of each rank; None if it is not part of a mapped tensor.

        For a rank of another host, it is that in no process.
        """
        known = self._found
        found = known.get((address, size))
        if found is None:
            holder = self._holder(address, size)
            found = () if holder is None else tuple(address + shift for shift in holder.shifts)
            if len(known) >= MOST_KEPT:
                known.clear()
            known[address, size] = found
        return found or None

    def find_together(self, address: int, size: int) -> tuple[tuple[int, int], tuple[int, ...]] | None:
        """The same place of the tensors that all ranks mapped together, and where this rank reaches that of each rank.

        None if it is not part of a mapped tensor.
        """
        holder = self._holder(address, size)
        if holder is None:
            return None
        offset = address - holder.begin
        return (holder.number, offset), tuple(begin + offset for begin in holder.theirs)

    def _holder(self, address: int, size: int) -> _Mapped | None:
        every = (*self._tensors, *self._arenas)
        return next((one for one in every if one.begin <= address and address + size <= one.end), None)

    def _agreed(self, backend: CommBackend, work: Callable[[], Any]) -> list[Any]:
        return gather_results(backend, work, (CUDAError, RuntimeError), "tensors cannot be mapped")

    def _export(self, address: int) -> _Exported:
        if all(one.process == process_identity() for one in self._ranks):
            return _Exported(address, address, b"")
        with self._device.context.current():
            base, _ = call("cuMemGetAddressRange", address)
            try:
                handle = call("cuIpcGetMemHandle", base)
            except CUDAError as error:
                raise RuntimeError(
                    f"{error}: only memory from cuMemAlloc can be mapped: torch's allocator uses it unless "
                    "expandable_segments is set"
                ) from error
        return _Exported(address, int(base), ctypes.string_at(handle.getPtr(), HANDLE_BYTES))

    def _open(self, rank: int, theirs: Sequence[_Exported]) -> list[int]:
        """The addresses of the tensors of a rank, as this rank reaches them."""
        if self._ranks[rank].host != self._ranks[self._rank].host:
            return [0 for _ in theirs]
        if self._ranks[rank].process == process_identity():
            self._enable_access(self._ranks[rank].device_id)
            return [tensor.address for tensor in theirs]
        addresses = []
        for tensor in theirs:
            key = rank, tensor.handle
            if key not in self._opened:
                handle = driver().CUipcMemHandle()
                ctypes.memmove(handle.getPtr(), tensor.handle, HANDLE_BYTES)
                lazily = int(driver().CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                with self._device.context.current():
                    self._opened[key] = int(call("cuIpcOpenMemHandle", handle, lazily))
            addresses.append(self._opened[key] + tensor.address - tensor.base)
        return addresses

    def _enable_access(self, device_id: int) -> None:
        """To the ordinary memory of another device, in this process."""
        if device_id == self._device.device_id:
            return
        with self._device.context.current():
            try:
                call("cuCtxEnablePeerAccess", Device(device_id).context.handle, 0)
            except CUDAError as error:
                if error.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                    raise

    def close(self) -> None:
        """Unmaps the tensors of the others. No kernel may be using them."""
        self._tensors.clear()
        self._arenas.clear()
        self._found = {}
        with suppress(CUDAError), self._device.context.current():
            while self._opened:
                call("cuIpcCloseMemHandle", self._opened.popitem()[1])
