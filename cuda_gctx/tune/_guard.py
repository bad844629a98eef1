"""What every tuning demands and notes: a device to itself, that no stream captures, and the state of the machine."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from threading import Lock
from typing import Any

from cuda_gctx._core.extension import (
    CapturingError,
    Device,
    FeatureNotSupported,
    ResourceOverlapWarning,
    capturing_stream,
    system,
)
from cuda_gctx._core.progress import Progress

__all__ = ["Sitting", "device_of", "driver_version", "place_and_date", "sharing", "sitting"]

# By device id. Two concurrent tunings would disturb each other.
_locks: defaultdict[int, Lock] = defaultdict(Lock)


def device_of(device: object) -> Device:
    """The device to measure on; that with number 0 for None."""
    device = Device() if device is None else device
    if not isinstance(device, Device):
        raise TypeError(f"device must be a Device, not {type(device).__name__}")
    return device


@dataclass(frozen=True)
class Sitting:
    """What a tuning has while it measures: where it shows progress, and what closes at its end."""

    bar: Progress
    closing: ExitStack


@contextmanager
def sitting(device: Device, progress: bool | None) -> Iterator[Sitting]:
    """The block in which a tuning measures.

    progress: whether to show progress; None: if stderr is a terminal.
    """
    with suppress(FeatureNotSupported):  # a driver without SM resources cannot be asked
        capturing = capturing_stream(device.resources.sm)
        if capturing is not None:
            raise RuntimeError(f"{capturing} is capturing a graph: tune before or after the capture")
    lock = _locks[device.device_id]
    if not lock.acquire(blocking=False):
        raise RuntimeError(
            f"another tuning of {device.name} is in progress and would disturb the measurement: wait until it ends"
        )
    try:
        with Progress(progress) as bar, ExitStack() as closing:
            device.sync()  # the caller may still be producing the inputs of the parts on other streams
            yield Sitting(bar, closing)
    except CapturingError as error:
        # A stream that a part has left capturing cannot be closed. What was said of the part says more.
        if isinstance(error.__context__, RuntimeError):
            raise error.__context__ from None
        raise
    finally:
        lock.release()


def driver_version() -> str:
    return ".".join(map(str, system.driver_version))


def place_and_date(device: Device) -> dict[str, Any]:
    """Where and when something was measured, as fields of a report."""
    today = date.today().isoformat()
    return {"device": device.name, "sm_count": device.sm_count, "driver": driver_version(), "date": today}


@contextmanager
def sharing() -> Iterator[None]:
    """A block without warnings of shared SMs: the caller needs none that contexts of the tuner share SMs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceOverlapWarning)
        yield
