"""Tables with aligned columns, ranges of integers and durations, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["UNITS", "duration", "in_words", "ranges", "spread", "table"]

UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


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


def in_words(ns: float) -> str:
    """A duration with a suitable unit and four digits, for reports of one run."""
    name, size = next((unit for unit in reversed(UNITS) if abs(ns) >= unit[1]), UNITS[0])
    return f"{ns / size:.4g} {name}"


def duration(ns: float) -> str:
    """A duration with a suitable unit and three digits, for tables of calls."""
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        value = ns / size
        if value < 999.5 or unit == "ms":
            return f"{value:.{0 if value >= 99.95 or unit == 'ns' else 1 if value >= 9.995 else 2}f} {unit}"
    raise AssertionError("unreachable")


def spread(ns: Mapping[str, float]) -> str:
    """A median, with the 10th and the 90th percentile in parentheses."""
    return f"{duration(ns['median'])} ({duration(ns['p10'])} to {duration(ns['p90'])})"
