"""NVSHMEM, initialised through nvshmem4py for the ranks of a handler, without NVLink multicast."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cuda_gctx import Device
from cuda_gctx.comm._backends import CommBackend, LocalBackend, gather, gather_results

__all__ = ["demand_initialised", "initialise"]

# Multicast over NVLink can put the GPUs of a whole server out of service.
NO_MULTICAST = "NVSHMEM_DISABLE_NVLS"
IBGDA = "NVSHMEM_IB_ENABLE_IBGDA"
# How many connections a GPU drives to each other rank.
CONNECTIONS = "NVSHMEM_IBGDA_NUM_RC_PER_PE"
# Of nvshmemx_init_status().
IS_INITIALISED = 2


# The rank and size with which this process has initialised NVSHMEM, which is done once.
_initialised: list[tuple[int, int]] = []


def demand_initialised(backend: CommBackend) -> None:
    """RuntimeError on all ranks unless each has initialised NVSHMEM by itself, as the rank that it is here."""

    def look() -> None:
        library: Any = import_module("nvshmem.bindings")
        if library.init_status() < IS_INITIALISED:
            raise RuntimeError(
                "NVSHMEM is not initialised: with should_init_nvshmem=False, the program must initialise it first"
            )
        found, wanted = (library.my_pe(), library.n_pes()), (backend.Get_rank(), backend.Get_size())
        if found != wanted:
            raise RuntimeError(f"NVSHMEM's rank here is {found[0]} of {found[1]}, not {wanted[0]} of {wanted[1]}")

    gather_results(backend, look, (Exception,), "NVSHMEM cannot be used")


def initialise(backend: CommBackend, device: Device, *, enable_ibgda: bool, blocks: int = 1) -> None:
    """Initialises NVSHMEM with the ranks of a backend, once for a process. Collective.

    blocks: how many of a kernel send at a time, each over a connection of its own where GPUs drive adapters.
    RuntimeError on all ranks, with the reasons, if it cannot be done on one.
    """
    place = backend.Get_rank(), backend.Get_size()
    loaded: list[Any] = []
    _on_all(backend, lambda: loaded.append(_load(backend)))
    core = loaded[0]
    if all(gather(backend, bool(_initialised))):
        return
    os.environ[NO_MULTICAST] = "1"
    os.environ.setdefault(IBGDA, "1" if enable_ibgda else "0")
    if enable_ibgda:
        os.environ.setdefault(CONNECTIONS, str(blocks))
    rank = place[0]
    identifier: list[Any] = []  # the identifier, which other ranks cannot be sent

    def identify() -> bytes:
        identifier.append(core.get_unique_id(empty=rank != 0))
        return ctypes.string_at(identifier[0].ptr, int(identifier[0]._data.nbytes))

    def start() -> None:
        core_device: Any = import_module("cuda.core").Device(device.device_id)
        core_device.set_current()
        core.init(device=core_device, uid=identifier[0], rank=rank, nranks=place[1], initializer_method="uid")

    # NVSHMEM belongs to the context that is current: the primary one. The previous context is restored.
    with device.context.current():
        content = _on_all(backend, identify)[0]
        ctypes.memmove(identifier[0].ptr, content, len(content))
        _on_all(backend, start)
    _initialised.append(place)


def _load(backend: CommBackend) -> Any:
    """nvshmem.core; RuntimeError if NVSHMEM cannot be initialised on this rank."""
    place = backend.Get_rank(), backend.Get_size()
    if isinstance(backend, LocalBackend):
        raise RuntimeError(
            "NVSHMEM needs a process for each rank, and the ranks of this world are threads of one process"
        )
    if os.environ.get(NO_MULTICAST, "1") != "1":
        raise RuntimeError(
            f"{NO_MULTICAST} must be 1, not {os.environ[NO_MULTICAST]}: NVLink multicast is not used here"
        )
    if _initialised and _initialised != [place]:
        raise RuntimeError(
            f"this process is already rank {_initialised[0][0]} of {_initialised[0][1]}, not {place[0]} of {place[1]}"
        )
    try:
        return import_module("nvshmem.core")
    except (ImportError, OSError, RuntimeError) as error:
        raise RuntimeError(f"nvshmem4py cannot be imported (pip install nvshmem4py-cu13): {error}") from error


def _on_all(backend: CommBackend, work: Callable[[], Any]) -> list[Any]:
    """What `work` returns on each rank; RuntimeError on all ranks if it raises on one, whatever the library raises."""
    return gather_results(backend, work, (Exception,), "NVSHMEM cannot be initialised")
