"""The driver and the environment of whole programs in partitions: ``cuda-gctx run --as`` and ``cuda-gctx share``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_gctx import Layout
from cuda_gctx.cli.sim import software_driver
from cuda_gctx.interop.mps import PERCENTAGE, mps_settings
from cuda_gctx.interpose import InterposeError, environment_of, installed_driver

# The machine that the software driver simulates in a program.
MACHINE = "CUDA_SOFTWARE_DRIVER_MACHINE"


@dataclass(frozen=True)
class ChosenDriver:
    """A driver library, and the machine that it simulates, if it is the software driver."""

    path: str
    machine: str | None = None


def chosen_driver() -> ChosenDriver:
    """The driver that CUDA_GCTX_DRIVER names, else the installed one."""
    choice = os.environ.get("CUDA_GCTX_DRIVER", "")
    if not choice:
        return ChosenDriver(installed_driver())
    if choice != "sim" and not choice.startswith("sim:"):
        if not os.path.exists(choice):
            raise InterposeError(f"the driver that CUDA_GCTX_DRIVER names does not exist: {choice}")
        return ChosenDriver(os.path.realpath(choice))
    return ChosenDriver(str(software_driver().library_path()), choice.partition(":")[2] or "h200")


def part_environment(layout: Layout, name: str, real: ChosenDriver, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program in a partition. Refuses a percentage of MPS, which overrides partitions."""
    settings = mps_settings()
    if settings.percentage is not None:
        raise InterposeError(
            f"{PERCENTAGE}={settings.percentage} overrides partitions: unset it, and name SMs in the layout instead"
        )
    environment = environment_of(layout, name, real.path, inherited)
    if real.machine is not None:
        environment[MACHINE] = real.machine
    return environment
