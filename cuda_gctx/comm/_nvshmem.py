"""NVSHMEM, initialised through nvshmem4py for the ranks of a handler, without NVLink multicast."""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

from cuda_gctx import Device
from cuda_gctx.comm._backends import CommBackend, LocalBackend, gather

__all__ = ["initialise"]

# Multicast over NVLink can put the GPUs of a whole server out of service.
NO_MULTICAST = "NVSHMEM_DISABLE_NVLS"
IBGDA = "NVSHMEM_IB_ENABLE_IBGDA"


# The rank and size with which this process has initialised NVSHMEM, which is done once.
_initialised: list[tuple[int, int]] = []


def initialise(backend: CommBackend, device: Device, *, enable_ibgda: bool) -> None:
    """Initialises NVSHMEM with the ranks of a backend, once for a process. Collective.

    RuntimeError on all ranks, with the reasons, if it cannot be done on one.
    """
    place = backend.Get_rank(), backend.Get_size()
    core, reason = _load(backend)
    if _initialised and _initialised != [place]:
        reason = (
            f"this process is rank {_initialised[0][0]} of {_initialised[0][1]} already, not {place[0]} of {place[1]}"
        )
    _agree(backend, reason)
    if all(gather(backend, bool(_initialised))):
        return
    os.environ[NO_MULTICAST] = "1"
    os.environ.setdefault(IBGDA, "1" if enable_ibgda else "0")
    rank = place[0]
    problem, content = "", b""
    # NVSHMEM belongs to the context that is current: the primary one, which is current again afterwards.
    with device.context.current():
        try:
            identifier = core.get_unique_id(empty=rank != 0)
            size = int(identifier._data.nbytes)
            content = ctypes.string_at(identifier.ptr, size)
        except Exception as error:  # of the library, or of its loader
            problem = f"{type(error).__name__}: {error}"
        _agree(backend, problem)
        ctypes.memmove(identifier.ptr, backend.bcast(content, 0), size)
        try:
            own: Any = import_module("cuda.core").Device(device.device_id)
            own.set_current()
            core.init(device=own, uid=identifier, rank=rank, nranks=place[1], initializer_method="uid")
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        _agree(backend, problem)
    _initialised.append(place)


def _load(backend: CommBackend) -> tuple[Any, str]:
    """nvshmem.core, or why NVSHMEM cannot be initialised on this rank."""
    if isinstance(backend, LocalBackend):
        return None, "its ranks are processes, and those of this world are threads of one"
    if os.environ.get(NO_MULTICAST, "1") != "1":
        return None, f"{NO_MULTICAST} must be 1, not {os.environ[NO_MULTICAST]}: NVLink multicast is not used here"
    try:
        return import_module("nvshmem.core"), ""
    except (ImportError, OSError, RuntimeError) as error:
        return None, f"nvshmem4py cannot be imported (pip install nvshmem4py-cu13 nvidia-nvshmem-cu13): {error}"


def _agree(backend: CommBackend, problem: str) -> None:
    problems = [f"rank {rank}: {one}" for rank, one in enumerate(gather(backend, problem)) if one]
    if problems:
        raise RuntimeError(f"NVSHMEM cannot be initialised: {'; '.join(problems)}")
