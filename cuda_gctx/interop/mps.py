"""The SMs that MPS or MIG grants to a process, and the settings of MPS that grant a layout to processes.

An MPS percentage limits how many SMs a process uses, not which ones. On cards with driver 13.0, kernels then got fewer
SMs than their partition reports, and GEMMs of cuBLAS were wrong: MPS lowers the SM count that cuBLAS reads
(docs/evidence/2026-11-28-green-contexts-and-libraries.md). A static partition of MPS (driver 13.1 and newer) is a set
of whole chunks of SMs, by NVIDIA's documentation; none was run on a card.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from cuda_gctx._core.extension import Device, SMResource, SMResourceOptions, SplitError, granted_context
from cuda_gctx.partitions import Layout, plan

__all__ = ["Grant", "MPSGrant", "MPSPlan", "MPSSettings", "granted", "mps_plan", "mps_settings"]

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
STATIC = "CUDA_MPS_SM_PARTITION"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
# The name of the server in the file of MPS v3.
SERVER = "partitions"


@dataclass(frozen=True)
class MPSSettings:
    """The settings for MPS in the environment of a process.

    folder: the folder for the pipe of a daemon. daemon: whether the pipe exists. percentage: the limit of the share of
    the SMs, as written, or None. partition: the static partition of the process, or None.
    """

    folder: str
    daemon: bool
    percentage: str | None
    partition: str | None


def _is_all(percentage: str) -> bool:
    try:
        return float(percentage) == 100
    except ValueError:
        return not percentage.strip()


def mps_settings() -> MPSSettings:
    """Read the environment of this process, and look for the pipe of a daemon."""
    folder = os.environ.get(PIPES, "/tmp/nvidia-mps")
    try:
        mode = (Path(folder) / "control").stat().st_mode
    except OSError:
        mode = 0
    # A pipe or a socket, by the version of MPS.
    daemon = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    percentage = os.environ.get(PERCENTAGE)
    if percentage is not None and _is_all(percentage):
        percentage = None
    return MPSSettings(folder, daemon, percentage, os.environ.get(STATIC) or None)


@dataclass(frozen=True)
class Grant:
    """The part of a device that a process was granted.

    by: "device" for all of it, "MIG slice", "MPS static partition", "MPS percentage", "primary context" or "current
    context". sm_count: the SMs that Device.partition() divides, as the driver reports them. split: the effect of a
    split there. refusal: the reason why partitions do not work there, or None.
    """

    by: str
    sm_count: int
    split: str
    refusal: str | None = None

    def demand(self) -> None:
        """Raise RuntimeError with the reason if partitions do not work in the granted part."""
        if self.refusal is not None:
            raise RuntimeError(self.refusal)


def is_mig_slice(device: Device) -> bool:
    """Return whether a device is a slice of a GPU. The driver puts "MIG" and the size of the slice into its name."""
    return "MIG" in device.name.split()


def granted(device: Device) -> Grant:
    """The part of a device that this process was granted, according to its environment and the driver; or this thread,
    by a context of other code that is current.

    device: the device.
    """
    context, mps = granted_context(device.device_id), mps_settings()
    count = (device if context is None else context).resources.sm.sm_count
    if mps.daemon and mps.percentage is not None:
        setting = f"{PERCENTAGE}={mps.percentage}"
        return Grant(
            "MPS percentage",
            count,
            "MPS limits the number of SMs after the split, so that a kernel gets fewer than its partition reports",
            f"{setting} overrides partitions: under MPS it limits the SMs of the process, whatever partition a kernel "
            "is in, and GEMMs of cuBLAS were wrong under it on an H200. Unset it, or set it to 100, and split",
        )
    if mps.daemon and mps.partition is not None:
        return Grant("MPS static partition", count, f"a split divides the SMs of {STATIC}={mps.partition}")
    if context is not None:
        by = "primary context" if context == device.context else "current context"
        return Grant(by, count, f"a split divides the SMs of the {by}, which other code limits to a part of the device")
    if is_mig_slice(device):
        return Grant("MIG slice", count, "a split divides the SMs of this slice")
    return Grant("device", count, "a split divides all SMs, which other processes may use at the same time under MPS")


@dataclass(frozen=True)
class MPSGrant:
    """The SMs of one process: as a percentage, rounded up, and as chunks of a static partition."""

    name: str
    sm_count: int
    percentage: float
    chunks: int
    include_remainder: bool


@dataclass(frozen=True)
class MPSPlan:
    """A layout whose partitions are processes: the MPS settings for it.

    chunk_sms: the SMs of a chunk, assumed to be the alignment of the device. The MPS server reports the actual number.
    """

    uuid: str
    chunk_sms: int
    processes: tuple[MPSGrant, ...]

    @property
    def percentages(self) -> dict[str, dict[str, str]]:
        """The environment of each process, for a daemon without static partitions, on any driver."""
        return {process.name: {PERCENTAGE: f"{process.percentage:g}"} for process in self.processes}

    @property
    def v2(self) -> tuple[str, ...]:
        """The commands for static partitions (driver 13.1 and newer), one partition for each process in its order.

        Each "sm_partition add" prints the partition that the process names in CUDA_MPS_SM_PARTITION.
        """
        return (
            "nvidia-cuda-mps-control -d -S",
            *(
                f'echo "sm_partition add {self.uuid} {process.chunks}" | nvidia-cuda-mps-control  # {process.name}'
                for process in self.processes
            ),
        )

    @property
    def v3(self) -> str:
        """The file of MPS v3, for ``nvidia-cuda-mps-control -d -p 3 -a FILE``."""
        lines = ['schema_version = "1.0"', "", f"[[servers.{SERVER}.devices]]", f'uuid = "{self.uuid}"']
        for process in self.processes:
            lines += [
                "",
                f"[[servers.{SERVER}.devices.sm_partitions]]",
                f'name = "{process.name}"',
                f"chunks = {process.chunks}",
                f"include_remainder = {str(process.include_remainder).lower()}",
            ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """All settings, for JSON."""
        return {
            "uuid": self.uuid,
            "chunk_sms": self.chunk_sms,
            "processes": [asdict(process) for process in self.processes],
            "percentages": self.percentages,
            "v2": list(self.v2),
            "v3": self.v3,
        }

    def to_json(self) -> str:
        """All settings as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        environments = [
            f"{name}: {setting}={value}"
            for name, environment in self.percentages.items()
            for setting, value in environment.items()
        ]
        return "\n".join(
            [
                "# percentages, any driver: how many SMs, not which ones; a",
                "# partition inside gets fewer SMs than it reports; warning:",
                "# with 75 and 88, fp16 GEMMs of cuBLAS were wrong on an H100",
                *environments,
                "",
                f"# static partitions in chunks of {self.chunk_sms} SMs, MPS v2, from driver",
                "# 13.1 on; each process gets what its line prints in",
                f"# {STATIC}",
                *self.v2,
                "",
                "# the same as a file for MPS v3:",
                "# nvidia-cuda-mps-control -d -p 3 -a FILE",
                self.v3,
            ]
        )


def _chunks(whole: SMResource, chunk: int) -> int:
    """Count the chunks of the device: the largest number of groups of that size that a split gives."""
    for number in range(whole.sm_count // chunk, 0, -1):
        try:
            whole.split(SMResourceOptions([chunk] * number), dry_run=True)
        except SplitError:
            continue
        return number
    return 0


def mps_plan(device: Device, layout: Layout) -> MPSPlan:
    """The MPS settings that give each partition of a layout its own process.

    device: the device. layout: the processes, by name. Raises SplitError if it does not fit the device, and ValueError
    if it needs more chunks than the device has.
    """
    whole = device.resources.sm
    chunk = whole.coscheduled_alignment
    available = _chunks(whole, chunk)
    parts = dict(zip(layout.names, plan(device, layout), strict=False))
    rest = next((name for name, spec in zip(layout.names, layout.specs, strict=True) if spec.sms is None), None)
    chunks = {name: ceil(part.sm_count / chunk) for name, part in parts.items() if name != rest}
    left = available - sum(chunks.values())
    if left < (rest is not None):
        raise ValueError(
            f"{layout} needs {sum(chunks.values()) + (rest is not None)} chunks of {chunk} SMs, but the device has "
            f"{available}: request fewer SMs"
        )
    if rest is not None:
        chunks[rest] = left
    return MPSPlan(
        device.uuid,
        chunk,
        tuple(
            MPSGrant(name, part.sm_count, ceil(1000 * part.sm_count / whole.sm_count) / 10, chunks[name], name == rest)
            for name, part in parts.items()
        ),
    )
