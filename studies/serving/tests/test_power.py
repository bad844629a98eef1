"""Energy and clocks of a trial, as NVML reports them; the reason where it does not."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from serving.power import Nvml, Watch


class Library:
    """NVML's functions, whose energy counter goes on by 70 J at each reading."""

    def __init__(self, hidden: bool = False) -> None:
        self.hidden = hidden
        self.uuids: list[bytes] = []
        self.joules = 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        self.uuids.append(uuid)
        return 6 if self.hidden else 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, found: Any) -> int:
        self.joules += 70
        ctypes.cast(found, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.joules * 1000
        return 0

    def nvmlDeviceGetClockInfo(self, device: Any, which: int, found: Any) -> int:
        assert which == 1
        ctypes.cast(found, ctypes.POINTER(ctypes.c_uint))[0] = 1980
        return 0


def test_mean_power_is_energy_over_time() -> None:
    library = Library()
    watch = Watch(lambda: Nvml("12-34", library))
    assert library.uuids == [b"GPU-12-34"]
    watch.begin()
    assert watch.end(0.1) == {"power_w": 700.0, "sm_clock_mhz": {"least": 1980, "median": 1980}}


def test_without_nvml_the_reason_is_kept() -> None:
    watch = Watch(lambda: Nvml("12-34", Library(hidden=True)))
    watch.begin()
    found = watch.end(0.1)
    assert found["power_w"] is None
    assert found["no_power"] == "nvmlDeviceGetHandleByUUID returned 6"


def test_a_missing_library_is_no_error_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "libnvidia-ml.so.1" in Watch(lambda: Nvml("12-34")).end(1.0)["no_power"]
