"""Recordings of real GPUs against the software driver: the recorder runs on it, and its answers are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_gctx import sim

from ..hardware.compare import FOLDER, differences_of, recorded, sections, simulated

pytestmark = pytest.mark.sim_only

RECORDINGS = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


def test_there_is_a_recording() -> None:
    assert RECORDINGS


@pytest.mark.parametrize(
    ("path", "section"),
    [(path, section) for path in RECORDINGS for section in sections(path)],
    ids=lambda value: getattr(value, "stem", value),
)
def test_answers_are_as_recorded(path: Path, section: str, folder: Path) -> None:
    if section == "measured":
        pytest.skip("times and amounts of memory: a replay has others")
    found = differences_of(path, section, folder)
    assert not found, f"{len(found)} answers differ from {path.name}:\n" + "\n".join(found)


def test_a_command_lists_what_differs(tmp_path: Path) -> None:
    changed = recorded(RECORDINGS[0]) | {"limits": {"invented": 1}}
    path = tmp_path / RECORDINGS[0].name
    path.write_text(json.dumps({key: changed[key] for key in ("_what", "format", "recorded", "device", "limits")}))
    run = subprocess.run([sys.executable, str(FOLDER / "compare.py"), str(path)], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "limits/invented\n  recorded  1\n  simulated -\n" in run.stdout


def test_the_name_of_the_device_says_that_it_is_simulated(folder: Path) -> None:
    for path in RECORDINGS:
        assert simulated(path, folder)["device"]["name"] == recorded(path)["device"]["name"] + " (simulated)"


def test_functions_that_the_recorded_driver_lacks_are_absent(folder: Path) -> None:
    for path in RECORDINGS:
        assert simulated(path, folder)["absent"].keys() == recorded(path)["absent"].keys()


@pytest.mark.parametrize("version", ["13.1", "13.4", "13.5"])
def test_what_only_newer_drivers_have_is_recorded_of_them(version: str, tmp_path: Path) -> None:
    out = tmp_path / "recording.json"
    newer = ("structured_split", "workqueues", "refusals")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "record.py"), "--out", str(out), *(f"--only={section}" for section in newer)],
        env={**os.environ, "LD_LIBRARY_PATH": sim.library_folder(), "CUDA_GCTX_SIM": f"h200@{version}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "3 sections, 0 with an error" in done.stdout
    recording = json.loads(out.read_text())
    assert recording["structured_split"]["16 for clusters of 16: split"][:3] == [0, [16], 116]
    assert recording["workqueues"]["device: configuration"] == {"wqConcurrencyLimit": 8, "sharingScope": 0}
    assert recording["refusals"]["descriptor: groups of two splits"] == 915
