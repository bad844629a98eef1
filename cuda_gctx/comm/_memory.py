"""The workspaces of all ranks, as one rank maps them.

Physical memory and addresses are separate: a checkpoint releases the memory and keeps the addresses, which captured
graphs contain. Ranks of one process share their mappings; other ranks of the host import each other's memory through
file descriptors.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import Any, NamedTuple

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm._backends import CommBackend, gather, on_all_ranks
from cuda_gctx.comm._descriptors import exchange_descriptors
from cuda_gctx.comm._driver_calls import call, driver

__all__ = ["Identity", "Workspaces", "host_identity", "process_identity"]


class Identity(NamedTuple):
    """How a rank describes itself to the others."""

    host: str
    process: str
    device_id: int
    pci_bus_id: str
    address: int


def host_identity() -> str:
    """Of this host: ranks with the same one map each other's memory.

    The environment variable CUDA_GCTX_HOST, or that of the running system, which containers of one host share.
    """
    given = os.environ.get("CUDA_GCTX_HOST")
    if given:
        return given
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


# Made with the module: threads that ask for the first time at once would get two.
_identities = [secrets.token_hex(16)]


def process_identity() -> str:
    """Of this process, and of no other one: containers number their processes alike."""
    return _identities[0]


def _renew_identity() -> None:
    _identities[0] = secrets.token_hex(16)


os.register_at_fork(after_in_child=_renew_identity)


def _rounded(size: int, grain: int) -> int:
    return -(-size // grain) * grain


class Workspaces:
    """Memory of this rank, and the addresses under which it reaches that of every rank of its host.

    Every rank makes one, with the same size. The memory is zero. reached: the ranks of this host; the address of every
    other one is 0.
    """

    def __init__(self, backend: CommBackend, device: Device, size: int, timeout_s: float) -> None:
        self._backend = backend
        self._device = device
        self._timeout_s = timeout_s
        self._rank = backend.Get_rank()
        self._properties = self._memory_properties()
        with device.context.current():
            grain = call(
                "cuMemGetAllocationGranularity",
                self._properties,
                driver().CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        self._size = _rounded(size, int(grain))
        self._handle: Any = None
        self._imported: list[int] = []
        self._reserved: dict[int, int] = {}
        self.addresses: tuple[int, ...] = ()
        self.reached: tuple[int, ...] = ()
        try:
            on_all_ranks(backend, self._reserve_and_map_own, "the workspaces could not be made")
            self._meet(backend)
        except BaseException:
            self.close()
            raise

    def _memory_properties(self) -> Any:
        cu = driver()
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._device.device_id
        properties.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return properties

    def _reserve(self) -> int:
        with self._device.context.current():
            return int(call("cuMemAddressReserve", self._size, 0, 0, 0))

    def _allow(self, address: int, device_ids: set[int]) -> None:
        cu = driver()
        wanted = []
        for device_id in sorted(device_ids):
            access = cu.CUmemAccessDesc()
            access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = device_id
            access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            wanted.append(access)
        call("cuMemSetAccess", address, self._size, wanted, len(wanted))

    def _reserve_and_map_own(self) -> None:
        self._reserved[self._rank] = self._reserve()
        self._map_own()

    def _map_own(self) -> None:
        address = self._reserved[self._rank]
        with self._device.context.current():
            handle = call("cuMemCreate", self._size, self._properties, 0)
            try:
                call("cuMemMap", address, self._size, 0, handle, 0)
            except CUDAError:
                call("cuMemRelease", handle)
                raise
            self._handle = handle
            self._allow(address, {self._device.device_id})
            call("cuMemsetD8", address, 0, self._size)
            call("cuCtxSynchronize")

    def _meet(self, backend: CommBackend) -> None:
        """Finds the memory of all ranks. Each rank maps that of the others at the addresses that it has reserved."""
        identity = Identity(
            *(host_identity(), process_identity(), self._device.device_id, self._device.pci_bus_id),
            self._reserved[self._rank],
        )
        ranks = gather(backend, identity)
        self.reached = tuple(rank for rank, other in enumerate(ranks) if other.host == identity.host)
        on_all_ranks(backend, lambda: self._demand_peer_access(ranks), "the ranks do not reach each other")
        here = {other.device_id for other in ranks if other.process == identity.process}
        self.ranks = tuple(ranks)
        with self._device.context.current():
            on_all_ranks(backend, lambda: self._allow(identity.address, here), "the ranks do not reach each other")
            others: dict[int, int] = {}
            if any(other.process != identity.process for other in ranks):
                others = self._import_from_others(backend, ranks)
        self.addresses = tuple(
            others.get(rank, other.address) if rank in self.reached else 0 for rank, other in enumerate(ranks)
        )

    def _demand_peer_access(self, ranks: list[Identity]) -> None:
        by_bus = {ranks[rank].pci_bus_id for rank in self.reached} - {self._device.pci_bus_id}
        for number in range(Device.count()):
            other = Device(number)
            if other.pci_bus_id in by_bus:
                by_bus.remove(other.pci_bus_id)
                if not int(call("cuDeviceCanAccessPeer", self._device.device_id, number)):
                    raise RuntimeError(
                        f"device {self._device.device_id} cannot access the memory of device {number}: the kernels of "
                        "cuda_gctx.comm need peer access between all devices of a node"
                    )

    def _import_from_others(self, backend: CommBackend, ranks: list[Identity]) -> dict[int, int]:
        cu = driver()
        kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        problem = "the ranks do not reach each other's memory"
        descriptor = on_all_ranks(
            backend, lambda: int(call("cuMemExportToShareableHandle", self._handle, kind, 0)), problem
        )
        try:
            received = exchange_descriptors(backend, descriptor, self._timeout_s, self.reached)
        finally:
            os.close(descriptor)
        addresses: dict[int, int] = {}

        def map_all() -> None:
            for rank, theirs in received.items():
                if ranks[rank].process == process_identity():
                    continue
                if rank not in self._reserved:
                    self._reserved[rank] = self._reserve()
                handle = call("cuMemImportFromShareableHandle", theirs, kind)
                try:
                    call("cuMemMap", self._reserved[rank], self._size, 0, handle, 0)
                finally:
                    # The mapping keeps the memory.
                    call("cuMemRelease", handle)
                self._imported.append(rank)
                self._allow(self._reserved[rank], {self._device.device_id})
                addresses[rank] = self._reserved[rank]

        try:
            on_all_ranks(backend, map_all, problem)
        finally:
            for theirs in received.values():
                os.close(theirs)
        return addresses

    def fill(self, value: int, first: int = 0, end: int | None = None) -> None:
        """Sets the bytes of this rank's memory from one offset to another. Waits for nothing else on the device."""
        with self._device.context.create_stream() as stream, self._device.context.current():
            size = (self._size if end is None else end) - first
            call("cuMemsetD8Async", self._reserved[self._rank] + first, value, size, stream.handle)
            stream.sync()

    def release(self) -> None:
        """Releases the physical memory; addresses stay reserved. No kernel of any rank may be using it."""
        with self._device.context.current():
            while self._imported:
                call("cuMemUnmap", self._reserved[self._imported.pop()], self._size)
            if self._handle is not None:
                handle, self._handle = self._handle, None
                call("cuMemUnmap", self._reserved[self._rank], self._size)
                call("cuMemRelease", handle)

    def restore(self, backend: CommBackend) -> None:
        """Maps new memory at the same addresses, zero. Collective; what fails can be tried again."""
        known, problem = self.addresses, "the workspaces could not be restored"

        def demand_known() -> None:
            if self.addresses != known:
                raise RuntimeError("memory came back at another address: captured graphs cannot be replayed")

        try:
            on_all_ranks(backend, self._map_own, problem)
            self._meet(backend)
            on_all_ranks(backend, demand_known, problem)
        except BaseException:
            self.addresses = known
            self.release()
            raise
        self._backend = backend

    def close(self) -> None:
        """Frees everything. No kernel of any rank may be using it."""
        with suppress(CUDAError):  # of a context that is broken; what is left goes with the process
            self.release()
            with self._device.context.current():
                while self._reserved:
                    _, address = self._reserved.popitem()
                    call("cuMemAddressFree", address, self._size)
