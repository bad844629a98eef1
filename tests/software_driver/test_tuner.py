"""The tuner on kernels whose cost nobody registered: no time of an assumed cost reaches it as a measurement."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_gctx import CUDAError, Device, Stream, tune
from cuda_software_driver import Session, session

from ..common import refusal
from ..raw import Raw

pytestmark = pytest.mark.sim_only

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n"
PTX += b".visible .entry alone() { wgmma.fence.sync.aligned; ret; }\n\0"  # not executed: its time is not known


@pytest.fixture
def sim() -> Iterator[Session]:
    with session("h200", check=False) as machine:
        yield machine


def launching(raw: Raw) -> Callable[[Any], None]:
    """Work that launches a kernel without a registered cost."""
    library = raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = raw.handle("cuLibraryGetKernel", ctypes.c_void_p(library), b"alone")

    def work(stream: Stream) -> None:
        shape = (1, 1, 1, 32, 1, 1, 0)
        raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), *shape, ctypes.c_void_p(stream.handle), None, None)

    return work


def test_no_time_of_an_assumed_cost_reaches_the_tuner(sim: Session) -> None:
    """Times between events and reads of stamps are refused."""
    dev = Device(0)
    dev.set_current()
    streams, work = [dev.create_stream() for _ in range(2)], launching(Raw())
    error = refusal(CUDAError, lambda: tune.overlap(a=work, b=work, device=dev))
    assert (error.name, error.call) == ("CUDA_ERROR_NOT_SUPPORTED", "cuEventElapsedTime")
    error = refusal(CUDAError, lambda: tune.explain((streams[0], work), (streams[1], work), rounds=1))
    assert error.name == "CUDA_ERROR_NOT_SUPPORTED"


def test_times_of_a_registered_cost_are_told(sim: Session) -> None:
    dev = Device(0)
    dev.set_current()
    streams, work = [dev.create_stream() for _ in range(2)], launching(Raw())
    sim.kernel("alone", block_ns=5_000)
    tune.explain((streams[0], work), (streams[1], work), rounds=1)
