"""Result files are small and have a row a line: a changed row is a changed line, and a clone stays quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx.measure.results import WIDEST, as_text, write_result

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted(file for folder in ("benchmarks", "studies") for file in (REPOSITORY / folder).rglob("*.json"))
MOST_BYTES = 300_000


def unlike(files: list[Path]) -> list[str]:
    """What is wrong with result files."""
    wrong = []
    for file in files:
        text = file.read_text()
        if len(text.encode()) > MOST_BYTES:
            wrong.append(f"{file.name}: {len(text.encode())} bytes, at most {MOST_BYTES} are allowed")
        if text != as_text(json.loads(text)):
            wrong.append(f"{file.name}: written by something else than cuda_gctx.measure.results")
    return wrong


def test_result_files_are_small_and_have_a_row_a_line() -> None:
    assert FILES
    assert unlike(FILES) == []


def test_a_file_that_is_large_or_indented_is_found(tmp_path: Path) -> None:
    result = {"card": "a", "rows": [{"us": 1.5}, {"us": 2.5}]}
    write_result(result, tmp_path / "good.json")
    (tmp_path / "indented.json").write_text(json.dumps(result, indent=1))
    write_result({"rows": [{"us": [0.5] * 100}] * 1000}, tmp_path / "large.json")
    assert [one.split(":")[0] for one in unlike(sorted(tmp_path.iterdir()))] == ["indented.json", "large.json"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, '{\n "a": 1,\n "b": {"c":[1,2]}\n}\n'),
        ({"rows": [{"a": 1, "b": [{"c": 2}]}, {}]}, '{\n "rows": [\n  {"a":1,"b":[{"c":2}]},\n  {}\n ]\n}\n'),
        ({"none": [], "names": ["a", "b"]}, '{\n "none": [],\n "names": ["a","b"]\n}\n'),
    ],
)
def test_each_entry_and_each_row_has_a_line(result: dict[str, Any], text: str) -> None:
    assert as_text(result) == text


def test_a_row_that_is_too_wide_is_opened() -> None:
    row = {"name": "x", "parts": [{"us": number} for number in range(WIDEST)]}
    lines = as_text({"rows": [row]}).splitlines()
    assert lines[2:6] == ["  {", '   "name": "x",', '   "parts": [', '    {"us":0},']
    assert json.loads("\n".join(lines)) == {"rows": [row]}
