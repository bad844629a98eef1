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


class Memory2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")),
    ]


class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("numbers", ctypes.c_uint32 * 5), ("bus_id", ctypes.c_char * 32)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint32), ("used", ctypes.c_uint64), ("instances", ctypes.c_uint32 * 2)]


UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, VERSION_MISMATCH = 1, 2, 3, 6, 7, 25


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
    identity, bus = nvml.text("DeviceGetUUID", card), nvml.get("DeviceGetPciInfo_v3", Pci(), card).bus_id
    assert identity.startswith(f"GPU-{SIM}03-")
    assert bus == b"00000000:1A:00.0"
    assert nvml.text("DeviceGetName", card) == "NVIDIA H200 (simulated)"
    assert nvml.get("DeviceGetHandleByUUID", ctypes.c_void_p(), identity.encode()) == card.value
    assert nvml.get("DeviceGetHandleByPciBusId_v2", ctypes.c_void_p(), bus) == card.value
    assert nvml.get("DeviceGetIndex", ctypes.c_uint(), card) == 2
    assert nvml.get("DeviceGetClockInfo", ctypes.c_uint(), card, 1) == 1980
    assert nvml.get("DeviceGetMaxClockInfo", ctypes.c_uint(), card, 2) > 1000
    major, mode = ctypes.c_int(), ctypes.c_uint(7)
    assert (nvml.get("DeviceGetCudaComputeCapability", ctypes.c_int(), card, ctypes.byref(major)), major.value) == (
        0,
        9,
    )
    assert (nvml.get("DeviceGetMigMode", ctypes.c_uint(7), card, ctypes.byref(mode)), mode.value) == (0, 0)


def test_tools_see_the_version_of_the_driver(nvml: Nvml) -> None:
    assert nvml.text("SystemGetDriverVersion") == nvml.text("SystemGetNVMLVersion") == "13.0"
    assert nvml.get("SystemGetCudaDriverVersion_v2", ctypes.c_int()) == 13000


def test_tools_see_what_the_program_has_on_its_card(nvml: Nvml, library: Any) -> None:
    assert nvml.code("DeviceGetComputeRunningProcesses_v3", nvml.card(3), ctypes.byref(ctypes.c_uint()), None) == 0
    context, memory = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    assert library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0
    assert [nvml.get("DeviceGetMemoryInfo", Memory(), nvml.card(index)).used for index in (2, 3)] == [0, 1 << 20]
    newer = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    assert nvml.get("DeviceGetMemoryInfo_v2", newer, nvml.card(3)).free == newer.total - (1 << 20)
    count = ctypes.c_uint(0)
    function = "DeviceGetComputeRunningProcesses_v3"
    assert nvml.code(function, nvml.card(3), ctypes.byref(count), None) == INSUFFICIENT_SIZE
    found = nvml.get(function, Process(), nvml.card(3), ctypes.byref(count))
    assert (count.value, found.pid, found.used) == (1, os.getpid(), 1 << 20)
    assert library.cuMemFree_v2(memory) == 0
    assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0


def test_what_is_not_measured_is_not_supported(nvml: Nvml) -> None:
    out = ctypes.create_string_buffer(64)
    for function, arguments in (("UtilizationRates", ()), ("PowerUsage", ()), ("Temperature", (0,))):
        assert nvml.code(f"DeviceGet{function}", nvml.card(0), *arguments, out) == NOT_SUPPORTED
    assert nvml.code("SystemGetDriverBranch", out, len(out)) == NOT_SUPPORTED
    nvml.library.nvmlErrorString.restype = ctypes.c_char_p
    assert nvml.library.nvmlErrorString(NOT_SUPPORTED) == b"not supported by the simulated device"
    assert not hasattr(nvml.library, "nvmlDeviceGetFanSpeed")


def test_wrong_questions_have_the_documented_answers(nvml: Nvml) -> None:
    out, small = ctypes.c_void_p(), ctypes.create_string_buffer(4)
    assert nvml.code("DeviceGetHandleByIndex_v2", DEVICES, ctypes.byref(out)) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetHandleByUUID", b"GPU-1", ctypes.byref(out)) == NOT_FOUND
    assert nvml.code("DeviceGetName", None, small, len(small)) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetName", nvml.card(0), small, len(small)) == INSUFFICIENT_SIZE
    assert nvml.code("DeviceGetName", nvml.card(0), None, 96) == INVALID_ARGUMENT
    assert nvml.code("DeviceGetMemoryInfo_v2", nvml.card(0), ctypes.byref(Memory2())) == VERSION_MISMATCH
