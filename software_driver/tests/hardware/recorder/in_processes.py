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
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
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
# The answer of a driver to a sentence of another version.
OF_OTHERS = "of other versions"
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
    sentence = SENTENCES[int(what)]
    if not sentence.holds_for(world.version):
        return OF_OTHERS
    try:
        sentence.check(world)
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


def answer_all(todo: list[Case], into: int) -> None:
    """A child's whole work: a line for each answer."""
    signal.alarm(SECONDS)
    for case, found, sound in answers(todo, ctypes.CDLL("libcuda.so.1")):
        os.write(into, json.dumps([case, found]).encode() + b"\n")
        if not sound:
            break
        signal.alarm(SECONDS)


def ask_in_children(todo: list[Case]) -> Iterator[tuple[Case, Any]]:
    """Forks, so that nobody waits for the start of an interpreter; this process never opens the driver."""
    while todo:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                answer_all(todo, writing)
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as lines:
            found = [json.loads(line) for line in lines]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for case, one in found:
            yield tuple(case), one
        todo = todo[len(found) :]
        if code != 0 and todo:
            yield todo[0], signal.Signals(-code).name if code < 0 else f"exit {code}"
            todo = todo[1:]


def work(groups: list[list[Case]]) -> None:
    """A worker's whole work: a line for each answer of its children."""
    for case, found in itertools.chain.from_iterable(map(ask_in_children, groups)):
        print(json.dumps([case, found]), flush=True)


WORKER = (sys.executable, str(Path(__file__).resolve()), "--work")


def ask_a_worker(
    groups: list[list[Case]], worker: Sequence[str] = WORKER, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Case, Any]]:
    """Asks in a process that does not open the driver; each group begins in a child of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(worker, env=environment, text=True, **pipes) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        json.dump(groups, asked.stdin)
        asked.stdin.close()
        for line in asked.stdout:
            case, found = json.loads(line)
            yield tuple(case), found


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
    """The answers to all cases, as the sections of a recording; `save` gets what there is now and then."""
    groups = [todo[start : start + together] for start in range(0, len(todo), together)]
    workers = min(at_once or os.cpu_count() or 1, len(groups))
    found: dict[Case, Any] = {}
    saving = threading.Lock()

    def in_order() -> dict[str, Any]:
        recording: dict[str, Any] = {}
        for case in todo:
            if case in found:
                put(recording, case, found[case])
        return recording

    def run(some: list[list[Case]]) -> None:
        for number, (case, one) in enumerate(ask_a_worker(some), 1):
            with saving:
                found[case] = one
                if save is not None and number % together == 0:
                    save(in_order())

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, (groups[first::workers] for first in range(workers))))
    if save is not None:
        save(in_order())
    return in_order()


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
    parser.add_argument("--only", default="", help=f"one of {', '.join(QUESTIONS)}, sentence, code")
    parser.add_argument("--together", type=int, default=TOGETHER, help="questions of one process")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work([[tuple(case) for case in group] for group in json.load(sys.stdin)])
        return
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
