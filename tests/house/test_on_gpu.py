"""tests/on_gpu.py: which files of tests run side by side, alone, again and later, and what its exit code says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--on-gpu", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "alone: is alone")
"""
# Ends when another file has begun.
MEETS = """
import pathlib, time

HERE = pathlib.Path(__file__)

def test_it():
    began, runs = HERE.with_suffix(".began"), HERE.with_suffix(".runs")
    began.touch()
    runs.touch()
    end = time.monotonic() + 60
    while not set(HERE.parent.glob("*.began")) - {began}:
        assert time.monotonic() < end
    runs.unlink()
"""
ALONE = """
import pathlib
import pytest

@pytest.mark.alone
def test_it():
    assert not list(pathlib.Path(__file__).parent.glob("*.runs"))
"""
FAILS_ONCE = """
import pathlib

def test_it():
    mark = pathlib.Path(__file__).with_suffix(".began")
    began = mark.exists()
    mark.touch()
    assert began
"""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "room"
    folder.mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests" / "on_gpu.py", folder.parent)
    (folder.parent / "conftest.py").write_text(CONFTEST)
    return folder


def run(room: Path, *options: object) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and how each run of a file ended."""
    command = [
        sys.executable,
        room.parent / "on_gpu.py",
        "--simulated",
        "--out",
        room.parent / "out",
        *options,
        "tests/room",
    ]
    done = subprocess.run(
        [*map(str, command)], cwd=room.parent.parent, capture_output=True, text=True, check=False, timeout=120
    )
    found: dict[str, list[str]] = {}
    for words in map(str.split, done.stdout.splitlines()):
        if words and words[0].startswith("tests/room."):
            found.setdefault(words[0].removeprefix("tests/room."), []).append(words[1])
    (room.parent / "summary").write_text(done.stdout)
    return done.returncode, found


def test_files_run_side_by_side_but_for_those_that_are_to_be_alone(room: Path) -> None:
    for name, text in {"test_a": ALONE, "test_b": MEETS, "test_c": MEETS}.items():
        (room / f"{name}.py").write_text(text)
    assert run(room) == (0, {"test_a": ["ok"], "test_b": ["ok"], "test_c": ["ok"]})


def test_a_file_that_fails_beside_others_runs_once_more_alone(room: Path) -> None:
    (room / "test_once.py").write_text(FAILS_ONCE)
    (room / "test_always.py").write_text("def test_it():\n    raise KeyError\n")
    assert run(room) == (1, {"test_always": ["again", "FAILED"], "test_once": ["again", "ok"]})


def test_what_passed_before_and_what_the_limit_leaves_out_do_not_run(room: Path) -> None:
    for name in ("test_a", "test_b"):
        (room / f"{name}.py").write_text("def test_it():\n    pass\n")
    assert run(room, "--limit", 1) == (75, {"test_a": ["later"], "test_b": ["later"]})
    assert run(room, "--passed", room.parent / "summary") == (0, {"test_a": ["ok"], "test_b": ["ok"]})
    (room / "test_c.py").write_text("def test_it():\n    pass\n")
    assert run(room, "--passed", room.parent / "summary") == (0, {"test_c": ["ok"]})


def test_a_file_that_the_limit_cuts_off_runs_later(room: Path) -> None:
    (room / "test_long.py").write_text("import signal\n\ndef test_it():\n    signal.pause()\n")
    assert run(room, "--limit", 6) == (75, {"test_long": ["later"]})
