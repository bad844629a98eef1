"""``cuda-gctx share``: run programs side by side, each in its partition."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import IO

import click

from cuda_gctx import Device, Layout
from cuda_gctx.cli._exit import CannotRun, Failure
from cuda_gctx.cli._options import LayoutCommand, open_driver
from cuda_gctx.cli._output import tell
from cuda_gctx.cli._programs import (
    ChosenDriver,
    chosen_driver,
    inherited_environment,
    part_environment,
    program_options,
    wants_proof,
)
from cuda_gctx.cli._requests import layout_of
from cuda_gctx.extending import Progress
from cuda_gctx.interpose import InterposeError
from cuda_gctx.interpose.mps_daemon import MEMORY_VARIABLE, mps_daemon, terminate_clients
from cuda_gctx.interpose.supervision import Program, Supervision, demand_command
from cuda_gctx.partitions import plan

SIMULATED = "simulated: each program has a GPU of its own, so no time here says what programs cost each other"
EXAMPLE = "cuda-gctx share control=16 -- python control.py : rest -- python train.py"


@dataclass(frozen=True)
class Request:
    """One program: the word for its partition, its limit of device memory, and its command."""

    word: str
    memory: str | None
    command: tuple[str, ...]


def _request_of(words: Sequence[str]) -> Request:
    if "--" not in words:
        raise click.UsageError(f"{' '.join(words) or 'a program'} has no --: write {EXAMPLE}")
    at = list(words).index("--")
    partition, command = words[:at], tuple(words[at + 1 :])
    memory = [word.partition("=")[2] for word in partition if word.startswith("mem=")]
    named = [word for word in partition if not word.startswith("mem=")]
    if len(named) != 1 or len(memory) > 1 or not command:
        raise click.UsageError(f"{' '.join(words)!r} is not one partition and its command: write {EXAMPLE}")
    if memory and not re.fullmatch(r"\d+[MG]", memory[0]):
        raise click.UsageError(f"mem={memory[0]} is not a size: write megabytes (mem=512M) or gigabytes (mem=8G)")
    return Request(named[0], memory[0] if memory else None, command)


def _requests(words: Sequence[str]) -> list[Request]:
    programs: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            programs.append([])
        else:
            programs[-1].append(word)
    if len(programs) < 2:
        raise click.UsageError(f"share runs two programs or more: write {EXAMPLE}; for one program, use run --as")
    return list(map(_request_of, programs))


def _relay(target: IO[bytes]) -> None:
    """Copy the terminal to the first program, which is in another process group and may not read the terminal."""

    def copy() -> None:
        try:
            while data := os.read(0, 65536):
                target.write(data)
                target.flush()
            target.close()
        except OSError:
            return

    threading.Thread(target=copy, daemon=True).start()


@click.command(cls=LayoutCommand, context_settings={"allow_interspersed_args": False})
@click.option("--until", metavar="NAME", help="When this program ends, end the others.")
@program_options
@click.option("--no-mps", "without_mps", is_flag=True, help="Start no daemon of MPS: the programs take turns.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PART -- COMMAND : PART -- COMMAND")
@click.pass_context
def share(
    ctx: click.Context,
    until: str | None,
    strict: bool,
    verify: bool | None,
    sm_count: str,
    without_mps: bool,
    words: tuple[str, ...],
) -> None:
    """Run programs side by side, each in its partition, unchanged.

    PART is a part of a layout: control=16, 0.25 or rest. A word mem=8G after it limits the device memory of device 0.
    Starts a daemon of MPS if none runs, and ends it with the programs. The first program has the standard input. If a
    program fails, the others end, and its status is that of the command.

    \b
    Examples:
      cuda-gctx share control=16 -- python control.py : \\
        rest -- python train.py
    """
    requests = _requests(words)
    layout = layout_of([request.word for request in requests])
    if until is not None and until not in layout.names:
        raise click.BadParameter(f"no program is named {until!r}: the names are {', '.join(layout.names)}")
    try:
        real = chosen_driver()
        supervision = Supervision(real.path, strict=strict, verify=wants_proof(verify, real))
        ctx.exit(_run(layout, requests, until, real, inherited_environment(sm_count, real), supervision, without_mps))
    except InterposeError as error:
        raise Failure(str(error)) from None


def _run(
    layout: Layout,
    requests: Sequence[Request],
    until: str | None,
    real: ChosenDriver,
    inherited: Mapping[str, str],
    supervision: Supervision,
    without_mps: bool,
) -> int:
    for request in requests:
        demand_command(request.command)
    part_environment(layout, layout.names[0], real, inherited)  # refuses before the daemon starts
    open_driver()
    planned = plan(Device(), layout)
    devices = [Device(number) for number in range(Device.count())]
    if devices[0].is_simulated:
        tell(f"cuda-gctx: {SIMULATED}")
    daemon = nullcontext(dict(inherited)) if without_mps else mps_daemon(inherited, devices)
    with ExitStack() as stack:
        with Progress(False if without_mps else None) as bar:
            bar.show(0, "starting the daemon of MPS")
            shared = stack.enter_context(daemon)
        stack.enter_context(supervision)
        for number, (name, request, part) in enumerate(zip(layout.names, requests, planned, strict=False)):
            environment = part_environment(layout, name, real, shared)
            if request.memory is not None:
                environment[MEMORY_VARIABLE] = f"0={request.memory}"
            tell(f"cuda-gctx: {name}, {part.sm_count} SMs: {' '.join(request.command)}")
            program = Program(name, request.command, environment)
            has_terminal = number == 0 and sys.stdin is not None and sys.stdin.isatty()
            stdin = subprocess.PIPE if has_terminal else subprocess.DEVNULL if number else None
            try:
                supervision.start(program, own_group=True, stdin=stdin)
            except OSError as error:
                supervision.end()
                raise CannotRun(f"cannot run {request.command[0]}: {error.strerror}") from None
            if has_terminal and program.process is not None and program.process.stdin is not None:
                _relay(program.process.stdin)
        status = supervision.wait(until, partial(terminate_clients, shared))
        tell(f"\n{supervision}")
    return status
