"""The contracts of functions and the sentences about them, asked of a driver in processes that may break.

    python tests/hardware/recorder/in_processes.py --out answers.json

Uses ctypes alone. A process asks one thing after another, each with a world of its own, and ends where something may be
left behind: after a crash, after its limit (SIGALRM is then the answer), after a call that changes more than its world.
The next process goes on with the next one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a program
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import recorder

    __package__ = recorder.__name__
from .codes import CODES
from .contract import Questions
from .sentences import SENTENCES
from .world import FUNCTIONS, Unavailable, World

# Not asked: what resets a device, managed memory, and what belongs to other tools.
SKIPPED = re.compile(
    r"cuDevicePrimaryCtxReset|cuMemAllocManaged|cuMemAdvise|cuMemPrefetch|cuMemDiscard|cuMemRange|cuStreamAttach"
    r"|cuGetExportTable|cuProfiler"
)
# What they change is not of the objects of one world.
LASTING = re.compile(
    r"cuInit|cuThreadExchange|cuDevicePrimaryCtx(Release|Set)|cuDeviceSet|cuCtx(Set|Enable|Destroy|Push|Pop)"
)
QUESTIONS = {question.__name__: question for question in Questions.ALL}
SECONDS = 10  # for one question
TOGETHER = 40  # questions of one process
AT_ONCE = 4  # processes that make several contexts each, which a card does one after the other

# A question and its function, "sentence" and its number, or "code" and what is asked.
Case = tuple[str, str]
# Where answers stand that are not of the contract.
SECTIONS = {"sentence": "sentences", "code": "codes"}


def cases(only: str = "") -> list[Case]:
    names = [symbol for symbol in FUNCTIONS if not SKIPPED.match(symbol)]
    asked = [(question, symbol) for symbol in names for question in QUESTIONS]
    said = [("sentence", str(number)) for number, one in SENTENCES.items() if not SKIPPED.match(one.function)]
    ends = [("code", name) for name in CODES]
    return [case for case in asked + said + ends if only in case[0]]


def function_of(case: Case) -> str:
    if case[0] == "code":
        return "cuCtxDestroy_v2"
    return SENTENCES[int(case[1])].function if case[0] == "sentence" else case[1]


def answer(case: Case, world: World) -> Any:
    """What the driver answers, in a world of its own."""
    kind, what = case
    if kind == "code":
        return CODES[what](world)
    if kind != "sentence":
        return {} if FUNCTIONS[what]["since"] > world.version else dict(QUESTIONS[kind](Questions(what), world))
    try:
        SENTENCES[int(what)].check(world)
    except AssertionError as wrong:
        line = traceback.extract_tb(wrong.__traceback__)[-1].line
        return f"not so: {line} {wrong}".rstrip()
    return "holds"


def is_sound(world: World) -> bool:
    return world.code("cuCtxSetCurrent", world["CUcontext"]) == 0 and world.code("cuCtxSynchronize") == 0


def answers(todo: Iterable[Case], library: Any) -> Iterator[tuple[Case, Any, bool]]:
    """Each case with its answer, and whether the next one may be asked in this process."""
    kept = []  # a driver may still know their memory
    for case in todo:
        if case[0] == "code" and kept:  # nobody else may hold the primary context
            return
        try:
            world = World(library)
            kept.append(world)
            found, sound = answer(case, world), not LASTING.match(function_of(case)) and is_sound(world)
        except Unavailable as why:
            found, sound = str(why), False
        yield case, found, sound


def work(todo: list[Case]) -> None:
    """A child's whole work: a line for each answer."""
    library = ctypes.CDLL("libcuda.so.1")
    signal.alarm(SECONDS)
    for case, found, sound in answers(todo, library):
        print(json.dumps([case, found]), flush=True)
        if not sound:
            break
        signal.alarm(SECONDS)
    os._exit(0)


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
WORKER = (sys.executable, str(Path(__file__).resolve()), "--work")


def ask_in_children(
    todo: list[Case], worker: Sequence[str] = WORKER, environment: Mapping[str, str] | None = None
) -> list[tuple[Case, Any]]:
    found: list[tuple[Case, Any]] = []
    while todo:
        child = subprocess.Popen(worker, env=environment, **PIPES)
        try:
            output, _ = child.communicate(json.dumps(todo).encode(), timeout=SECONDS * 6)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        lines = [json.loads(line) for line in output.splitlines()]
        found += [(tuple(case), answer) for case, answer in lines]
        todo = todo[len(lines) :]
        if child.returncode != 0 and todo:
            code = child.returncode
            found.append((todo[0], signal.Signals(-code).name if code < 0 else f"exit {code}"))
            todo = todo[1:]
    return found


def put(recording: dict[str, Any], case: Case, found: Any) -> None:
    kind, what = case
    section = recording.setdefault(SECTIONS.get(kind, "contract"), {})
    if kind == "sentence":
        section[f"{what} {SENTENCES[int(what)].function}: {SENTENCES[int(what)].text}"] = found
    elif kind == "code":
        section[what] = found
    else:
        section.setdefault(what, {}).update(found if isinstance(found, dict) else {kind: found})


def ask(
    todo: list[Case],
    together: int = TOGETHER,
    save: Callable[[dict[str, Any]], None] | None = None,
    at_once: int | None = None,
) -> Any:
    """The answers to all cases, as the sections of a recording; `save` gets what there is after each process."""
    recording: dict[str, Any] = {}
    groups = [todo[start : start + together] for start in range(0, len(todo), together)]
    with concurrent.futures.ThreadPoolExecutor(at_once or os.cpu_count()) as pool:
        for found in pool.map(ask_in_children, groups):
            for case, one in found:
                put(recording, case, one)
            if save is not None:
                save(recording)
    return recording


def record_contract(_: Any, note: Any) -> Any:
    return record("contract", note)


def record_sentences(_: Any, note: Any) -> Any:
    return record("sentences", note)


def record_codes(_: Any, note: Any) -> Any:
    return record("codes", note, together=1, at_once=AT_ONCE)


def record(section: str, note: Any, together: int = TOGETHER, at_once: int | None = None) -> Any:
    todo = [case for case in cases() if SECTIONS.get(case[0], "contract") == section]

    def save(recording: dict[str, Any]) -> None:
        note.answers.update(recording.get(section, {}))
        note.save()

    return ask(todo, together, save, at_once)[section]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a driver the contract of each function, and the sentences.")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--only", default="", help="refused, without_context, captured, called_back, sentence or code")
    parser.add_argument("--together", type=int, default=TOGETHER, help="questions of one process")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work([tuple(case) for case in json.load(sys.stdin)])
    begin, todo = time.perf_counter(), cases(arguments.only)

    def save(recording: dict[str, Any]) -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps(recording, indent=0) + "\n")

    recording = ask(todo, arguments.together, save)
    for name, found in recording.get("sentences", {}).items():
        if found != "holds":
            print(f"{name}\n  {found}")
    print(f"{len(todo)} questions in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
