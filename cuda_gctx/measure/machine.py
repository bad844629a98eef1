"""What a measurement was taken on: card, driver, processor, versions, date."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from pathlib import Path

from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import system

PACKAGES = ("cuda-gctx", "cuda-core", "cuda-bindings", "torch")


def is_simulated(device: Device) -> bool:
    """Whether its numbers are those of the software driver, which says so in the name of every device."""
    return device.name.endswith("(simulated)")


def kernel_driver_version() -> str | None:
    """The version of the driver's kernel module, which the driver's own calls do not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def package_versions() -> dict[str, str]:
    """The packages that take part in measurements, as far as they are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def described(device: Device) -> dict[str, object]:
    """All of it, for the head of a result."""
    simulated = is_simulated(device)
    return {
        "simulated": simulated,
        "card": device.name,
        "sm_count": device.sm_count,
        "driver": None if simulated else kernel_driver_version(),
        "cuda": "{}.{}".format(*system.driver_version),
        "cpu": cpu_name(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "packages": package_versions(),
    }
