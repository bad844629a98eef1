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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the JSON text has the field {repeated!r} twice in one object: keep one of them")
    return fields


def parsed_json(text: str) -> Any:
    """Parse a JSON text. Raises ValueError for other texts, deep nesting, and a repeated field of an object."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
