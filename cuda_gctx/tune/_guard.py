"""What every tuning demands before it begins: a device, a budget, and that nothing else measures or captures."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import CapturingError, FeatureNotSupported, ResourceOverlapWarning
from cuda_gctx._core.loan import capturing_stream

__all__ = ["device_of", "only_tuning", "refuse_capture", "sharing"]

# By device id. Two concurrent tunings would disturb each other.
_locks: defaultdict[int, Lock] = defaultdict(Lock)


def device_of(device: object) -> Device:
    """The device to measure on; that with number 0 for None."""
    device = Device() if device is None else device
    if not isinstance(device, Device):
        raise TypeError(f"device must be a Device, not {type(device).__name__}")
    return device


@contextmanager
def only_tuning(device: Device) -> Iterator[None]:
    """A block that only one thread can be in, for each device."""
    lock = _locks[device.device_id]
    if not lock.acquire(blocking=False):
        raise RuntimeError(
            f"another tuning of {device.name} is in progress, and the two would disturb each other: wait for it"
        )
    try:
        yield
    except CapturingError as error:
        # A stream that a part has left capturing cannot be closed. What was said of the part says more.
        if isinstance(error.__context__, RuntimeError):
            raise error.__context__ from None
        raise
    finally:
        lock.release()


def refuse_capture(device: Device) -> None:
    """Raise if a stream of the package is capturing a graph."""
    with suppress(FeatureNotSupported):  # a driver without SM resources cannot be asked
        capturing = capturing_stream(device.resources.sm)
        if capturing is not None:
            raise RuntimeError(f"{capturing} is capturing a graph: tune before or after the capture")


@contextmanager
def sharing() -> Iterator[None]:
    """A block without warnings of shared SMs: the caller needs none that contexts of the tuner share SMs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceOverlapWarning)
        yield
