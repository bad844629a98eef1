"""Tables with aligned columns and ranges of integers as plain text, and what a JSON text describes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["parsed_json", "ranges", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows below the header, numbers right-aligned, text left-aligned; None is a dash."""
    body = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    kinds = list(
        zip(*([cell.replace(".", "", 1).isdigit() or cell == "-" for cell in row] for row in body), strict=True)
    )
    numeric = [all(column) for column in kinds] or [False] * len(header)
    lines = [list(header), *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def ranges(numbers: Iterable[int]) -> str:
    """Integers, with consecutive ones joined: ``0-3, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parsed_json(text: str) -> Any:
    """What a JSON text describes; a ValueError if it is none, or if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
