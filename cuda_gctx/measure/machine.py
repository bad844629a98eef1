"""The machine of a measurement: card and its power state, driver, processor, versions, commit, date."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_gctx._core.extension import Device, device_memory, system

__all__ = ["commit_of", "described", "memory_of", "power_state"]

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
    query = f"--query-gpu={','.join(POWER_STATE.values())}"
    found = _output_of(["nvidia-smi", f"--id=GPU-{device.uuid}", query, "--format=csv,noheader,nounits"])
    values = [value.strip() for value in found.split(",")] if found else []
    if len(values) != len(POWER_STATE):
        return dict.fromkeys(POWER_STATE)
    return {name: _number(value) for name, value in zip(POWER_STATE, values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def described(device: Device, what: str | None = None, clone: Path | None = None) -> dict[str, Any]:
    """The fields that every result begins with: card, driver, versions, date, commit and power state.

    what: the subject of the result. clone: a folder of the clone that runs the measurement, if any.
    """
    simulated = device.is_simulated
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
