"""The software driver from the command line: where it is, running a program on it, what it models.

``python -m cuda_gctx.sim`` and ``cuda-gctx sim`` both come here; the former needs no other package.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from cuda_gctx.draw.table import table
from cuda_gctx.sim._library import library_folder, library_path
from cuda_gctx.sim._session import library, make_spec

COMMANDS = {
    "profiles": "list the cards that can be simulated",
    "explain": "list the modelled behaviours and where each is known from",
    "path": "print the folder that holds the simulated libcuda.so.1",
    "run": "run a command on a simulated machine",
}


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description="The software driver: CUDA programs on a simulated GPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for name in ("profiles", "explain", "path"):
        made[name].add_argument("--json", action="store_true", help="print one JSON document, and nothing else")
    run = made["run"]
    run.add_argument("--gpu", default="h200", help="the card (see: profiles)")
    run.add_argument("--driver", default=None, help="the driver's CUDA version, like 13.1 (default: 13.0)")
    run.add_argument("--devices", type=int, default=1, help="how many cards")
    run.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command and its arguments"
    )
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


def _explain(as_json: bool) -> None:
    behaviours = library().tell("Explain")
    if as_json:
        print(json.dumps({"simulated": True, "behaviours": behaviours}, indent=2))
        return
    print("What the software driver (simulated) does, for which drivers, and where it is known from:")
    print("(recorded: on a real card with driver 13.0, and taken to hold for the other drivers that are named)")
    for entry in behaviours:
        print(f"[{entry['known']:>10}] {entry['subject']} ({entry['drivers']}): {entry['behaviour']}")


def _profiles(as_json: bool) -> None:
    cards = library().tell("Profiles")
    if as_json:
        print(json.dumps({"simulated": True, "profiles": cards}, indent=2))
        return
    header = ("card", "name", "compute", "SMs", "minimum", "alignment", "layout")
    fields = ("key", "name", "compute_capability", "sm_count", "min_partition", "alignment", "layout")
    print(table(header, ([card[field] for field in fields] for card in cards)))


def _path(as_json: bool) -> None:
    if not os.path.exists(library_path()):
        raise RuntimeError(f"the software driver is not installed: {library_path()} is missing")
    print(json.dumps({"simulated": True, "path": library_folder()}, indent=2) if as_json else library_folder())


def main(arguments: Sequence[str] | None = None, program: str = "python -m cuda_gctx.sim") -> int:
    """Run one command; the result is the exit status."""
    options = _parser(program).parse_args(arguments)
    try:
        if options.command == "run":
            return _run(options.gpu, options.driver, options.devices, options.program)
        {"path": _path, "explain": _explain, "profiles": _profiles}[options.command](options.json)
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
