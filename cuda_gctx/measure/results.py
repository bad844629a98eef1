"""Result files of measurements: JSON with one row per line, so that a diff shows the changed rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["as_text", "file_name", "folder_of_results", "write_result"]

# Characters that a row may have on one line. What is longer is a table of its own: its entries get a line each.
WIDEST = 2000


def as_text(result: Mapping[str, Any]) -> str:
    """A result as JSON: each entry on a line, and each row of a list of rows."""
    return "\n".join(_opened(result, "")) + "\n"


def write_result(result: Mapping[str, Any], path: Path) -> Path:
    """Write a result file, whole or not at all; returns its path."""
    part = path.with_suffix(".part")
    part.write_text(as_text(result))
    os.replace(part, path)
    return path


def file_name(result: Mapping[str, Any], kind: str) -> str:
    """The file name of a result: card, driver and benchmark."""
    card = re.sub(r"[^a-z0-9]+", "-", result["card"].removeprefix("NVIDIA ").lower()).strip("-")
    return f"{card}-driver-{result['cuda']}-{kind}.json"


def folder_of_results(wanted: Path | None, default: Path) -> Path:
    """The folder for a result file, created if it does not exist."""
    folder = wanted or default
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _opened(value: Any, before: str) -> Iterator[str]:
    """The lines of a container with one entry per line. before: the beginning of the first line."""
    rows = isinstance(value, list)
    entries = (
        [("", item) for item in value] if rows else [(f"{json.dumps(key)}: ", item) for key, item in value.items()]
    )
    indent = " " * (len(before) - len(before.lstrip()))
    yield before + ("[" if rows else "{")
    for number, (name, item) in enumerate(entries, 1):
        begin, comma = f"{indent} {name}", "," if number < len(entries) else ""
        text = json.dumps(item, separators=(",", ":"))
        table = isinstance(item, list) and not rows
        if _has_entries(item) and (table or len(text) > WIDEST):
            *lines, last = _opened(item, begin)
        else:
            lines, last = [], begin + text
        yield from lines
        yield last + comma
    yield indent + ("]" if rows else "}")


def _has_entries(value: Any) -> bool:
    """Tells whether a value contains entries that are written on separate lines. Numbers and words share one line."""
    return (isinstance(value, dict) and bool(value)) or (
        isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)
    )
