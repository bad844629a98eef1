"""Whether the ranks may store whole packets: where accesses of 128 bits have been seen to be undivided."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_gctx import Device
from cuda_gctx.comm._backends import CommBackend, gather
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._memory import Identity
from cuda_gctx.comm._protocol import Packing

__all__ = ["agreed_packing"]

# H100 and H200: within a device, and over NVLink.
CAPABILITIES_SEEN = ((9, 0),)


def agreed_packing(backend: CommBackend, device: Device, ranks: Sequence[Identity]) -> Packing:
    """The packets of all ranks: whole ones, if every rank may store them to every other. Collective."""
    return min(gather(backend, _packing(device, ranks)))


def _packing(device: Device, ranks: Sequence[Identity]) -> Packing:
    if device.compute_capability not in CAPABILITIES_SEEN:
        return Packing.HALVES
    others = {one.pci_bus_id for one in ranks} - {device.pci_bus_id}
    devices = {one.pci_bus_id: one for one in map(Device, range(Device.count())) if one.pci_bus_id in others}
    # A device that this process does not see cannot be asked about.
    is_seen = others == devices.keys() and all(_has_nvlink(device, one) for one in devices.values())
    return Packing.WHOLE if is_seen else Packing.HALVES


def _has_nvlink(device: Device, other: Device) -> bool:
    """Whether a link has all atomic operations, which NVLink has and PCIe has not."""
    kinds = driver().CUdevice_P2PAttribute

    def answer(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_P2P_ATTRIBUTE_{name}", None)  # the second one since 13.0
        return 0 if kind is None else int(call("cuDeviceGetP2PAttribute", kind, device.device_id, other.device_id))

    return answer("NATIVE_ATOMIC_SUPPORTED") == 1 and answer("ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED") == 0
