"""``cuda-gctx run``: run a command with a given layout of partitions."""

from __future__ import annotations

import os
import sys

import click

from cuda_gctx.cli._exit import CannotRun
from cuda_gctx.cli._options import LayoutCommand
from cuda_gctx.cli._requests import layout_of
from cuda_gctx.interop.at_start import HOOK, PARTITION_VARIABLE
from cuda_gctx.partitions import BACKGROUND, LAYOUT_VARIABLE


@click.command(cls=LayoutCommand, context_settings={"allow_interspersed_args": False})
@click.option("--layout", "text", required=True, metavar="LAYOUT", help="The partitions: decode=16,prefill=rest")
@click.option(
    "--as", "name", metavar="NAME", help="Run the torch work of the command's main threads in this partition."
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run(text: str, name: str | None, program: tuple[str, ...]) -> None:
    """Run a command with a given layout of partitions.

    Sets CUDA_GCTX_LAYOUT, the layout that dev.partition() opens when it is called without arguments. LAYOUT has the
    same form as for plan, as one word; it can also be JSON or the path of a file. An invalid layout is an error before
    the command starts. A layout that does not fit the device is an error when it is opened.
    """
    try:
        layout = layout_of([text])
    except click.BadParameter as error:
        raise click.BadParameter(f"{text!r} is not a layout: {error.message}", param_hint="--layout") from None
    # The command may have another working directory.
    environment = {**os.environ, LAYOUT_VARIABLE: layout.to_json() if os.path.isfile(text) else text}
    if name is not None:
        if name not in (*layout.names, BACKGROUND):
            raise click.BadParameter(
                f"there is no partition {name!r}: the names are {', '.join(layout.names)}, and {BACKGROUND} for "
                "the SMs that remain",
                param_hint="--as",
            )
        environment[PARTITION_VARIABLE] = name
        inherited = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = HOOK + (os.pathsep + inherited if inherited else "")
    sys.stdout.flush()
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise CannotRun(f"cannot run {program[0]}: {error.strerror}") from None
