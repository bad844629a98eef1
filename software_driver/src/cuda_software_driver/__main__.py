"""The commands of the software driver: ``python -m cuda_software_driver`` and ``cuda-software-driver``."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from ._library import library_folder, library_path, programs_folder
from ._session import cards, library, make_spec

__all__ = ["COMMANDS", "OPTIONS", "explain", "instructions", "main", "path", "profiles", "run"]

SUMMARY = "Run CUDA programs on a simulated GPU."
COMMANDS = {
    "profiles": "List the cards that can be simulated.",
    "explain": "List the modelled behaviours and the source of each.",
    "instructions": "List the PTX instructions that kernels are executed with.",
    "path": "Print the directory of the simulated libcuda.so.1.",
    "run": "Run a command on a simulated machine.",
}
OPTIONS = {
    "json": "Print one JSON document and nothing else.",
    "gpu": "The card (see: profiles).",
    "driver": "The CUDA version of the driver, such as 13.1 (default: 13.0).",
    "devices": "The number of cards.",
}
DEFAULT_CARD = "h200"


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=SUMMARY)
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for name in ("profiles", "explain", "instructions", "path"):
        parsers[name].add_argument("--json", action="store_true", help=OPTIONS["json"])
    run = parsers["run"]
    run.add_argument("--gpu", default=DEFAULT_CARD, help=OPTIONS["gpu"])
    run.add_argument("--driver", default=None, help=OPTIONS["driver"])
    run.add_argument("--devices", type=int, default=1, help=OPTIONS["devices"])
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="The command to run.")
    return parser


def run(gpu: str, driver: str | None, devices: int, program: Sequence[str]) -> int:
    """Replace this process by a command on a simulated machine; the result is the status if that fails."""
    command = list(program[1:] if program[:1] == ["--"] else program)
    if not command:
        raise ValueError("no command to run: write it after --")
    folder = library_folder()
    if re.search("[:;]", folder):
        raise RuntimeError(f"the loader's path cannot contain {folder!r}, which has ':' or ';': install it elsewhere")
    spec = make_spec(gpu, driver, devices)
    # Checked here, where the reason is shown, rather than in the program.
    library().configure(spec)
    environment = dict(os.environ)
    environment["CUDA_SOFTWARE_DRIVER_MACHINE"] = spec
    environment.pop("CUDA_GCTX_DRIVER", None)  # programs that use cuda_gctx open libcuda.so.1 too
    inherited = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = folder + (os.pathsep + inherited if inherited else "")
    environment["PATH"] = os.pathsep.join([programs_folder(), environment.get("PATH", os.defpath)])
    # The loader looks a name up in LD_LIBRARY_PATH: a path in LD_PRELOAD ends at a space.
    keeper = "libsoftware_driver_keep_ptx.so"
    environment["LD_PRELOAD"] = os.pathsep.join(filter(None, [keeper, environment.get("LD_PRELOAD")]))
    print(f"running on a simulated machine: {spec}", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def explain(as_json: bool) -> None:
    """Print what is modelled, and the source of each fact."""
    behaviours = library().answer("Explain")
    if as_json:
        print(json.dumps({"simulated": True, "behaviours": behaviours}, indent=2))
        return
    print("Behaviours of the software driver (simulated), the drivers that they apply to, and their sources:")
    print(
        "(recorded, timed: on real cards with driver 13.0, and assumed to hold for the other drivers that are named; "
        "documented: in cuda.h)"
    )
    for entry in behaviours:
        source = f" [{entry['source']}]" if entry["source"] else ""
        print(f"[{entry['known']:>10}] {entry['subject']} ({entry['drivers']}): {entry['behaviour']}{source}")


def instructions(as_json: bool) -> None:
    """Print the instructions that kernels are executed with."""
    known = library().answer("Instructions")
    if as_json:
        print(json.dumps({"simulated": True, "instructions": known}, indent=2))
        return
    print("Instructions of PTX that the software driver (simulated) executes.")
    print("(about: the last bits may differ from those of a card)")
    for one in known:
        print(f"{one['name']:14}  {'exact' if one['exact'] else 'about':5}  {one['variants']}".rstrip())


def profiles(as_json: bool) -> None:
    """Print the cards that can be simulated."""
    if as_json:
        print(json.dumps({"simulated": True, "profiles": cards()}, indent=2))
        return
    titles = {
        "key": "card",
        "name": "name",
        "compute_capability": "compute",
        "sm_count": "SMs",
        "min_partition": "min",
        "alignment": "align",
        "layout": "layout",
    }
    line = "{key:7}  {name:35}  {compute_capability:>7}  {sm_count:>3}  {min_partition:>3}  {alignment:>5}  {layout}"
    for card in (titles, *cards()):
        print(line.format(**card))


def path(as_json: bool) -> None:
    """Print the directory of the simulated libcuda.so.1."""
    if not os.path.exists(library_path()):
        raise RuntimeError(f"the software driver is not installed: {library_path()} is missing")
    print(json.dumps({"simulated": True, "path": library_folder()}, indent=2) if as_json else library_folder())


def main(arguments: Sequence[str] | None = None, program: str = f"python -m {__package__}") -> int:
    """Run one command; returns the exit status."""
    options = _parser(program).parse_args(arguments)
    try:
        if options.command == "run":
            return run(options.gpu, options.driver, options.devices, options.program)
        printers = {"path": path, "explain": explain, "instructions": instructions, "profiles": profiles}
        printers[options.command](options.json)
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
