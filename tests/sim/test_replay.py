"""Recordings of real GPUs against the software driver: the recorder runs on it, and its answers are the same."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import sim

pytestmark = pytest.mark.sim_only

FOLDER = Path(__file__).resolve().parents[1] / "hardware"
RECORDINGS = sorted(FOLDER.glob("*.json"))
# What says when and with what was recorded, and not what the driver answers.
ASIDE = {"_what", "format", "recorded", "absent"}
# Answers that the software driver does not give, and why.
KNOWN_DIFFERENCES = {
    "events/a graph whose context is destroyed before the replay": "the real driver ends the process with SIGSEGV; "
    "the software driver answers CONTEXT_IS_DESTROYED",
    "events/!ended": "how that process ended",
    "events/!output": "how that process ended",
}


def sections() -> list[tuple[Path, str]]:
    found = []
    for path in RECORDINGS:
        recording = json.loads(path.read_text())
        for name in recording.keys() - ASIDE:
            found += [(path, f"misuse.{item}") for item in recording[name]] if name == "misuse" else [(path, name)]
    return sorted(found)


@functools.cache
def recorded(path: Path) -> Any:
    return json.loads(path.read_text())


@functools.cache
def simulated(path: Path, folder: Path) -> Any:
    """What the recorder writes on the software driver, with the card and the driver of a recording."""
    major, minor = divmod(recorded(path)["device"]["driver_version"] // 10, 100)
    card = re.match(r"[a-z0-9]+", path.stem)
    assert card is not None, f"{path.name} does not begin with the name of a card"
    out = folder / path.name
    subprocess.run(
        [sys.executable, str(FOLDER / "record.py"), "--out", str(out)],
        env={**os.environ, "LD_LIBRARY_PATH": sim.library_folder(), "CUDA_GCTX_SIM": f"{card[0]}@{major}.{minor}"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return json.loads(out.read_text())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


def differences(real: Any, model: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Every place where two answers differ; what was measured is not compared."""
    if isinstance(real, dict) and isinstance(model, dict):
        for key in [*real, *(key for key in model if key not in real)]:
            if key != "measured":
                yield from differences(real.get(key, "-"), model.get(key, "-"), f"{place}/{key}")
    elif isinstance(real, list) and isinstance(model, list) and len(real) == len(model):
        for index, (one, other) in enumerate(zip(real, model, strict=True)):
            yield from differences(one, other, f"{place}/{index}")
    elif real != model:
        yield place, real, model


def answers_of(recording: Any, section: str) -> Any:
    for name in section.split("."):
        recording = recording[name]
    if section != "device":
        return recording
    return {key: value for key, value in recording.items() if key != "name"}


def test_there_is_a_recording() -> None:
    assert RECORDINGS


@pytest.mark.parametrize(("path", "section"), sections(), ids=lambda value: getattr(value, "stem", value))
def test_answers_are_as_recorded(path: Path, section: str, folder: Path) -> None:
    if section == "measured":
        pytest.skip("times and amounts of memory: a replay has others")
    found = differences(answers_of(recorded(path), section), answers_of(simulated(path, folder), section), section)
    wrong = [(place, real, model) for place, real, model in found if place not in KNOWN_DIFFERENCES]
    report = "\n".join(f"{place}\n  recorded  {real}\n  simulated {model}" for place, real, model in wrong)
    assert not wrong, f"{len(wrong)} answers differ from {path.name}:\n{report}"


def test_the_name_of_the_device_says_that_it_is_simulated(folder: Path) -> None:
    for path in RECORDINGS:
        assert simulated(path, folder)["device"]["name"] == recorded(path)["device"]["name"] + " (simulated)"


def test_functions_that_the_recorded_driver_lacks_are_absent(folder: Path) -> None:
    for path in RECORDINGS:
        assert simulated(path, folder)["absent"].keys() == recorded(path)["absent"].keys()
