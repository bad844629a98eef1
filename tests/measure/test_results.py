"""cuda_gctx.measure.results writes JSON with a row a line, so that a changed row is a changed line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cuda_gctx.measure.results import WIDEST, as_text


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
