"""The software driver from the command line: where it is, running a program on it, what it models."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from cuda_gctx.sim._library import library_folder, library_path
from cuda_gctx.sim._session import library, make_spec


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cuda_gctx.sim", description="The software driver: CUDA programs on a simulated GPU."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("path", help="print the folder that holds the simulated libcuda.so.1")
    run = commands.add_parser("run", help="run a command on a simulated machine")
    run.add_argument("--gpu", default="h200", help="the card (see: profiles)")
    run.add_argument("--driver", default=None, help="the driver's CUDA version, like 13.1 (default: 13.0)")
    run.add_argument("--devices", type=int, default=1, help="how many cards")
    run.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command and its arguments"
    )
    commands.add_parser("explain", help="list the modelled behaviours and where each is known from")
    commands.add_parser("profiles", help="list the cards that can be simulated")
    return parser


def _run(gpu: str, driver: str | None, devices: int, program: Sequence[str]) -> int:
    command = list(program[1:] if program[:1] == ["--"] else program)
    if not command:
        print("nothing to run: give the command after --", file=sys.stderr)
        return 2
    spec = make_spec(gpu, driver, devices)
    # Refused here, with the reason, rather than by the program that is to run.
    library().configure(spec)
    environment = dict(os.environ)
    environment["CUDA_GCTX_SIM"] = spec
    environment["CUDA_GCTX_DRIVER"] = f"sim:{spec}"
    inherited = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = library_folder() + (os.pathsep + inherited if inherited else "")
    print(f"running on a simulated machine: {spec}", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _explain() -> None:
    print("What the software driver (simulated) does, for which drivers, and where it is known from:")
    print("(recorded: on a real card with driver 13.0, and taken to hold for the other drivers that are named)")
    for entry in library().tell("Explain"):
        print(f"[{entry['known']:>10}] {entry['subject']} ({entry['drivers']}): {entry['behaviour']}")


def _profiles() -> None:
    header = ("card", "name", "compute", "SMs", "minimum", "alignment", "layout")
    rows: list[tuple[Any, ...]] = [header]
    for card in library().tell("Profiles"):
        rows.append(
            (
                card["key"],
                card["name"],
                card["compute_capability"],
                card["sm_count"],
                card["min_partition"],
                card["alignment"],
                card["layout"],
            )
        )
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(header))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "path":
            if not os.path.exists(library_path()):
                raise RuntimeError(f"the software driver is not installed: {library_path()} is missing")
            print(library_folder())
        elif options.command == "run":
            return _run(options.gpu, options.driver, options.devices, options.program)
        elif options.command == "explain":
            _explain()
        else:
            _profiles()
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
