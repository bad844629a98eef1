"""The cards of a machine: which CUDA_VISIBLE_DEVICES leaves to a program, and what the management library says."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

import cuda_software_driver as sim

from .raw import Raw

SIM = "53494d"  # the bytes of "SIM", with which every identity begins
DEVICES = 4
NO_DEVICE = 100


@pytest.fixture
def library() -> Iterator[Any]:
    """The software driver, without a machine."""
    library = ctypes.CDLL(sim.library_path())
    library.softwareDriverPush()
    yield library
    library.softwareDriverPop()


def cards(library: Any, names: str | None, monkeypatch: pytest.MonkeyPatch) -> list[int] | int:
    """The numbers of the cards that a program sees, by their PCI buses; or the code of cuInit."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert library.softwareDriverConfigure(f"h200,devices={DEVICES}".encode(), None, ctypes.c_size_t(0)) == 0
    if code := library.cuInit(0):
        return int(code)
    count, bus = ctypes.c_int(), ctypes.create_string_buffer(32)
    library.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for device in range(count.value):
        library.cuDeviceGetPCIBusId(bus, len(bus), device)
        found.append(int(bus.value.split(b":")[1], 16) - 0x18)
    return found


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3,0", [3, 0]),
        (" 1, 2", [1, 2]),
        ("1gpu2,2ampere", [1, 2]),  # read as strtol reads numbers
        ("0,2,-1,1", [0, 2]),  # the first name of no card ends the list
        ("0,7,1", [0]),
        ("0,,1", [0]),
        ("1,junk,2", [1]),
        (f"GPU-{SIM}02", [1]),
        (f"GPU-{SIM}04-6832-3030-0000-000000000000,GPU-{SIM}01", [3, 0]),
        (f"GPU-{SIM}01,2", [0, 2]),
        (f"GPU-{SIM}", NO_DEVICE),  # of more than one card
        ("GPU-ffffffff,0", NO_DEVICE),
        ("MIG-GPU-1/0/0", NO_DEVICE),
        ("1,0,1", NO_DEVICE),  # a card twice
        (f"0,GPU-{SIM}01", NO_DEVICE),
        ("", NO_DEVICE),
        ("-1", NO_DEVICE),
        ("NoDevFiles", NO_DEVICE),
    ],
)
def test_a_program_sees_the_cards_that_are_named(
    library: Any, monkeypatch: pytest.MonkeyPatch, names: str | None, seen: list[int] | int
) -> None:
    assert cards(library, names, monkeypatch) == seen


def test_a_session_has_the_devices_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with sim.session("h200", devices=2):
        raw, count = Raw(), ctypes.c_int()
        raw.call("cuDeviceGetCount", ctypes.byref(count))
        assert count.value == 2


# ---- the management library


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


UNINITIALIZED, INVALID_ARGUMENT, INSUFFICIENT_SIZE = 1, 2, 7


class Nvml:
    """The calls of bindings such as nvidia-ml-py."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.path.join(sim.library_folder(), "libnvidia-ml.so.1"))

    def code(self, function: str, *arguments: Any) -> int:
        code: int = getattr(self.library, f"nvml{function}")(*arguments)
        return code

    def get(self, function: str, out: Any, *arguments: Any) -> Any:
        assert self.code(function, *arguments, ctypes.byref(out)) == 0, function
        return getattr(out, "value", out)

    def text(self, function: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(96)
        assert self.code(function, *arguments, buffer, len(buffer)) == 0, function
        return buffer.value.decode()

    def card(self, index: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.get("DeviceGetHandleByIndex_v2", ctypes.c_void_p(), index))


@pytest.fixture
def nvml(library: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """The library of a machine of four cards, of which the program sees the last."""
    assert cards(library, "3", monkeypatch) == [3]
    nvml = Nvml()
    assert nvml.code("Init_v2") == 0
    yield nvml
    assert nvml.code("Shutdown") == 0
    assert nvml.code("Shutdown") == UNINITIALIZED


def test_tools_see_every_card_and_who_it_is(nvml: Nvml) -> None:
    assert nvml.get("DeviceGetCount_v2", ctypes.c_uint()) == DEVICES
    card = nvml.card(2)
    assert nvml.text("DeviceGetUUID", card).startswith(f"GPU-{SIM}03-")
    assert nvml.text("DeviceGetName", card) == "NVIDIA H200 (simulated)"


def test_tools_see_the_version_of_the_driver(nvml: Nvml) -> None:
    assert nvml.text("SystemGetDriverVersion") == "13.0"
    assert nvml.get("SystemGetCudaDriverVersion_v2", ctypes.c_int()) == 13000


def test_tools_see_what_the_program_has_on_its_card(nvml: Nvml, library: Any) -> None:
    context, memory = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    assert library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0
    assert [nvml.get("DeviceGetMemoryInfo", Memory(), nvml.card(index)).used for index in (2, 3)] == [0, 1 << 20]
    assert library.cuMemFree_v2(memory) == 0
    assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0


def test_functions_that_tools_can_do_without_are_missing(nvml: Nvml) -> None:
    assert not hasattr(nvml.library, "nvmlDeviceGetFanSpeed")
    nvml.library.nvmlErrorString.restype = ctypes.c_char_p
    assert nvml.library.nvmlErrorString(0) == b"success"


def test_wrong_questions_have_the_documented_answers(nvml: Nvml) -> None:
    out, small = ctypes.c_void_p(), ctypes.create_string_buffer(4)
    assert nvml.code("DeviceGetHandleByIndex_v2", DEVICES, ctypes.byref(out)) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetName", None, small, len(small)) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetName", nvml.card(0), small, len(small)) == INSUFFICIENT_SIZE
    assert nvml.code("DeviceGetName", nvml.card(0), None, 96) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetMemoryInfo", nvml.card(0), None) == INVALID_ARGUMENT
