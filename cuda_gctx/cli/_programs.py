"""The driver and the environment of whole programs in partitions: ``cuda-gctx run --as`` and ``cuda-gctx share``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from cuda_gctx import Layout
from cuda_gctx.cli.sim import software_driver
from cuda_gctx.interop.mps import PERCENTAGE, mps_settings
from cuda_gctx.interpose import InterposeError, environment_of, installed_driver, is_tried

# The machine that the software driver simulates in a program.
MACHINE = "CUDA_SOFTWARE_DRIVER_MACHINE"
SM_COUNT_VARIABLE = "CUDA_GCTX_SM_COUNT"


@dataclass(frozen=True)
class ChosenDriver:
    """A driver library; for the software driver, the machine that it simulates and the folder of its programs."""

    path: str
    machine: str | None = None
    programs: str | None = None


def chosen_driver() -> ChosenDriver:
    """The driver that CUDA_GCTX_DRIVER names, else the installed one."""
    choice = os.environ.get("CUDA_GCTX_DRIVER", "")
    if not choice:
        return ChosenDriver(installed_driver())
    if choice != "sim" and not choice.startswith("sim:"):
        if not os.path.exists(choice):
            raise InterposeError(f"the driver that CUDA_GCTX_DRIVER names does not exist: {choice}")
        return ChosenDriver(os.path.realpath(choice))
    simulator = software_driver()
    return ChosenDriver(simulator.library_path(), choice.partition(":")[2] or "h200", simulator.programs_folder())


def program_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--strict``, ``--verify`` and ``--sm-count``; the command receives them by name."""
    strict = click.option("--strict", is_flag=True, help="Fail if work leaves its partition.")
    verify = click.option(
        "--verify/--no-verify",
        default=None,
        help="Run a kernel in each stream to prove where its work runs (default: with drivers that were not tried).",
    )
    sm_count = click.option(
        "--sm-count",
        type=click.Choice(["part", "card"]),
        default="part",
        help="The SM count that programs read: 'card' where cuBLAS is linked statically (default: part).",
    )
    return strict(verify(sm_count(command)))


def inherited_environment(sm_count: str, real: ChosenDriver) -> dict[str, str]:
    """The environment of this command, with the choice of ``--sm-count`` and the programs of the driver."""
    environment = {key: value for key, value in os.environ.items() if key != SM_COUNT_VARIABLE}
    if real.programs is not None:
        environment["PATH"] = os.pathsep.join([real.programs, environment.get("PATH", os.defpath)])
    return environment if sm_count == "part" else {**environment, SM_COUNT_VARIABLE: sm_count}


def wants_proof(verify: bool | None, real: ChosenDriver) -> bool:
    """The value of ``--verify``, or whether the driver was not tried on a card."""
    return verify if verify is not None else real.machine is None and not is_tried(real.path)


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
