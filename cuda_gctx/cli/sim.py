"""``cuda-gctx sim``: the commands of the software driver, as in ``python -m cuda_software_driver``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import complete_profile, complete_version
from cuda_gctx.cli._output import writing
from cuda_software_driver import __main__ as commands


@contextmanager
def _messages() -> Iterator[None]:
    """Turn the errors of a command into messages."""
    with writing():
        try:
            yield
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        except RuntimeError as error:
            raise Failure(str(error)) from None
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()


@click.group(help=commands.SUMMARY, short_help=commands.SUMMARY)
def sim() -> None:
    pass


def _listing(name: str, show: Callable[[bool], None]) -> None:
    """Add a command that prints something, as text or as JSON."""

    @sim.command(name, help=commands.COMMANDS[name])
    @click.option("--json", "as_json", is_flag=True, help=commands.OPTIONS["json"])
    def command(as_json: bool) -> None:
        with _messages():
            show(as_json)


_listing("profiles", commands.profiles)
_listing("explain", commands.explain)
_listing("path", commands.path)


@sim.command(help=commands.COMMANDS["run"], context_settings={"allow_interspersed_args": False})
@click.option("--gpu", default=commands.DEFAULT_CARD, shell_complete=complete_profile, help=commands.OPTIONS["gpu"])
@click.option("--driver", shell_complete=complete_version, help=commands.OPTIONS["driver"])
@click.option("--devices", type=int, default=1, help=commands.OPTIONS["devices"])
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def run(ctx: click.Context, gpu: str, driver: str | None, devices: int, program: tuple[str, ...]) -> None:
    with _messages():
        status = commands.run(gpu, driver, devices, program)
    ctx.exit(status)
