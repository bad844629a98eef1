"""Options that commands share: JSON, which device, and on which driver."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from cuda_gctx import Device, system
from cuda_gctx.cli._exit import NoDevice

# Those that the software driver knows.
DRIVERS = (*(f"12.{minor}" for minor in range(3, 10)), *(f"13.{minor}" for minor in range(6)))

Callback = Callable[..., None]


def profiles() -> dict[str, str]:
    """The cards that can be simulated, by the word for each."""
    from cuda_gctx.sim._session import library

    return {card["key"]: card["name"] for card in library().tell("Profiles")}


def _known_profile(ctx: click.Context, param: click.Parameter, word: str | None) -> str | None:
    if word is not None and word not in (known := profiles()):
        raise click.BadParameter(f"{word!r} is no card that can be simulated: known are {', '.join(known)}")
    return word


def _complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(key, help=name) for key, name in profiles().items() if key.startswith(incomplete)]


class OutputFile(click.Path):
    """A file to write when the work is done; a folder that is not there is refused before it begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.parent, os.W_OK):
            self.fail(
                f"{str(path)!r} cannot be written: {str(path.parent)!r} is no folder that can be written to", param, ctx
            )
        return path


def json_option(command: Callback) -> Callback:
    """Adds ``--json``, which the command gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")(command)


def _chosen(profile: str | None, version: str | None) -> AbstractContextManager[object]:
    """The driver that is asked for, for the length of a block."""
    if profile is None:
        if version is not None:
            raise click.UsageError("--driver is the driver of a simulated card: name the card too, with --profile")
        return nullcontext()
    from cuda_gctx.sim import session

    return session(profile, driver=version, check=False)


def open_driver() -> None:
    try:
        system.driver_version  # noqa: B018  opens it
    except ValueError as error:  # CUDA_GCTX_DRIVER describes no machine
        raise click.UsageError(str(error)) from None


def on_driver(command: Callback) -> Callback:
    """Adds ``--profile`` and ``--driver``, and runs the command on the driver that they choose; adds ``--json``."""

    @click.option(
        "--profile",
        metavar="CARD",
        callback=_known_profile,
        shell_complete=_complete_profile,
        help="Answer for this simulated card, without a GPU (cuda-gctx sim profiles lists them).",
    )
    @click.option(
        "--driver",
        "version",
        type=click.Choice(DRIVERS),
        metavar="VERSION",
        help="The driver of the simulated card, by its CUDA version (default: 13.0).",
    )
    @json_option
    @functools.wraps(command)
    def run(*, profile: str | None, version: str | None, **options: Any) -> None:
        with _chosen(profile, version):
            open_driver()
            command(**options)

    return run


def device_option(command: Callback) -> Callback:
    """Adds ``--device N``, which the command gets as the Device `device`."""

    @click.option("--device", "number", type=click.IntRange(min=0), default=0, metavar="N", help="Which device (0).")
    @functools.wraps(command)
    def run(*, number: int, **options: Any) -> None:
        open_driver()
        try:
            device = Device(number)
        except ValueError as error:
            raise NoDevice(str(error)) from None
        command(device=device, **options)

    return run


def on_device(command: Callback) -> Callback:
    """Both: a device of the driver that is chosen."""
    return on_driver(device_option(command))
