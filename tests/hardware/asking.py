"""Questions to a card: each runs in a process of its own, which is killed after its limit, and is written at once."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cuda_gctx import Device
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.results import file_name, folder_of_results, write_result

REPOSITORY = Path(__file__).resolve().parents[2]

Answer = dict[str, Any]


class Question(NamedTuple):
    """A function that returns its answer, and the seconds after which its process is killed."""

    ask: Callable[[], Answer]
    limit_s: float


def say(answer: Mapping[str, Any]) -> None:
    """Print what is known so far, which is the answer if the process does not come to its end."""
    print(json.dumps(answer), flush=True)


def answer_of(command: list[str], limit_s: float) -> Answer:
    """The last answer that a process prints, and how it ended if that was not by itself."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, errors = process.communicate(timeout=limit_s)
        ended = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with those that it started
        said, errors = process.communicate()
        ended = f"killed after {limit_s:g} s"
    answers = [line for line in said.splitlines() if line.startswith("{")]
    answer: Answer = json.loads(answers[-1]) if answers else {}
    if process.returncode != 0 and not answer.get("hangs"):
        answer |= {"ended": ended, "errors": errors[-600:]}
    return answer


def main(program: str, about: str, kind: str, questions: Mapping[str, Question]) -> None:
    """The command line of a program of questions. kind: what its file is called."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"which: {', '.join(questions)}; default: all")
    parser.add_argument("--out", type=Path, help="the folder of the file (default: benchmarks/results)")
    parser.add_argument("--ask", choices=questions, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        say(questions[arguments.ask].ask())
        return
    unknown = set(arguments.questions) - set(questions)
    if unknown:
        parser.error(f"no question {min(unknown)}: there are {', '.join(questions)}")
    folder = folder_of_results(arguments.out, REPOSITORY / "benchmarks" / "results")
    result = described(Device(0), about.split("\n")[0], REPOSITORY)
    result["answers"] = answers = {}
    for name in arguments.questions or questions:
        begin = time.monotonic()
        answers[name] = answer_of([sys.executable, program, "--ask", name], questions[name].limit_s)
        print(f"{name}, {time.monotonic() - begin:.1f} s: {json.dumps(answers[name])}", flush=True)
        path = write_result(result, folder / file_name(result, kind))
    print(path)
