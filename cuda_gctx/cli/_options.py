"""Options that commands share: JSON output, the device, and the driver."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from cuda_gctx import Device, system
from cuda_gctx.cli._exit import NoDevice
from cuda_gctx.cli.sim import cards, complete_card, complete_version, driver_versions, simulated

Callback = Callable[..., None]


def _known_profile(ctx: click.Context, param: click.Parameter, word: str | None) -> str | None:
    if word is not None and word not in (known := cards()):
        raise click.BadParameter(f"unknown card {word!r}: choose from {', '.join(known)}")
    return word


def _known_version(ctx: click.Context, param: click.Parameter, word: str | None) -> str | None:
    if word is not None and word not in (known := driver_versions()):
        raise click.BadParameter(f"unknown driver version {word!r}: choose from {', '.join(known)}")
    return word


class OutputFile(click.Path):
    """A file that a command writes after the work. An unusable directory is an error before the work begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.parent, os.W_OK):
            self.fail(
                f"cannot write {str(path)!r}: directory {str(path.parent)!r} does not exist or is not writable",
                param,
                ctx,
            )
        return path


def json_option(command: Callback) -> Callback:
    """Add ``--json``; the command receives it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(command)


def open_driver() -> None:
    try:
        system.driver_version  # noqa: B018  opens it
    except ValueError as error:  # CUDA_GCTX_DRIVER does not describe a machine
        raise click.UsageError(str(error)) from None


def driver_options(command: Callback) -> Callback:
    """Add ``--profile``, ``--driver`` and ``--json``; the command receives the first two as `profile` and `version`."""

    @click.option(
        "--profile",
        metavar="CARD",
        callback=_known_profile,
        shell_complete=complete_card,
        help="Use this simulated card, without a GPU (cuda-gctx sim profiles lists them).",
    )
    @click.option(
        "--driver",
        "version",
        metavar="VERSION",
        callback=_known_version,
        shell_complete=complete_version,
        help="Simulate this CUDA driver version (default: 13.0).",
    )
    @json_option
    @functools.wraps(command)
    def run(*, profile: str | None, version: str | None, **options: Any) -> None:
        if profile is None and version is not None:
            raise click.UsageError("--driver selects the driver of a simulated card: add --profile CARD")
        command(profile=profile, version=version, **options)

    return run


def on_driver(command: Callback) -> Callback:
    """Add ``--profile``, ``--driver`` and ``--json``, and run the command on the driver that they select."""

    @functools.wraps(command)
    def run(*, profile: str | None, version: str | None, **options: Any) -> None:
        with nullcontext() if profile is None else simulated(profile, version):
            open_driver()
            command(**options)

    return driver_options(run)


def device_number(command: Callback) -> Callback:
    """Add ``--device N``; the command receives it as `number`, or None without it."""
    return click.option(
        "--device", "number", type=click.IntRange(min=0), metavar="N", help="Use this device (default: 0)."
    )(command)


def device_of(number: int | None) -> Device:
    """The device with a number."""
    try:
        return Device(number or 0)
    except ValueError as error:
        raise NoDevice(str(error)) from None


def device_option(command: Callback) -> Callback:
    """Add ``--device N``; the command receives the Device as `device`."""

    @functools.wraps(command)
    def run(*, number: int | None, **options: Any) -> None:
        open_driver()
        command(device=device_of(number), **options)

    return device_number(run)


def on_device(command: Callback) -> Callback:
    """Add both: a device of the selected driver."""
    return on_driver(device_option(command))


class LayoutCommand(click.Command):
    """A command that takes a layout: a negative number is reported as a wrong request, not as an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)  # the parser consumes them
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not re.fullmatch(r"-\d", error.option_name):
                raise
            word = next(word for word in words if word.startswith(error.option_name))
            raise click.BadParameter(
                f"{word} is negative: a partition has a positive number of SMs (16) or fraction (0.25)", ctx
            ) from None
