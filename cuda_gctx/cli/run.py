"""``cuda-gctx run``: run a command with a given layout of partitions, or in one of them."""

from __future__ import annotations

import os
import sys

import click

from cuda_gctx import Layout
from cuda_gctx.cli._exit import CannotRun, Failure
from cuda_gctx.cli._options import LayoutCommand
from cuda_gctx.cli._output import tell
from cuda_gctx.cli._programs import chosen_driver, inherited_environment, part_environment, program_options, wants_proof
from cuda_gctx.cli._requests import layout_of
from cuda_gctx.interop.mps import mps_settings
from cuda_gctx.interpose import InterposeError
from cuda_gctx.interpose.mps_daemon import demand_whole_percentage
from cuda_gctx.interpose.supervision import Program, Supervision, demand_command
from cuda_gctx.partitions import BACKGROUND, LAYOUT_VARIABLE

TURNS = (
    "no MPS daemon runs, so processes take turns on the GPU: the partition bounds the SMs of the program, not the time "
    "that it waits for other programs"
)


@click.command(cls=LayoutCommand, context_settings={"allow_interspersed_args": False})
@click.option("--layout", "text", metavar="LAYOUT", help="The partitions: control=16,rest")
@click.option("--as", "name", metavar="NAME", help="Run the command and its children in this partition, unchanged.")
@program_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def run(
    ctx: click.Context,
    text: str | None,
    name: str | None,
    strict: bool,
    verify: bool | None,
    sm_count: str,
    program: tuple[str, ...],
) -> None:
    """Run a command with a layout, or in one of its partitions.

    Without --as, sets CUDA_GCTX_LAYOUT, the layout that dev.partition() opens when it is called without arguments. With
    --as, the partition is the whole device for the command and its children. LAYOUT has the same form as for plan, as
    one word; it can also be JSON or the path of a file. An invalid layout is an error before the command starts. A
    layout that does not fit the device is an error when it is opened.

    \b
    Examples:
      cuda-gctx run --layout control=16,rest --as control \\
        -- python loop.py
      cuda-gctx run --layout control=16,rest -- python loop.py
    """
    if text is None:
        raise click.UsageError("no layout: cuda-gctx run --layout control=16,rest --as control -- COMMAND")
    try:
        layout = layout_of([text])
    except click.BadParameter as error:
        raise click.BadParameter(f"{text!r} is not a layout: {error.message}", param_hint="--layout") from None
    if name is not None:
        ctx.exit(_run_in_part(layout, name, strict, verify, sm_count, program))
    if strict or verify is not None or sm_count != "part":
        raise click.UsageError("--strict, --verify and --sm-count are about a program in a partition: add --as NAME")
    # The command may have another working directory.
    environment = {**os.environ, LAYOUT_VARIABLE: layout.to_json() if os.path.isfile(text) else text}
    sys.stdout.flush()
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise CannotRun(f"cannot run {program[0]}: {error.strerror}") from None


def _run_in_part(
    layout: Layout, name: str, strict: bool, verify: bool | None, sm_count: str, program: tuple[str, ...]
) -> int:
    if name not in (*layout.names, BACKGROUND):
        raise click.BadParameter(
            f"there is no partition {name!r}: the names are {', '.join(layout.names)}, and {BACKGROUND} for "
            "the SMs that remain",
            param_hint="--as",
        )
    try:
        demand_command(program)
        real = chosen_driver()
        inherited = inherited_environment(sm_count, real)
        environment = part_environment(layout, name, real, inherited)
        if mps_settings().daemon:
            demand_whole_percentage(inherited)
        else:
            tell(f"cuda-gctx: {TURNS}")
        with Supervision(real.path, strict=strict, verify=wants_proof(verify, real)) as supervision:
            try:
                supervision.start(Program(name, program, environment))
            except OSError as error:
                raise CannotRun(f"cannot run {program[0]}: {error.strerror}") from None
            status = supervision.wait()
            tell(f"\n{supervision}")
    except InterposeError as error:
        raise Failure(str(error)) from None
    return status
