"""Records what the CUDA driver answers about green contexts on one GPU, as JSON that a test can replay.

    python tests/hardware/record.py --out tests/hardware/h200-driver-13.0.json
    python tests/hardware/record.py --only device --only contract --only sentences --out new.json
    python tests/hardware/record.py --add new.json --out tests/hardware/h200-driver-13.0.json

Needs cuda-bindings and nothing else. Every section runs in a process of its own under a time limit, so that a crash or
a hang of the driver is an answer like any other. Answers hold no addresses, times or amounts of memory; those stand
under keys named "measured", which a replay does not compare. The same script runs on the software driver.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recorder.gpu import Gpu
from recorder.notes import Note
from recorder.sections import SECTIONS

# Sections with a limit of their own, in seconds: one that may end by it, and one of many processes.
LIMITS = {"graph_contexts.cooperative": 10.0, "contract": 200.0, "codes": 120.0}
GROUPS = {group for group, _, item in (name.partition(".") for name in SECTIONS) if item}
FORMAT = 2  # 1 is the recording of 2026-11-20, which had the device, split_by_count and smids alone


def run_section(name: str, ordinal: int, quick: bool, path: Path) -> None:
    """The child's whole work: one section, its answers in `path`."""
    note = Note(path)
    result: dict[str, Any] = {}
    gpu = None
    try:
        gpu = Gpu(ordinal, quick)
        answers = SECTIONS[name](gpu, note)
        result["answers"] = answers
    except Exception:
        result["answers"] = note.answers
        result["error"] = traceback.format_exc().splitlines()[-6:]
    if gpu is not None:
        result["absent"] = gpu.driver.absent
    path.write_text(json.dumps(result))
    # The interpreter's and the driver's own tear-down may fail on what a section left behind, which is not an answer.
    sys.stdout.flush()
    os._exit(0)


def start_section(name: str, arguments: argparse.Namespace, folder: Path) -> int:
    """Forks a child for one section; this process has imported what a section needs, and never opens the driver."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output = os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.setitimer(signal.ITIMER_REAL, LIMITS.get(name, arguments.limit))
            run_section(name, arguments.device, arguments.quick, folder / f"{name}.json")
        finally:
            os._exit(1)
    return child


def run_sections(
    names: list[str], at_once: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Each section as it ends: its name, what it answered, and the seconds that it took."""
    waiting, running = names[::-1], dict[int, tuple[str, float]]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop()
                begin = time.perf_counter()
                running[start_section(name, arguments, folder)] = name, begin
            child, status = os.wait()
            name, begin = running.pop(child)
            code, path = os.waitstatus_to_exitcode(status), folder / f"{name}.json"
            result = json.loads(path.read_text()) if path.exists() else {"answers": {}}
            if code == -signal.SIGALRM:
                result["ended"] = f"killed after {LIMITS.get(name, arguments.limit)} s"
            elif code != 0:
                result["ended"] = signal.Signals(-code).name if code < 0 else f"exit {code}"
            if code != 0:
                result["output"] = (folder / f"{name}.txt").read_text(errors="replace").splitlines()[-6:]
            yield name, result, time.perf_counter() - begin


def merge(recording: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    """Puts one section's result in its place; how it ended goes in only where it did not end well."""
    answers = result["answers"]
    if isinstance(answers, dict):
        answers.update({"!" + key: result[key] for key in ("error", "ended", "output") if key in result})
    group, _, item = name.partition(".")
    if item:
        recording.setdefault(group, {})[item] = answers
    else:
        recording[group] = answers
    recording.setdefault("absent", {}).update(result.get("absent", {}))


def text_of(value: Any, indent: str = "") -> str:
    """Compact JSON that still diffs: lists of numbers, short values and rows on one line, everything else spread."""
    line = json.dumps(value, separators=(",", ":"))
    if not isinstance(value, dict | list) or not value or len(line) + len(indent) <= 120:
        return line
    inner = indent + " "
    if isinstance(value, list):
        if all(not isinstance(item, dict | list) for item in value):
            return line
        items = [json.dumps(item, separators=(",", ":")) for item in value]
        return "[\n" + ",\n".join(inner + item for item in items) + "\n" + indent + "]"
    pairs = [f"{inner}{json.dumps(key)}:{text_of(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(pairs) + "\n" + indent + "}"


def add(path: Path, other: Path) -> None:
    """Puts the sections of another recording of the same card and driver into this one, with their date."""
    recording, found = json.loads(path.read_text()), json.loads(other.read_text())
    if found["device"] != recording["device"]:
        raise SystemExit(f"{other} is of another card or driver: {found['device']}, not {recording['device']}")
    dates = recording["recorded"].setdefault("later", {})
    for name in found.keys() - {"_what", "format", "recorded", "absent", "device"}:
        # Of a section of several items, those that were recorded now.
        recording[name] = recording.get(name, {}) | found[name] if name in GROUPS else found[name]
        dates[name] = found["recorded"]["date"]
    recording["absent"].update(found.get("absent", {}))
    path.write_text(text_of(recording) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", type=int, default=0, help="ordinal of the device")
    parser.add_argument("--quick", action="store_true", help="fewer launches: for a first look")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one section may take")
    parser.add_argument("--only", action="append", default=[], help="record only sections whose name begins so")
    parser.add_argument("--add", type=Path, help="record nothing: add the sections of this recording to the JSON file")
    arguments = parser.parse_args()
    if arguments.add:
        add(arguments.out, arguments.add)
        return 0

    import cuda.bindings.driver

    recording: dict[str, Any] = {
        "_what": "What the CUDA driver answered on one GPU, written by tests/hardware/record.py. Codes are CUresult"
        " numbers; 'absent' is a function that the driver or the bindings lack; 'no answer' is where a process ended.",
        "format": FORMAT,
        "recorded": {
            "date": time.strftime("%Y-%m-%d"),
            "bindings": cuda.bindings.__version__,
            "quick": arguments.quick,
        },
    }
    names = [name for name in SECTIONS if not arguments.only or name.startswith(tuple(arguments.only))]
    begin = time.perf_counter()
    failed = 0

    def finish(name: str, result: dict[str, Any], seconds: float) -> None:
        nonlocal failed
        merge(recording, name, result)
        arguments.out.write_text(json.dumps(recording))  # whatever ends this process
        bad = "error" in result or "ended" in result
        failed += bad
        how = result.get("ended") or (result["error"][-1] if "error" in result else "ok")
        print(f"{name:36} {seconds:6.1f} s  {how}", flush=True)

    for one in run_sections([name for name in names if not name.startswith("misuse.")], 1, arguments):
        finish(*one)
    # The items of misuse look at return codes alone, so that some of them can share the device.
    items = [name for name in names if name.startswith("misuse.")]
    for one in sorted(run_sections(items, 4, arguments), key=lambda one: items.index(one[0])):
        finish(*one)
    arguments.out.write_text(text_of(recording) + "\n")
    print(f"{len(names)} sections, {failed} with an error, {time.perf_counter() - begin:.1f} s: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
