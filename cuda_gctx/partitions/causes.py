"""Known reasons why work on two streams does not overlap, as sentences with a suggestion."""

from __future__ import annotations

import os

from cuda_gctx._core.extension import Device, Stream

__all__ = ["lack_of_concurrency", "launches_block", "too_few_queues"]

# The number of hardware queues if CUDA_DEVICE_MAX_CONNECTIONS is not set.
DEFAULT_CONNECTIONS = 8
MOST_CONNECTIONS = 32  # that the variable can request


def is_number(setting: str) -> bool:
    """Tells whether a text consists of ASCII digits. The driver does not accept digits of other scripts."""
    return setting.isascii() and setting.isdecimal()


def connections() -> int:
    """The number of hardware queues that the driver uses."""
    setting = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return int(setting) if is_number(setting) else DEFAULT_CONNECTIONS


def too_few_queues(needed: int, of_what: str) -> str | None:
    """The cause if there are fewer hardware queues than `needed`."""
    if connections() >= needed:
        return None
    return (
        f"{connections()} hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for {needed} {of_what}: set the variable to "
        f"{needed} or more, at most {MOST_CONNECTIONS}, before the driver is first used"
    )


def launches_block() -> str | None:
    """The cause if every launch waits for its kernel."""
    setting = os.environ.get("CUDA_LAUNCH_BLOCKING", "0")
    if setting in ("", "0"):
        return None
    return f"CUDA_LAUNCH_BLOCKING={setting}: every launch waits until its kernel has completed; unset it"


def _primary_is_busy(device: Device) -> bool:
    try:
        with device.context.current():
            return not Stream.from_handle(1).is_done
    except RuntimeError:  # of the driver, or because a block of another task is open on this thread
        return False


def lack_of_concurrency(device: Device, contexts: int) -> str:
    """The known cause that fits if contexts with disjoint SMs did not run concurrently."""
    queues = too_few_queues(contexts, "contexts")
    if queues is not None:
        return queues
    if _primary_is_busy(device):
        return (
            "work of the primary context is running on all SMs: run it in a partition, or in the background partition"
        )
    if os.environ.get("CUDA_MODULE_LOADING", "LAZY").upper() != "EAGER":
        return (
            "no certain cause; another thread may have loaded kernels meanwhile, as lazy loading does at their first "
            "launch: try CUDA_MODULE_LOADING=EAGER"
        )
    return "no known cause fits"
