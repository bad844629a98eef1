"""In a terminal of 60 columns, no line is cut and no number is broken."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .test_command_line import child, in_a_terminal

pytestmark = pytest.mark.sim_only

COLUMNS = 60
LAYOUT = ["control=16", "rest"]
OPENS = "from cuda_gctx import Device; Device().partition(control=16, rest=None).verify()"
TRACED = ["trace", "--", sys.executable, "-c", OPENS]
SHOWN = [
    ["info"],
    ["sizes", "--profile", "b200", "--driver", "13.5"],
    ["plan", *LAYOUT],
    ["verify", *LAYOUT],
    ["mps", *LAYOUT],
    ["demo", "--samples", "20"],
    ["doctor"],
    ["run", "--layout", "control=16,rest", "--as", "control", "--", sys.executable, "-c", "import cuda_gctx"],
    TRACED,
]


def words(text: str) -> set[str]:
    """The words of an output but for numbers of processes, addresses and measured times."""
    return set(re.sub(r"\x1b\[[\d;]*m", "", text).split())


def is_long_word_or_command(line: str) -> bool:
    """True for a line that cannot be wrapped: a path, or a command to copy."""
    return " " not in line.strip() or line.startswith(("echo ", "CUDA driver ", "driver: "))


@pytest.mark.parametrize("arguments", SHOWN, ids=lambda words: words[0])
def test_an_output_fits_and_breaks_no_word(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_GCTX_DRIVER", "sim:h200@13.0")
    shown = in_a_terminal(COLUMNS, *arguments)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert [line for line in lines if len(line) > COLUMNS and not is_long_word_or_command(line)] == []
    if arguments[0] in ("demo", "run", "trace"):  # they show other numbers each time
        return
    whole = child(*arguments)
    assert words(whole.stdout + whole.stderr) <= words(shown)


def test_a_report_of_the_tuner_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "narrow_work.py").write_text(
        "from cuda_gctx.tune import spin\n"
        "def control(stream): spin(stream, 8, 20_000)\n"
        "def bulk(stream): spin(stream, 264, 200_000)\n"
    )
    monkeypatch.setenv("CUDA_GCTX_DRIVER", "sim:h200@13.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parts = ["narrow_work:control", "narrow_work:bulk"]
    shown = in_a_terminal(COLUMNS, "tune", *parts, "--tail-latency", "control", "--budget", "1")
    report = shown[shown.index("p99 of control ") :]
    lines = re.sub(r"\x1b\[[\d;]*m", "", report).splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    # A number is next to its unit.
    assert not re.search(r"\d\n\s*us\b", report)


@pytest.mark.parametrize(
    ("arguments", "says"), [(["demo"], "measuring on a plain stream"), (TRACED, "reading")], ids=["demo", "trace"]
)
def test_what_may_take_long_shows_its_progress_in_a_terminal_alone(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_GCTX_DRIVER", "sim:h200@13.0")
    bar = rf"\r\[[#.]+\] {says}"
    assert re.search(bar, in_a_terminal(100, *arguments))
    done = child(*arguments)
    assert not re.search(bar, done.stdout + done.stderr)
