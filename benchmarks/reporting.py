"""The folder of results, and tables in Markdown: shared by the benchmarks and by render.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_gctx.measure.results import file_name, folder_of_results, write_result

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"

Result = dict[str, Any]


def write(result: Result, subject: str, folder: Path | None) -> Path:
    """Writes the result of a benchmark as JSON, into benchmarks/results if no folder is given."""
    return write_result(result, folder_of_results(folder, RESULTS) / file_name(result, subject))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table whose first row is the head, aligned as plain text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def machine(result: Result) -> str:
    """Returns one sentence with the card, the driver, the host, the versions and the date of a result."""
    versions = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    driver = "the software driver" if result["simulated"] else f"driver {result['driver'] or 'of unknown version'}"
    return (
        f"{result['card']}, {result['sm_count']} SMs, {driver} (CUDA {result['cuda']}), {result['cpu']}, "
        f"Python {result['python']}, {versions}; {result['date']}."
    )
