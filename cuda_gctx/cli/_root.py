"""The command ``cuda-gctx`` itself: its commands, each imported when it is used, and how errors end it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from cuda_gctx import __version__
from cuda_gctx.cli._exit import Failure, Interrupted, NoDevice

# The modules of the commands, each of which defines the command of its name.
COMMANDS = ("info", "sizes", "plan", "verify", "demo", "bench", "tune", "doctor", "sim")


def _failure(error: Exception) -> Failure | None:
    """What an error of the package means to somebody at a terminal; None if it is no answer, but a mistake here."""
    from cuda_gctx import CUDAError, DriverNotFound, IsolationError, ResourceOverlapError, SplitError

    if isinstance(error, DriverNotFound) or (isinstance(error, CUDAError) and error.name == "CUDA_ERROR_NO_DEVICE"):
        return NoDevice(str(error))
    if isinstance(error, (CUDAError, IsolationError, ResourceOverlapError, SplitError)):
        return Failure(str(error))
    return None


class Commands(click.Group):
    """A group whose commands are imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"cuda_gctx.cli.{cmd_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except Exception as error:
            failure = _failure(error)
            if failure is None:
                raise
            raise failure from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def root() -> None:
    """Splits the SMs of a GPU, proves who has which, and measures whether that pays.

    Exit status: 0 done; 1 the answer is no, or it failed; 2 wrong usage; 3 no driver or device; 130 interrupted.
    """
