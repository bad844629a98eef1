"""Energy and SM clock of a card during a trial, as NVML reports them. NVML comes with the driver, and is only read."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from statistics import median
from typing import Any

SAMPLES_EVERY_S = 0.25
SM_CLOCK = 1  # nvmlClockType_t


class Nvml:
    """The two counters of one device. Raises OSError where NVML is missing or hides the device."""

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        self._device = ctypes.c_void_p()
        self._checked("nvmlInit_v2")
        self._checked("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._device))

    def _checked(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise OSError(f"{function} returned {code}")

    def joules(self) -> float:
        millijoules = ctypes.c_ulonglong()
        self._checked("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    def sm_clock_mhz(self) -> int:
        clock = ctypes.c_uint()
        self._checked("nvmlDeviceGetClockInfo", self._device, SM_CLOCK, ctypes.byref(clock))
        return clock.value


class Watch:
    """Reads the counters from begin() to end(), the clock on a thread that sleeps in between."""

    def __init__(self, open_nvml: Callable[[], Any]) -> None:
        self._why_not: str | None = None
        try:
            self._nvml = open_nvml()
            self._nvml.joules(), self._nvml.sm_clock_mhz()
        except OSError as error:
            self._nvml, self._why_not = None, str(error)
        self._joules = 0.0
        self._clocks: list[int] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._nvml is None:
            return
        self._joules, self._clocks = self._nvml.joules(), []
        self._over.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLES_EVERY_S):
            self._clocks.append(self._nvml.sm_clock_mhz())

    def stop(self) -> None:
        """End the thread, if it runs."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def end(self, seconds: float) -> dict[str, Any]:
        """Mean power since begin(), and the lowest and the median clock; without NVML, the reason."""
        if self._nvml is None:
            return {"power_w": None, "sm_clock_mhz": None, "no_power": self._why_not}
        self.stop()
        clocks = self._clocks or [self._nvml.sm_clock_mhz()]
        return {
            "power_w": round((self._nvml.joules() - self._joules) / seconds, 1),
            "sm_clock_mhz": {"least": min(clocks), "median": median(clocks)},
        }
