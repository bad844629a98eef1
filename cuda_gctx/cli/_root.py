"""The command ``cuda-gctx`` itself: it imports each of its commands at first use, and turns errors into messages."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from cuda_gctx import __version__
from cuda_gctx.cli._exit import Failure, Interrupted, NoDevice
from cuda_gctx.cli._output import has_written_json, write_json, writing

# The modules of the commands, each of which defines the command of its name.
COMMANDS = ("run", "share", "trace", "tune", "plan", "verify", "info", "doctor", "demo", "sizes", "mps", "sim")

WORDS = "cuda_gctx.cli.words"


def _failure(error: Exception) -> Failure | None:
    """The message for an error of the package; None if the error is a bug."""
    from cuda_gctx import CUDAError, DriverNotFound, IsolationError, ResourceOverlapError, SplitError

    if isinstance(error, DriverNotFound) or (isinstance(error, CUDAError) and error.name == "CUDA_ERROR_NO_DEVICE"):
        return NoDevice(str(error))
    if isinstance(error, (CUDAError, IsolationError, ResourceOverlapError, SplitError)):
        return Failure(str(error))
    return None


def _json_command(command: click.Command, words: Sequence[str]) -> str | None:
    """Names the command that the words call with ``--json``, also where they are wrong. None without ``--json``."""
    path: list[str] = []
    rest = list(words)
    while True:
        with click.Context(command, resilient_parsing=True, ignore_unknown_options=True) as context:
            interspersed = command.context_settings.get("allow_interspersed_args", command.allow_interspersed_args)
            context.allow_interspersed_args = interspersed
            options, rest, _ = command.make_parser(context).parse_args(rest)
            if not isinstance(command, click.Group):
                return " ".join(path) if options.get("as_json") else None
            if not rest:
                return None
            path.append(rest.pop(0))
            try:
                found = command.get_command(context, path[-1])
            except click.ClickException:  # the software driver has the options of its commands, and is not installed
                return " ".join(path) if "--json" in rest else None
        if found is None:
            return None
        command = found


@contextmanager
def _readable(group: click.Group, words: Sequence[str]) -> Iterator[None]:
    """Write errors as JSON where the words ask for it, and wrap their messages at the width of a terminal."""
    try:
        with writing():
            yield
    except KeyboardInterrupt:
        raise _written(Interrupted("interrupted"), group, words) from None
    except click.ClickException as error:
        message = _written(error, group, words).format_message()
        # Several lines are a help text, which has its layout.
        if "\n" not in message and sys.stderr is not None and sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            text = textwrap.fill(f"Error: {message}", width, break_long_words=False)
            # click puts "Error: " in front.
            error.format_message = lambda: text.removeprefix("Error: ")  # type: ignore[method-assign]
        raise


def _written(error: click.ClickException, group: click.Group, words: Sequence[str]) -> click.ClickException:
    """Writes the document of an error, if the words ask for one and none is written."""
    with suppress(KeyboardInterrupt):  # a second Ctrl-C: the message stays
        if not has_written_json() and (command := _json_command(group, words)) is not None:
            write_json(command, {"error": {"message": error.format_message(), "status": error.exit_code}})
    return error


class Commands(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"cuda_gctx.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(COMMANDS)}"
            ctx.fail(f"No such command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        words = tuple(args)  # the parser consumes them
        with _readable(self, words):
            context = super().make_context(info_name, args, *rest, **extra)
        context.meta[WORDS] = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _readable(self, ctx.meta[WORDS]):
            try:
                return super().invoke(ctx)
            except (click.exceptions.Exit, click.ClickException, OSError):
                raise
            except Exception as error:
                failure = _failure(error)
                if failure is None:
                    raise
                raise failure from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def root() -> None:
    """Partition the SMs of a GPU, verify where work runs, and measure the benefit.

    Exit status: 0 success; 1 failure or a negative answer; 2 wrong usage; 3 no driver or device; 130 interrupted.
    """
