"""The arguments of a handler, as far as a rank can check them by itself, and what of them the ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx import Device, Partition
from cuda_gctx.comm._limits import block_sizes as checked_block_sizes
from cuda_gctx.comm._protocol import ALIGNMENT, MOST_BLOCKS, Element
from cuda_gctx.comm._topology import ParallelInfo
from cuda_gctx.extending import as_bool, as_int, as_seconds

__all__ = ["HOST_S", "MOST_BYTES", "Arguments", "as_steps", "checked", "element_of", "host_limit_s", "is_supported"]

# The kernels need bulk copies, which this architecture introduced.
FIRST_CAPABILITY = 90
# More than any message is divided into.
MOST_STEPS = 1 << 16
# More than any device has.
MOST_BYTES = 1 << 40
# What a call that cannot finish leaves.
ON_FAULT = ("nan", "trap")
# How nodes exchange.
TRANSPORTS = ("nvshmem", "nccl", "peers")
# Kernels count nanoseconds in 64 bits.
LONGEST_S = 1_000_000_000
# How long ranks wait for each other on the host, at least: some may have more to load than others.
HOST_S = 60.0


@cache
def _torch() -> Any:
    return import_module("torch")


@cache
def _elements() -> dict[Any, Element]:
    """By the types of torch, which may be older than the youngest of them."""
    found = {getattr(_torch(), one.name.lower(), None): one for one in Element}
    return {dtype: one for dtype, one in found.items() if dtype is not None}


def element_of(dtype: Any) -> Element:
    """Find what kernels know of a data type; ValueError if they do not know it."""
    if dtype not in _elements():
        raise ValueError(f"dtype must be one of {', '.join(map(str, _elements()))}, not {dtype}")
    return _elements()[dtype]


def as_steps(min_num_steps: Any) -> int:
    """The number of tiles of a block, checked."""
    steps: int = as_int("min_num_steps", min_num_steps, 1, MOST_STEPS)
    return steps


def is_supported(capability: int) -> bool:
    """Whether there are kernels for a compute capability: 90 stands for 9.0."""
    return capability >= FIRST_CAPABILITY


def _seconds(timeout_s: Any) -> float:
    seconds: float = as_seconds("timeout_s", timeout_s)
    if seconds > LONGEST_S:
        raise ValueError(f"timeout_s must be at most {LONGEST_S:,}, which is 31 years, not {seconds}")
    return seconds


def host_limit_s(timeout_s: Any) -> float:
    """How long ranks wait for each other on the host. One that is wrong is refused when they have met."""
    with suppress(TypeError, ValueError):
        return max(HOST_S, _seconds(timeout_s))
    return HOST_S


@dataclass(frozen=True)
class Arguments:
    """What a handler is made with, as far as a rank can check it by itself. `agreed` are those that all ranks share."""

    info: ParallelInfo
    dtype: Any
    device: Any
    partition: Partition | None
    grid_size: int
    most_blocks: int
    block_sizes: tuple[int, int]
    fewest_steps: int
    enable_ibgda: bool
    should_init_nvshmem: bool
    transport: str
    use_autotune: bool
    timeout_s: float
    max_message_bytes: int | None
    symmetric_bytes: int
    programmatic_launch: bool
    stops: bool

    @property
    def element(self) -> Element:
        """What kernels know of the data type."""
        return element_of(self.dtype)

    def agreed(self) -> dict[str, object]:
        """By name, what must be the same on all ranks."""
        info = self.info
        return {
            "local_size": info.local_size,
            "local_tp_size": info.local_tp_size,
            "inter_tp_size": info.inter_tp_size,
            "dtype": str(self.dtype),
            "device type": self.device.type,
            "max_message_bytes": self.max_message_bytes,
            "symmetric_bytes": self.symmetric_bytes,
            "use_autotune": self.use_autotune,
            "should_init_nvshmem": self.should_init_nvshmem,
            "transport": self.transport,
            "on_fault": self.stops,
            "timeout_s": self.timeout_s,
        }

    @property
    def is_on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    @property
    def host_limit_s(self) -> float:
        return host_limit_s(self.timeout_s)


def checked(
    place: Sequence[int],
    grids: Sequence[int | None],
    dtype: Any,
    device: Any,
    grid_size: int | None,
    block_sizes: tuple[int, int | None],
    min_num_steps: int,
    max_message_bytes: int | None,
    symmetric_bytes: int,
    timeout_s: float,
    on_fault: str,
    partition: Partition | None,
    transport: str,
    **switches: bool,
) -> Arguments:
    """The arguments of a handler, each of the type and in the range that it has to be; TypeError or ValueError."""
    info = ParallelInfo.of(*place, *grids)
    element_of(dtype)
    device = _torch().device(device)
    if not info.valid_ops:
        raise ValueError("a world of one rank has nothing to communicate: world_size must be at least 2")
    timeout_s = _seconds(timeout_s)
    if on_fault not in ON_FAULT:
        raise ValueError(f"on_fault must be one of {', '.join(ON_FAULT)}, not {on_fault!r}")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
    switches = {name: as_bool(name, value) for name, value in switches.items()}
    most_blocks = 0
    if device.type == "cuda":
        if device.index is None:
            device = _torch().device("cuda", _torch().cuda.current_device())
        grid_size, most_blocks = _grid_size(Device(device.index), partition, grid_size)
    elif device.type != "cpu":
        raise ValueError(f"device must be a CUDA device or the CPU, not {device}")
    elif partition is not None or grid_size is not None:
        raise ValueError("a handler on the CPU has no partition and no grid: omit partition and grid_size")
    symmetric_bytes = as_int("symmetric_bytes", symmetric_bytes, 0, MOST_BYTES)
    if symmetric_bytes and device.type == "cpu":
        raise ValueError("a handler on the CPU has no symmetric memory: omit symmetric_bytes")
    if max_message_bytes is not None:
        max_message_bytes = as_int("max_message_bytes", max_message_bytes, ALIGNMENT * info.dp_size, MOST_BYTES)
    return Arguments(
        info=info,
        dtype=dtype,
        device=device,
        partition=partition,
        grid_size=grid_size or 0,
        most_blocks=most_blocks,
        block_sizes=checked_block_sizes(*block_sizes, info.world_size),
        fewest_steps=as_steps(min_num_steps),
        enable_ibgda=switches["ib_enable_ibgda"],
        should_init_nvshmem=switches["should_init_nvshmem"],
        transport=transport,
        use_autotune=switches["use_autotune"],
        timeout_s=timeout_s,
        max_message_bytes=max_message_bytes,
        symmetric_bytes=symmetric_bytes,
        programmatic_launch=switches["programmatic_launch"],
        stops=on_fault == "trap",
    )


def _grid_size(device: Device, partition: Partition | None, grid_size: int | None) -> tuple[int, int]:
    """Returns the number of blocks, and the largest possible one."""
    if partition is not None and partition.context.device != device:
        raise ValueError(f"the partition belongs to device {partition.context.device.device_id}, not to {device}")
    major, minor = device.compute_capability
    if not is_supported(major * 10 + minor):
        raise RuntimeError(f"compute capability {major}.{minor} is not supported: the kernels need 9.0 or newer")
    sms = min(device.sm_count if partition is None else partition.sm_count, MOST_BLOCKS)
    return as_int("grid_size", sms if grid_size is None else grid_size, 1, sms), sms
