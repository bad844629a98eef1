"""``cuda-gctx trace``: run a command, and report what ran in which partition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import BinaryIO

import click

from cuda_gctx.cli._exit import CannotRun, Failure
from cuda_gctx.cli._output import tell, write_json
from cuda_gctx.cli._programs import chosen_driver
from cuda_gctx.cli.sim import software_driver
from cuda_gctx.extending import Progress
from cuda_gctx.interpose import InterposeError
from cuda_gctx.interpose.supervision import FORWARDED
from cuda_gctx.tracing import INJECTION_VARIABLE, NoCUPTI, Recording, find_cupti, published


def _cupti() -> str:
    """The path of CUPTI; of the software driver's own one, if that is chosen."""
    try:
        if chosen_driver().machine is not None:
            return os.path.join(software_driver().library_folder(), "libcupti.so.13")
    except InterposeError:
        pass  # the program may bring a driver of its own
    try:
        return find_cupti()
    except NoCUPTI as error:
        raise Failure(str(error)) from None


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the program. A terminal sends its signals to the program itself."""

    def forward(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT:
            process.send_signal(number)

    former = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def _publishing(recording: Recording, where: str | None) -> Iterator[None]:
    """Publish the metrics of a recording while the program runs."""
    with ExitStack() as stack:
        if where is not None:
            try:
                place = stack.enter_context(published(where, recording.metrics().text))
            except OSError as error:
                raise Failure(f"cannot publish metrics at {where}: {error.strerror or error}") from None
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--metrics") from None
            tell(f"cuda-gctx: metrics at {place}")
        yield


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "--out", type=click.File("wb"), metavar="FILE", help="Write a trace for ui.perfetto.dev there.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--graphs",
    type=click.Choice(["nodes", "whole"]),
    default="nodes",
    help="Record each kernel of a graph, or each launch of a graph (default: nodes).",
)
@click.option(
    "--metrics",
    metavar="PORT|HOST:PORT|FILE",
    help="Publish metrics for Prometheus meanwhile: at a port of the loopback interface, at HOST:PORT, or in a file.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def trace(
    ctx: click.Context,
    out: BinaryIO | None,
    as_json: bool,
    graphs: str,
    metrics: str | None,
    program: tuple[str, ...],
) -> None:
    """Report what a command runs in which partition.

    The command is not changed; its children are traced too, also those of cuda-gctx run and cuda-gctx share. The report
    goes to the standard error, and with --json to the standard output. The exit status is that of the command.

    \b
    Examples:
      cuda-gctx trace -o trace.pftrace -- python loop.py
      cuda-gctx trace -- cuda-gctx share \\
        control=16 -- python control.py : \\
        rest -- python train.py
    """
    if other := os.environ.get(INJECTION_VARIABLE):
        raise Failure(f"another profiler is loaded into the programs ({INJECTION_VARIABLE}={other}): use one at a time")
    with Recording(_cupti(), graphs) as recording:
        sys.stdout.flush()
        with _publishing(recording, metrics):
            try:
                process = subprocess.Popen(program, env=recording.environment(os.environ))
            except OSError as error:
                raise CannotRun(f"cannot run {program[0]}: {error.strerror}") from None
            with _forwarding(process):
                code = process.wait()
        with Progress(None) as bar:
            found = recording.read(bar.show)
            bar.show(1, "summarizing")
            summary = found.summary()
            if out is not None:
                bar.show(1, f"writing {out.name}")
                found.perfetto(out)
    if as_json:
        write_json("trace", summary.to_dict())
    else:
        tell(f"\n{summary if found.processes else 'no process used CUDA'}")
    ctx.exit(code if code >= 0 else 128 - code)
