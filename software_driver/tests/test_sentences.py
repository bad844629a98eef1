"""Sentences of the driver's header, tried on the software driver (tests/hardware/recorder/sentences.py)."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_software_driver import library_folder, library_path, session

from .hardware.recorder import in_processes
from .hardware.recorder.sentences import SEEDED, SENTENCES, Sentence
from .hardware.recorder.world import FUNCTIONS, World

VERSIONS = [f"12.{minor}" for minor in range(4, 10)] + [f"13.{minor}" for minor in range(6)]
SAMPLE = {"12.8", "13.0", "13.4", "13.5"}


def versions_of(sentence: Sentence) -> list[str]:
    """The sample, and the versions at which the sentence begins or ends to hold."""
    held = [version for version in VERSIONS if sentence.holds_for(number_of(version))]
    edges = {held[0] if sentence.since else held[-1], held[-1]}
    return [version for version in held if version in SAMPLE | edges]


def number_of(version: str) -> int:
    major, minor = map(int, version.split("."))
    return 1000 * major + 10 * minor


@pytest.mark.parametrize(
    ("sentence", "version"),
    [
        pytest.param(one, version, id=f"{one.function}: {one.text} {version}")
        for one in SENTENCES.values()
        for version in versions_of(one)
    ],
)
def test_a_sentence_of_the_header_holds(sentence: Sentence, version: str) -> None:
    with session("h200", version, check=False):
        sentence.check(World(ctypes.CDLL(library_path())))


def test_half_of_the_functions_were_chosen_by_a_seed() -> None:
    functions = {one.function for number, one in SENTENCES.items() if number < 100}
    assert SEEDED <= functions <= FUNCTIONS.keys()
    assert len(functions) >= 40
    assert 2 * len(SEEDED) >= len(functions) - 4


def test_processes_that_end_do_not_take_other_answers_along(tmp_path: Path) -> None:
    """As the recorder asks a card: a process that dies or hangs is the answer to one question."""
    program = tmp_path / "program.py"
    program.write_text(
        "import ctypes, json, os, sys, time\n"
        f"sys.path.insert(0, {str(Path(in_processes.__file__).parents[1])!r})\n"
        "from recorder import in_processes\n"
        "in_processes.SECONDS = 1\n"
        "ends = {'dies': os.abort, 'hangs': lambda: time.sleep(60)}\n"
        "in_processes.answer = lambda case, world: ends.get(case[1], str)()\n"
        "in_processes.function_of = lambda case: 'cuCtxDestroy_v2' if case[1] == 'leaves something' else case[1]\n"
        "in_processes.work([[tuple(case) for case in group] for group in json.load(sys.stdin)])\n"
    )
    todo = [("refused", name) for name in ("a", "dies", "b", "hangs", "c", "leaves something", "d")]
    environment = {**os.environ, "LD_LIBRARY_PATH": library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": "h200@13.0"}
    found = list(in_processes.ask_a_worker([todo], [sys.executable, str(program)], environment))
    assert [case for case, _ in found] == todo
    assert [one for _, one in found] == ["", "SIGABRT", "", "SIGALRM", "", "", ""]


def test_questions_of_one_process_are_answered_as_if_each_had_its_own() -> None:
    """A seeded sample; all of them were compared by hand on one version."""
    environment = {**os.environ, "LD_LIBRARY_PATH": library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": "h200@13.0"}
    sample = in_processes.cases()[34::97]
    together = list(in_processes.ask_a_worker([sample], environment=environment))
    alone = list(in_processes.ask_a_worker([[case] for case in sample], environment=environment))
    assert json.dumps(together) == json.dumps(alone)


def test_a_command_asks_the_driver_that_is_there(tmp_path: Path) -> None:
    out = tmp_path / "answers.json"
    done = subprocess.run(
        [sys.executable, in_processes.__file__, "--only", "sentence", "--out", str(out)],
        env={**os.environ, "LD_LIBRARY_PATH": library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": "h200@13.0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(out.read_text())["sentences"]
    assert answers == {
        name: "holds" if SENTENCES[int(name.split()[0])].holds_for(13000) else in_processes.OF_OTHERS
        for name in answers
    }
    assert len(answers) == len(SENTENCES)
