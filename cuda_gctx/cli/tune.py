"""``cuda-gctx tune``: find the fastest way to run several pieces of work concurrently."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from fcntl import F_DUPFD_CLOEXEC, fcntl
from inspect import signature
from pathlib import Path
from traceback import format_exception, walk_tb
from types import FrameType
from typing import Any

import click

from cuda_gctx import Device
from cuda_gctx.cli._exit import Failure, Interrupted
from cuda_gctx.cli._options import OutputFile, on_device
from cuda_gctx.cli._output import on_what, show_report, write_file, write_json
from cuda_gctx.cli._targets import work_named
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput, checked


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Redirect the standard output to the standard error, including that of C libraries and child processes."""
    if sys.stdout is None:  # closed by the caller
        yield
        return
    sys.stdout.flush()
    with ExitStack() as back:
        kept = fcntl(1, F_DUPFD_CLOEXEC, 10)  # not 2, which the caller may have closed
        back.callback(os.close, kept)
        back.callback(os.dup2, kept, 1)
        back.callback(ctypes.CDLL(None).fflush, None)  # what C's printf has buffered
        back.callback(sys.stdout.flush)
        if sys.stderr is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            back.callback(os.close, nowhere)
            os.dup2(nowhere, 1)
        else:
            os.dup2(2, 1)
        yield


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Record each Ctrl-C, and still raise KeyboardInterrupt."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn errors of the tuner and of the package into messages.

    For an exception of the work, print its traceback first.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("cuda_gctx."):
            raise
        if error.__cause__ is not None:
            click.echo("".join(format_exception(error.__cause__)), err=True)
        raise Failure(str(error)) from None


def _mix(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, int] | None:
    """The calls of each part in a mix: ``control=8,bulk=1``."""
    if text is None:
        return None
    entries = [entry.partition("=") for entry in text.split(",")]
    try:
        mix = {name.strip(): int(number) for name, _, number in entries}
    except ValueError:
        raise click.BadParameter(
            f"invalid mix {text!r}: write the number of calls of each part, like control=8,bulk=1"
        ) from None
    if len(mix) < len(entries):
        raise click.BadParameter(f"{text!r} names a part twice")
    return mix


def _objective(
    parts: Sequence[str], mix: dict[str, int] | None, tail: str | None, **limits: float | bool | None
) -> Objective:
    if mix is not None and tail is not None:
        raise click.UsageError("--throughput and --tail-latency are mutually exclusive")
    given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None and value is not False}
    if given and tail is None:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} needs --tail-latency")
    try:
        if mix is not None:
            return checked(Throughput(**mix), parts)
        if tail is not None:
            return checked(TailLatency(tail, **given), parts)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return "makespan"


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="MODULE:FUNCTION...")
@click.option(
    "--throughput",
    metavar="MIX",
    callback=_mix,
    help="Maximize the throughput of a mix of calls, such as control=8,bulk=1.",
)
@click.option("--tail-latency", metavar="PART", help="Minimize the tail latency of this part.")
@click.option(
    "--quantile",
    type=click.FloatRange(0, 0.999, min_open=True),
    metavar="SHARE",
    help="Use this quantile of the latency (default: 0.99; at most 0.999).",
)
@click.option(
    "--others",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Require each other part to keep this share of its rate alone.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="CALLS",
    help="Simulate arrivals at this rate, in calls per second (default: half of what the part can take alone).",
)
@click.option("--closed-loop", is_flag=True, help="Start each call when the previous one has completed.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Measure for at most this long.",
)
@click.option("--out", type=OutputFile(), help="Write the report as JSON to this file.")
@click.option("--svg", type=OutputFile(), help="Write the results as an SVG picture.")
@click.option("--html", type=OutputFile(), help="Write the picture as an HTML page.")
@on_device
def tune(
    device: Device,
    as_json: bool,
    targets: tuple[str, ...],
    throughput: dict[str, int] | None,
    tail_latency: str | None,
    quantile: float | None,
    others: float | None,
    rate: float | None,
    closed_loop: bool,
    budget: float,
    out: Path | None,
    svg: Path | None,
    html: Path | None,
) -> None:
    """Find the fastest way to run workloads concurrently.

    Measures them in sequence, on plain and priority streams, and in partitions, and reports the fastest way.

    A single FUNCTION is called without arguments and returns the parts: a mapping of names to functions. Several
    FUNCTIONs are the parts themselves. A part is called with a cuda_gctx.Stream, enqueues work on it, and returns.

    The objective is the time of all parts together, unless --throughput or --tail-latency selects another. Ctrl-C ends
    the measurement and reports the results so far.

    Where the evidence does not decide, the answer is "undecided", "choice" is null in the JSON document, and the exit
    code is 0.

    \b
    Examples:
      cuda-gctx tune my_module:control my_module:bulk \\
        --budget 4
      cuda-gctx tune my_module:work --tail-latency control \\
        --budget 4
    """
    from cuda_gctx.tune import overlap

    # Output of the work must not mix with the document.
    with _output_to_stderr() if as_json else nullcontext():
        work = work_named(targets)
        if reserved := work.keys() & signature(overlap).parameters.keys():
            raise Failure(f"{reserved.pop()!r} cannot be the name of a part, because it is an argument of tune.overlap")
        limits = {"quantile": quantile, "others": others, "rate": rate, "closed_loop": closed_loop}
        objective = _objective(list(work), throughput, tail_latency, **limits)
        with _interrupts() as interrupts, _refusals():
            report = overlap(**work, device=device, objective=objective, budget_s=budget)
    # Each output is written even if another one fails, because the measurement took long. The last one comes first.
    with ExitStack() as files:
        if html is not None:
            files.callback(write_file, html, report.html())
        if svg is not None:
            files.callback(write_file, svg, report.svg())
        if out is not None:
            files.callback(write_file, out, report.to_json() + "\n")
        if as_json:
            write_json("tune", {**on_what(device), "report": json.loads(report.to_json())})
        else:
            show_report(str(report))
    if interrupts:
        raise Interrupted("interrupted: these are the results so far")
