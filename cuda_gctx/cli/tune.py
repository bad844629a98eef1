"""``cuda-gctx tune``: measures how work runs together best."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from traceback import format_exception, walk_tb
from types import FrameType

import click

from cuda_gctx import Device
from cuda_gctx.cli._exit import Failure, Interrupted
from cuda_gctx.cli._options import OutputFile, device_option, json_option
from cuda_gctx.cli._output import console, on_what, write_file, write_json, writing
from cuda_gctx.cli._targets import work_named
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput, checked


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Has the standard output go to the standard error, also that of C libraries and of other programs."""
    if sys.stdout is None:  # nobody wants it
        yield
        return
    sys.stdout.flush()
    with ExitStack() as back:
        kept = fcntl(1, F_DUPFD_CLOEXEC, 10)  # not 2, which the caller may have closed
        back.callback(os.close, kept)
        back.callback(os.dup2, kept, 1)
        back.callback(ctypes.CDLL(None).fflush, None)  # what C's printf has kept
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
    """Notes each Ctrl-C, which arrives as KeyboardInterrupt all the same."""
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
    """Makes what the tuner refuses a message, and what the package refuses that it uses.

    What the work raised is shown with its traceback before that.
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
    """How many calls of each part are one mix: ``decode=8,prefill=1``."""
    if text is None:
        return None
    entries = [entry.partition("=") for entry in text.split(",")]
    try:
        mix = {name.strip(): int(number) for name, _, number in entries}
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no mix: write how often each part is called, like decode=8,prefill=1"
        ) from None
    if len(mix) < len(entries):
        raise click.BadParameter(f"{text!r} names a part twice")
    return mix


def _picture(ctx: click.Context, param: click.Parameter, file: Path | None) -> Path | None:
    """Refused now, not after a minute of measuring, if matplotlib is missing or would refuse it."""
    if file is None:
        return None
    if find_spec("matplotlib") is None:
        raise Failure('a picture needs matplotlib, which is not installed: pip install "cuda-gctx[plot]"')
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:].lower() not in known:
        raise click.BadParameter(f"{str(file)!r} is no picture by its ending: known are {', '.join(sorted(known))}")
    return file


def _objective(
    parts: Sequence[str], mix: dict[str, int] | None, tail: str | None, quantile: float | None, others: float | None
) -> Objective:
    if mix is not None and tail is not None:
        raise click.UsageError("--throughput and --tail-latency are two objectives: give one")
    limits = {name: value for name, value in (("quantile", quantile), ("others", others)) if value is not None}
    if limits and tail is None:
        raise click.UsageError(f"--{next(iter(limits))} belongs to --tail-latency")
    try:
        if mix is not None:
            return checked(Throughput(**mix), parts)
        if tail is not None:
            return checked(TailLatency(tail, **limits), parts)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return "makespan"


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="MODULE:FUNCTION...")
@click.option(
    "--throughput", metavar="MIX", callback=_mix, help="Tune for calls per second, so many of each: decode=8,prefill=1."
)
@click.option("--tail-latency", metavar="PART", help="Tune for the slow calls of this part beside the others.")
@click.option(
    "--quantile",
    type=click.FloatRange(0, 0.999, min_open=True),
    metavar="SHARE",
    help="The share of its calls that may be faster (0.99; at most 0.999).",
)
@click.option(
    "--others",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="What each other part has to achieve meanwhile, as a share of what it does alone.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to measure at most.",
)
@click.option("--out", type=OutputFile(), help="Write the report as JSON.")
@click.option("--plot", type=OutputFile(), callback=_picture, help="Write a picture of it.")
@json_option
@device_option
def tune(
    device: Device,
    as_json: bool,
    targets: tuple[str, ...],
    throughput: dict[str, int] | None,
    tail_latency: str | None,
    quantile: float | None,
    others: float | None,
    budget: float,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Measures how work runs together best.

    It may be in sequence, on plain or priority streams, or in partitions: all are measured, and the best is told.

    One FUNCTION is called without arguments and returns the work: a mapping of names to functions. Two or more are the
    work themselves. Work takes a cuda_gctx.Stream, enqueues on it, and does not wait.

    The objective is the time of all parts together, unless --throughput or --tail-latency names another. Ctrl-C ends
    with what was measured until then.
    """
    from cuda_gctx.tune import overlap

    # What the work prints must not come between the lines of the document.
    with _output_to_stderr() if as_json else nullcontext():
        work = work_named(targets)
        if reserved := work.keys() & signature(overlap).parameters.keys():
            raise Failure(f"{reserved.pop()!r} cannot be the name of a part: it is an argument of tune.overlap")
        objective = _objective(list(work), throughput, tail_latency, quantile, others)
        with _interrupts() as interrupts, _refusals():
            report = overlap(**work, device=device, objective=objective, budget_s=budget)
    # Each is done even if one before it fails: the measurement took its time. The last is done first.
    with ExitStack() as files:
        if plot is not None:
            files.callback(writing(plot)(report.plot), plot)
        if out is not None:
            files.callback(write_file, out, report.to_json() + "\n")
        if as_json:
            write_json("tune", {**on_what(device), "report": json.loads(report.to_json())})
        else:
            console().print(str(report), soft_wrap=True)
    if interrupts:
        raise Interrupted("interrupted: this is what was measured until then")
