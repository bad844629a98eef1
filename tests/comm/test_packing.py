"""Which packets ranks take, by what the driver reports about devices and links, and what they do with torn ones."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from cuda_gctx import Device
from cuda_gctx.comm import _packing
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._memory import Identity
from cuda_gctx.comm._packing import agreed_packing
from cuda_gctx.comm._protocol import Packing
from cuda_software_driver import library_folder

from .test_tensors import on_all

NATIVE = 3  # of CUdevice_P2PAttribute


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    """The driver that cuda.bindings opens by this name."""
    ctypes.CDLL(os.path.join(library_folder(), "libcuda.so.1"))


def identity(device: Device) -> Identity:
    return Identity("host", "process", device.device_id, device.pci_bus_id, 0)


def agreed(numbers: list[int], elsewhere: tuple[Identity, ...] = ()) -> list[Any]:
    """What ranks on these devices agree on, some of which may be on devices that they do not see."""
    ranks = [*(identity(Device(number)) for number in numbers), *elsewhere]
    return on_all(len(numbers), lambda rank, backend: agreed_packing(backend, Device(numbers[rank]), ranks))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the driver reports about the link between two devices."""

    def set_answers(pair: tuple[int, int], **answers: int) -> None:
        def answer(name: str, *arguments: Any) -> Any:
            if name == "cuDeviceGetP2PAttribute" and arguments[1:] == pair:
                return answers["native"] if int(arguments[0]) == NATIVE else answers["partial"]
            return call(name, *arguments)

        monkeypatch.setattr(_packing, "call", answer)

    return set_answers


@pytest.mark.parametrize("numbers", [[0, 0], [0, 1], [0, 0, 1, 1]])
def test_packets_are_whole_within_a_device_and_over_nvlink(sim: Any, numbers: list[int]) -> None:
    sim("h200", devices=2)
    assert agreed(numbers) == [Packing.WHOLE] * len(numbers)


def test_packets_are_halves_where_whole_ones_have_not_been_seen(sim: Any) -> None:
    sim("b200", devices=2)
    assert agreed([0, 0]) == [Packing.HALVES] * 2


@pytest.mark.parametrize("answers", [{"native": 0, "partial": 0}, {"native": 1, "partial": 1}])
def test_packets_of_all_ranks_are_halves_if_one_link_may_be_pcie(sim: Any, link: Any, answers: dict[str, int]) -> None:
    sim("h200", devices=3)
    link((2, 1), **answers)
    assert agreed([0, 1, 2]) == [Packing.HALVES] * 3
    assert agreed([0, 1]) == [Packing.WHOLE] * 2


def test_a_device_that_cannot_be_asked_about_is_not_taken_for_near(sim: Any) -> None:
    sim("h200", devices=1)
    assert agreed([0], (Identity("host", "another", 0, "0000:7f:00.0", 0),)) == [Packing.HALVES]
