"""Known reasons why work on two streams does not run at the same time, as sentences with what to do."""

from __future__ import annotations

import os

from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import CUDAError
from cuda_gctx._core.stream import Stream

__all__ = ["lack_of_concurrency", "launches_block", "too_few_queues"]

# The driver's own number of hardware queues where CUDA_DEVICE_MAX_CONNECTIONS is not set.
DEFAULT_CONNECTIONS = 8
MOST_CONNECTIONS = 32  # that the variable can ask for


def is_number(setting: str) -> bool:
    """Whether it is digits and nothing else. Those of other scripts are none to the driver."""
    return setting.isascii() and setting.isdecimal()


def connections() -> int:
    """How many hardware queues the driver was told to use."""
    setting = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return int(setting) if is_number(setting) else DEFAULT_CONNECTIONS


def too_few_queues(needed: int, of_what: str) -> str | None:
    """Said if there are fewer hardware queues than `needed`."""
    if connections() >= needed:
        return None
    return (
        f"{connections()} hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for {needed} {of_what}: set the variable to "
        f"{needed} or more, at most {MOST_CONNECTIONS}, before the driver is first used"
    )


def launches_block() -> str | None:
    """Said if every launch waits for its kernel."""
    setting = os.environ.get("CUDA_LAUNCH_BLOCKING", "0")
    if setting in ("", "0"):
        return None
    return f"CUDA_LAUNCH_BLOCKING={setting}: every launch waits until its kernel is done; unset it"


def _primary_is_busy(device: Device) -> bool:
    try:
        with device.context.current():
            return not Stream.from_handle(1).is_done
    except CUDAError:
        return False


def lack_of_concurrency(device: Device, contexts: int) -> str:
    """Which of the known reasons fits when contexts with SMs of their own did not run at the same time."""
    queues = too_few_queues(contexts, "contexts")
    if queues is not None:
        return queues
    if _primary_is_busy(device):
        return "work of the primary context is under way on all SMs: run it in a partition, or in the fence"
    if os.environ.get("CUDA_MODULE_LOADING", "LAZY").upper() != "EAGER":
        return (
            "no cause is certain; another thread may have loaded kernels meanwhile, which lazy loading does at their "
            "first launch: try CUDA_MODULE_LOADING=EAGER"
        )
    return "no known cause fits"
