"""Recordings of real GPUs against the software driver: the recorder runs on it, and its answers are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cuda_software_driver as sim

from .hardware.compare import (
    FOLDER,
    KNOWN_DIFFERENCES,
    all_differences,
    differences_of,
    recorded,
    sections,
    simulated,
)

RECORDINGS = sorted(FOLDER.glob("*.json"))


def test_there_is_a_recording() -> None:
    assert RECORDINGS


def compared(path: Path) -> list[str]:
    """All sections but times and amounts of memory, of which a replay has others."""
    return [section for section in sections(path) if section != "measured"]


def dealt(path: Path) -> list[str]:
    """A part of the sections of a recording: one that several recordings have is in the part of one of them.

    Sections with a known difference are in each part, because some are differences of one card.
    """
    differing = {place.partition("/")[0] for place in KNOWN_DIFFERENCES}
    sections_of_all = sorted({section for one in RECORDINGS for section in compared(one)})
    having = {section: [one for one in RECORDINGS if section in compared(one)] for section in sections_of_all}
    return [
        section
        for number, (section, those) in enumerate(having.items(), 1)
        if path in those and (section in differing or those[number % len(those)] == path)
    ]


PARTS = [
    pytest.param(dealt, id="dealt out"),
    pytest.param(compared, id="whole", marks=pytest.mark.long),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_answers_are_as_recorded(path: Path, part: Callable[[Path], list[str]]) -> None:
    replay, recording = simulated(path, ("device", *part(path))), recorded(path)
    found = [difference for section in part(path) for difference in differences_of(path, section, replay)]
    assert not found, f"{len(found)} answers differ from {path.name}:\n" + "\n".join(found)
    assert replay["device"]["name"] == recording["device"]["name"] + " (simulated)"
    assert replay["absent"].keys() <= recording["absent"].keys(), "functions that the recorded driver has"
    if part is compared:
        assert replay["absent"].keys() == recording["absent"].keys(), "functions that the recorded driver lacks"


@pytest.mark.parametrize("part", PARTS)
def test_every_known_difference_is_one(part: Callable[[Path], list[str]]) -> None:
    found = {
        place
        for path in RECORDINGS
        for section in part(path)
        for place, *_ in all_differences(path, section, simulated(path, ("device", *part(path))))
    }
    assert KNOWN_DIFFERENCES.keys() <= found


def test_a_command_lists_what_differs(tmp_path: Path) -> None:
    changed = recorded(RECORDINGS[0]) | {"limits": {"invented": 1}}
    path = tmp_path / RECORDINGS[0].name
    path.write_text(json.dumps({key: changed[key] for key in ("_what", "format", "recorded", "device", "limits")}))
    run = subprocess.run([sys.executable, str(FOLDER / "compare.py"), str(path)], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "limits/invented\n  recorded  1\n  simulated -\n" in run.stdout


def test_a_later_recording_replaces_the_items_that_it_has(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    device = {"name": "a card"}
    of_old = {"device": device, "recorded": {"date": "2026-11-01"}, "absent": {}, "codes": {"a": 1, "b": 2}}
    of_new = {"device": device, "recorded": {"date": "2026-11-02"}, "absent": {}, "codes": {"a": 3}}
    old.write_text(json.dumps(of_old | {"misuse": {"threads": {"a": 1}, "nulls": {"b": 2}}}))
    new.write_text(json.dumps(of_new | {"misuse": {"nulls": {"b": 3}, "edited": {}}}))
    command = [sys.executable, str(FOLDER / "record.py"), "--add", str(new), "--out", str(old)]
    subprocess.run(command, check=True, timeout=60)
    recording = json.loads(old.read_text())
    assert recording["codes"] == {"a": 3}
    assert recording["misuse"] == {"threads": {"a": 1}, "nulls": {"b": 3}, "edited": {}}
    assert recording["recorded"]["later"] == {"codes": "2026-11-02", "misuse": "2026-11-02"}


@pytest.mark.parametrize("version", ["13.1", "13.4", "13.5"])
def test_what_only_newer_drivers_have_is_recorded_of_them(version: str, tmp_path: Path) -> None:
    out = tmp_path / "recording.json"
    newer = ("structured_split", "workqueues", "refusals")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "record.py"), "--out", str(out), *(f"--only={section}" for section in newer)],
        env={**os.environ, "LD_LIBRARY_PATH": sim.library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": f"h200@{version}"},
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
