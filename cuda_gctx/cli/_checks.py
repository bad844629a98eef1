"""The checks of ``cuda-gctx doctor``: the driver, environment variables, and versions of installed packages.

The checks import none of the packages, and create no context.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from cuda_gctx import CUDAError, Device, DriverNotFound, system
from cuda_gctx.cli._options import device_of
from cuda_gctx.interop._frameworks import release
from cuda_gctx.interop.mps import PERCENTAGE, PIPES, STATIC, is_mig_slice, mps_settings
from cuda_gctx.partitions.causes import DEFAULT_CONNECTIONS, MOST_CONNECTIONS, is_number, launches_block


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    state: "ok", "warning" or "problem". advice: what to do; None if nothing is wrong. path: the file that was checked.
    """

    subject: str
    state: str
    found: str
    advice: str | None = None
    path: str | None = None


def _ok(subject: str, found: str, path: str | None = None) -> Finding:
    return Finding(subject, "ok", found, path=path)


def _warning(subject: str, found: str, advice: str) -> Finding:
    return Finding(subject, "warning", found, advice)


def _problem(subject: str, found: str, advice: str) -> Finding:
    return Finding(subject, "problem", found, advice)


# ---- driver and devices


def _driver(number: int | None, profile: str | None) -> Iterator[Finding]:
    try:
        major, minor = system.driver_version
    except DriverNotFound as error:
        found, _, advice = str(error).rpartition(": ")  # the message ends with what to do
        yield _problem("driver", found, advice)
        return
    except CUDAError as error:
        yield _problem(
            "driver", str(error), "check that nvidia-smi lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
        )
        return
    except ValueError as error:
        yield _problem("driver", str(error), "correct CUDA_GCTX_DRIVER, or unset it")
        return
    chosen = os.environ.get("CUDA_GCTX_DRIVER")
    by = f", simulated {profile}" if profile else f", selected by CUDA_GCTX_DRIVER={chosen}" if chosen else ""
    version, path = f"CUDA {major}.{minor}{by}", system.driver_path
    green = system.features()["green_contexts"]
    if green:
        yield _ok("driver", version, path)
        yield from _devices(number)
    else:
        advice = f"partitions need CUDA driver {green.needs} or newer: update the NVIDIA driver"
        yield Finding("driver", "problem", version, advice, path)


def _devices(number: int | None) -> Iterator[Finding]:
    for device in map(Device, range(Device.count())) if number is None else [device_of(number)]:
        subject = f"device {device.device_id}"
        description = f"{device.name}, {device.sm_count} SMs"
        try:
            device.resources.sm  # noqa: B018  asks the driver whether it has any to give
        except CUDAError as error:
            yield _problem(subject, f"{description}: {error}", "this device cannot be partitioned: use another one")
            continue
        if is_mig_slice(device):
            yield _warning(
                subject,
                f"{description}, a slice of a GPU (MIG)",
                "only the SMs of this slice can be partitioned: cuda-gctx sizes lists the possible sizes",
            )
        else:
            yield _ok(subject, description)


# ---- what else uses or changes the device


def _visible_devices() -> Finding:
    subject, value = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _ok(subject, "not set: all devices are visible")
    advice = "CUDA stops at the first entry that is not a device: use those that nvidia-smi -L lists, or unset it"
    first, *others = (entry.strip() for entry in value.split(","))
    if not re.fullmatch("[0-9]+|(GPU|MIG)-.+", first):
        return _problem(subject, f"{value!r}: hides all devices", advice)
    named = 1 + sum(map(bool, others))
    try:
        seen = Device.count()
    except (DriverNotFound, ValueError):
        return _ok(subject, f"{value}: not checked without a driver")
    except CUDAError:  # no device
        seen = 0
    if seen < named:
        return _warning(subject, f"{value}: lists {named}, but {seen} are visible", advice)
    return _ok(subject, f"{value}: device 0 is the first of them")


def _mps() -> Finding:
    subject, mps = "MPS", mps_settings()
    if mps.percentage is not None:
        setting = f"{PERCENTAGE}={mps.percentage}"
        advice = (
            "under MPS this limits the SMs of partitions, and GEMMs on an H200 were wrong: unset it, or set it to 100"
        )
        if mps.daemon:
            return _problem(subject, setting, advice)
        return _warning(subject, f"{setting}, without a control pipe in {mps.folder}", advice)
    if mps.daemon and mps.partition is None:
        return _warning(
            subject,
            f"control pipe of a daemon in {mps.folder}",
            "if the daemon runs, other processes can use the SMs of your partitions at the same time: open one layout "
            "in all processes, and use a partition in each, or stop the daemon: echo quit | nvidia-cuda-mps-control",
        )
    if mps.daemon:
        return _ok(subject, f"control pipe of a daemon in {mps.folder}, with a partition for this process")
    return _ok(subject, f"no control pipe in {mps.folder}")


def _static_partition() -> Finding:
    subject, mps = "MPS partition", mps_settings()
    if mps.partition is None:
        return _ok(subject, f"{STATIC} is not set")
    setting = f"{STATIC}={mps.partition}"
    if not mps.daemon:
        advice = f"without MPS it has no effect: start the daemon, set {PIPES}, or unset it"
        return _warning(subject, f"{setting}, without a control pipe in {mps.folder}", advice)
    return _ok(subject, f"{setting}: a split divides the SMs of this partition")


def _protocol() -> Finding:
    subject, name = "MPS protocol", "CUDA_MPS_PROTOCOL_VERSION"
    value = os.environ.get(name)
    if not value:
        return _ok(subject, f"{name} is not set")
    if value in ("2", "3"):
        return _ok(subject, value)
    advice = "MPS has 2 and, from driver 13.5 on, 3: use one of them"
    return _warning(subject, f"{name}={value}: not a known protocol", advice)


def _per_context() -> Finding:
    subject, name = "MPS contexts", "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
    value = os.environ.get(name)
    if value in (None, "", "0"):
        return _ok(subject, "not limited separately")
    advice = "it lets MPS limit each context separately, which was not tried with partitions: unset it"
    return _warning(subject, f"{name}={value}", advice)


# ---- how the driver runs kernels


def _connections() -> Finding:
    subject, value = "CUDA_DEVICE_MAX_CONNECTIONS", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if value is None:
        return _ok(subject, f"not set: {DEFAULT_CONNECTIONS} hardware queues")
    advice = f"set it to the number of concurrent streams, at most {MOST_CONNECTIONS}, or unset it"
    number = int(value) if is_number(value) else 0
    if not 1 <= number <= MOST_CONNECTIONS:
        return _warning(subject, f"{value}: not a number from 1 to {MOST_CONNECTIONS}", advice)
    if number == 1:
        return _problem(subject, "1: partitions wait for each other in a single hardware queue", advice)
    if number < DEFAULT_CONNECTIONS:
        return _warning(subject, f"{number}: more streams than this wait for each other", advice)
    return _ok(subject, f"{number} hardware queues")


def _launch_blocking() -> Finding:
    subject, value = "CUDA_LAUNCH_BLOCKING", os.environ.get("CUDA_LAUNCH_BLOCKING")
    if launches_block() is None:
        return _ok(subject, "not set" if value is None else f"{value}: off")
    return _problem(subject, f"{value}: each launch waits for its kernel, so nothing overlaps", "unset it")


def _reset() -> Finding:
    return _ok(
        "device reset",
        "refused by the driver (error 800) while green contexts exist: call system.release_contexts() first",
    )


def _module_loading() -> Finding:
    subject, value = "CUDA_MODULE_LOADING", os.environ.get("CUDA_MODULE_LOADING")
    if value is not None and value.upper() == "EAGER":
        return _ok(subject, f"{value}: kernels are loaded with their modules")
    state = "not set, so lazy" if value is None else value
    return _ok(
        subject, f"{state}: the first launch of a kernel can delay others; launch each kernel once before measuring"
    )


# ---- packages


def _installed(names: tuple[str, ...]) -> tuple[str, str] | None:
    for name in names:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def _package(module: str, names: tuple[str, ...]) -> Finding:
    """The version of a framework, compared with what its interop module needs."""
    installed = _installed(names)
    if installed is None:
        return _ok(names[0], "not installed")
    name, version = installed
    minimum = import_module(f"cuda_gctx.interop.{module}").MINIMUM
    if release(version) < release(minimum):
        return _warning(name, version, f"cuda_gctx.interop.{module} needs {minimum} or newer: update it")
    if version.endswith("+cpu"):
        return _warning(name, f"{version}: built without CUDA", "install a build for CUDA to use it in partitions")
    return _ok(name, f"{version} ({minimum} or newer is needed)")


def _numba_cuda() -> Finding:
    finding = _package("numba", ("numba-cuda",))
    numba, numpy = _installed(("numba-cuda",)), _installed(("numpy",))
    # It uses a function that numpy 2.5 no longer has.
    if numba and numpy and release(numba[1])[:2] == (0, 30) and release(numpy[1]) >= (2, 5):
        return _warning(
            "numba-cuda", f"{numba[1]} with numpy {numpy[1]}: no kernel compiles", "install numpy below 2.5"
        )
    return finding


def _cuda_bindings() -> Finding:
    installed = _installed(("cuda-bindings",))
    if installed is None and _installed(("cuda-core",)):
        advice = 'to use cuda.core, pip install "cuda-bindings==13.*", or 12.* for a driver of CUDA 12'
        return _warning("cuda-bindings", "not installed: cuda-core cannot be imported without it", advice)
    return _ok("cuda-bindings", installed[1] if installed else "not installed")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _visible_devices,
    _mps,
    _static_partition,
    _protocol,
    _per_context,
    _connections,
    _launch_blocking,
    _module_loading,
    _reset,
    lambda: _package("torch", ("torch",)),
    lambda: _package("cupy", ("cupy", "cupy-cuda13x", "cupy-cuda12x")),
    _numba_cuda,
    lambda: _package("cuda_core", ("cuda-core",)),
    _cuda_bindings,
)


def check_environment(number: int | None = None, profile: str | None = None) -> Iterator[Finding]:
    """All findings, those about the driver first.

    number: the device to check; None for all. profile: the simulated card that was selected.
    """
    yield from _driver(number, profile)
    for check in CHECKS:
        yield check()
