"""The software driver on the command line: ``cuda-gctx sim``, and simulated cards as the driver of other commands.

The software driver is a package of its own. This file alone imports it, at first use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click
from click.shell_completion import CompletionItem

from cuda_gctx.cli._exit import Failure, NoDevice
from cuda_gctx.cli._output import writing

PACKAGE = "cuda_software_driver"
COMMAND = "pip install ./software_driver"


def is_installed() -> bool:
    """Tells whether the software driver can be imported."""
    return find_spec(PACKAGE) is not None


def software_driver(module: str = PACKAGE) -> Any:
    """A module of the software driver. Raises NoDevice, with the command that installs it, if it is not installed."""
    if not is_installed():
        raise NoDevice(f"this needs the software driver, which is not installed: run {COMMAND} in a clone of cuda_gctx")
    return import_module(module)


def cards() -> dict[str, str]:
    """The names of the cards that can be simulated, by their keys."""
    return {card["key"]: card["name"] for card in software_driver().cards()}


def driver_versions() -> list[str]:
    """The driver versions that can be simulated."""
    versions: list[str] = software_driver().driver_versions()
    return versions


@contextmanager
def simulated(card: str, version: str | None) -> Iterator[None]:
    """Use a simulated card as the driver of this process within a block."""
    with software_driver().session(card, driver=version, check=False):
        yield


def complete_version(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(version) for version in driver_versions() if version.startswith(incomplete)]


def complete_card(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(key, help=name) for key, name in cards().items() if key.startswith(incomplete)]


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


def _with_examples(summary: str, *commands: str) -> str:
    """The help of a command, with examples that click does not wrap."""
    return "\n".join((summary, "", "\b", "Examples:", *(f"  {command}" for command in commands)))


class Commands(click.Group):
    """The commands of the software driver, which names them and their options itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._module().COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = self._module()
        if cmd_name not in module.COMMANDS:
            return None
        return self._run(module) if cmd_name == "run" else self._listing(module, cmd_name)

    @staticmethod
    def _module() -> Any:
        return software_driver(f"{PACKAGE}.__main__")

    @staticmethod
    def _listing(module: Any, name: str) -> click.Command:
        """A command that prints something, as text or as JSON."""

        @click.command(name, help=_with_examples(module.COMMANDS[name], f"cuda-gctx sim {name}"))
        @click.option("--json", "as_json", is_flag=True, help=module.OPTIONS["json"])
        def command(as_json: bool) -> None:
            with _messages():
                getattr(module, name)(as_json)

        return command

    @staticmethod
    def _run(module: Any) -> click.Command:
        summary = _with_examples(module.COMMANDS["run"], "cuda-gctx sim run --gpu b200 -- python loop.py")

        @click.command("run", help=summary, context_settings={"allow_interspersed_args": False})
        @click.option("--gpu", default=module.DEFAULT_CARD, shell_complete=complete_card, help=module.OPTIONS["gpu"])
        @click.option("--driver", shell_complete=complete_version, help=module.OPTIONS["driver"])
        @click.option("--devices", type=int, default=1, help=module.OPTIONS["devices"])
        @click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
        @click.pass_context
        def run(ctx: click.Context, gpu: str, driver: str | None, devices: int, program: tuple[str, ...]) -> None:
            with _messages():
                status = module.run(gpu, driver, devices, program)
            ctx.exit(status)

        return run


@click.group(cls=Commands)
def sim() -> None:
    """Run CUDA programs on a simulated GPU."""
