"""The machine of a measurement: card and its power state, driver, processor, versions, commit, date."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cuda_gctx._core.extension import Device, device_memory, system

__all__ = ["ClockReading", "Conditions", "commit_of", "described", "is_simulated", "memory_of", "power_state"]

PACKAGES = ("cuda-gctx", "cuda-core", "cuda-bindings", "torch")
TOOL_TIMEOUT_S = 10
# Names in a result, and what nvidia-smi calls them.
POWER_STATE = {
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "largest_sm_clock_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}


def is_simulated(device: Device) -> bool:
    """Tells whether the software driver provides the device."""
    return device.is_simulated


def memory_of(device: Device) -> tuple[int, int]:
    """The free and the total memory, in bytes."""
    return device_memory(device.resources.sm)


def _output_of(command: Sequence[str]) -> str | None:
    """The output of a tool; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TOOL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def kernel_driver_version() -> str | None:
    """The version of the driver's kernel module, which the CUDA driver does not report."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def cpu_name() -> str:
    """The name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def package_versions() -> dict[str, str]:
    """The versions of the installed packages that affect measurements."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def commit_of(folder: Path) -> str | None:
    """The commit of the clone that contains a folder, with "-dirty" if tracked files differ; None without a clone."""
    commit = _output_of(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return None
    return commit + "-dirty" * bool(_output_of(["git", "-C", str(folder), "status", "--porcelain", "-uno"]))


def power_state(device: Device) -> dict[str, float | None]:
    """Clocks, power limit and temperature as nvidia-smi reports them now. A value that it does not report is None."""
    values: list[str] = []
    if not is_simulated(device):
        query = f"--query-gpu={','.join(POWER_STATE.values())}"
        found = _output_of(["nvidia-smi", f"--id=GPU-{device.uuid}", query, "--format=csv,noheader,nounits"])
        values = [value.strip() for value in found.split(",")] if found else []
    if len(values) != len(POWER_STATE):
        return dict.fromkeys(POWER_STATE)
    return {name: _number(value) for name, value in zip(POWER_STATE, values, strict=True)}


class ClockReading:
    """Reads the SM clock in a separate process while the device keeps working."""

    def __init__(self, device: Device) -> None:
        self._process: subprocess.Popen[str] | None = None
        if not is_simulated(device):
            command = [
                "nvidia-smi",
                f"--id=GPU-{device.uuid}",
                "--query-gpu=clocks.sm",
                "--format=csv,noheader,nounits",
            ]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
                )

    def __enter__(self) -> ClockReading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with self._process:
                self._process.kill()

    @property
    def is_done(self) -> bool:
        """Whether the reading is complete, or cannot be made."""
        return self._process is None or self._process.poll() is not None

    @property
    def sm_clock_mhz(self) -> float | None:
        """The clock of a complete reading; read it once. None if the tool is missing or does not report the clock."""
        if self._process is None or self._process.returncode != 0:
            return None
        assert self._process.stdout is not None
        return _number(self._process.stdout.read().strip())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


@cache
def own_commit() -> str | None:
    """The commit of the clone that contains the package, or the environment in which the package is installed."""
    return commit_of(Path(__file__).parent)


# By how much clocks may differ in the same power state: they move in steps of 15 MHz, and with the load.
CLOCK_TOLERANCE = 0.03
TEMPERATURE_TOLERANCE = 0.3


@dataclass(frozen=True)
class Conditions:
    """The state of a card at one moment of a measurement. A value that nvidia-smi does not report is None.

    commit: that of the clone of the package, if it is run from one.
    """

    commit: str | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    largest_sm_clock_mhz: float | None
    power_limit_w: float | None
    temperature_c: float | None

    @classmethod
    def of(cls, device: Device) -> Conditions:
        """The conditions of a device now.

        device: the device whose clocks, power limit and temperature are read.
        """
        return cls(own_commit(), **power_state(device))

    def other_state(self, other: Conditions) -> list[str]:
        """The settings of the card that differ, as texts: power limit and highest clocks.

        other: the conditions of another run.
        """
        return self._changed(
            other,
            (("largest_sm_clock_mhz", "highest SM clock", "MHz", 0.0), ("power_limit_w", "power limit", "W", 0.0)),
        )

    def differences(self, other: Conditions) -> list[str]:
        """The differences that make the times of two runs incomparable, as texts.

        other: the conditions of another run.
        """
        return self.other_state(other) + self._changed(
            other,
            (
                ("sm_clock_mhz", "SM clock", "MHz", CLOCK_TOLERANCE),
                ("memory_clock_mhz", "memory clock", "MHz", CLOCK_TOLERANCE),
                ("temperature_c", "temperature", "degrees", TEMPERATURE_TOLERANCE),
            ),
        )

    def _changed(self, other: Conditions, fields: Sequence[tuple[str, str, str, float]]) -> list[str]:
        found = []
        for name, what, unit, tolerance in fields:
            one, two = getattr(self, name), getattr(other, name)
            if one is not None and two is not None and abs(one - two) > tolerance * max(one, two):
                found.append(f"{what} {one:g} and {two:g} {unit}")
        return found

    def __str__(self) -> str:
        shown = (
            ("commit", self.commit and self.commit[:12], ""),
            ("SM clock", self.sm_clock_mhz, " MHz"),
            ("memory clock", self.memory_clock_mhz, " MHz"),
            ("power limit", self.power_limit_w, " W"),
            ("temperature", self.temperature_c, " degrees"),
        )
        known = [f"{what} {value:g}{unit}" if unit else f"{what} {value}" for what, value, unit in shown if value]
        return ", ".join(known) or "unknown"


def described(device: Device, what: str | None = None, clone: Path | None = None) -> dict[str, Any]:
    """The fields that every result begins with: card, driver, versions, date, commit and power state.

    what: the subject of the result. clone: a folder of the clone that runs the measurement, if any.
    """
    simulated = is_simulated(device)
    return {
        **({} if what is None else {"_what": what}),
        "simulated": simulated,
        "card": device.name,
        "sm_count": device.sm_count,
        "driver": None if simulated else kernel_driver_version(),
        "cuda": "{}.{}".format(*system.driver_version),
        "cpu": cpu_name(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "packages": package_versions(),
        "commit": None if clone is None else commit_of(clone),
        **power_state(device),
    }
