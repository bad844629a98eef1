"""The tables of measured results, as the terminal and docs/performance.md show them.

    python benchmarks/tables.py            writes the tables into docs/performance.md
    python benchmarks/tables.py --check    fails where the page differs from the results

Every number of that page comes from a JSON file of benchmarks/results, through this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "performance.md"
BEGIN = "<!-- tables: written by benchmarks/tables.py -->"
END = "<!-- end of tables -->"
CONTESTANTS = {"raw": "raw, in C", "cuda_gctx": "cuda_gctx", "cuda.core": "cuda.core", "torch": "torch"}

Result = dict[str, Any]


def duration(ns: float) -> str:
    """A time in the unit that a person would choose, with three digits."""
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        value = ns / size
        if value < 999.5 or unit == "ms":
            return f"{value:.{0 if value >= 99.95 or unit == 'ns' else 1 if value >= 9.995 else 2}f} {unit}"
    raise AssertionError("unreachable")


def spread(ns: dict[str, float]) -> str:
    return f"{duration(ns['median'])} ({duration(ns['p10'])} to {duration(ns['p90'])})"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head, aligned so that it reads as plain text too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def ratio(call: Result, other: str) -> str:
    ours, theirs = (call["contestants"].get(name, {}).get("ns") for name in ("cuda_gctx", other))
    return f"{ours['median'] / theirs['median']:.2f}" if ours and theirs else ""


def target(call: Result) -> str:
    missed = [entry["what"] for entry in call["targets"] if not entry["met"]]
    return "missed: " + "; ".join(missed) if missed else "met" if call["targets"] else ""


def times_table(result: Result) -> str:
    """One row per call. The software driver's own times say nothing of a GPU: no ratio and no verdict then."""
    judged = not result["simulated"]
    rows = [["call", *CONTESTANTS.values(), *(("to raw", "to cuda.core", "target") if judged else ())]]
    for call in result["calls"]:
        cells = []
        for name in CONTESTANTS:
            contestant = call["contestants"].get(name, {})
            cells.append(
                spread(contestant["ns"]) if "ns" in contestant else "refused" if "refused" in contestant else ""
            )
        verdict = (ratio(call, "raw"), ratio(call, "cuda.core"), target(call)) if judged else ()
        rows.append([call["title"], *cells, *verdict])
    return markdown(rows)


def what_table(result: Result) -> str:
    rows = [["call", *CONTESTANTS.values()]]
    for call in result["calls"]:
        cells = [call["contestants"].get(name, {}).get("does", "") for name in CONTESTANTS]
        rows.append([call["title"], *(f"`{cell}`" if cell else "" for cell in cells)])
    return markdown(rows)


def import_table(result: Result) -> str:
    rows = [["statement", "time beyond a bare interpreter", "frameworks loaded", "target"]]
    for entry in result["imports"]:
        frameworks = ", ".join(entry["frameworks"]) or "none"
        rows.append([f"`{entry['does']}`", spread(entry["ns"]), frameworks, target(entry)])
    return markdown(rows)


def refusals(result: Result) -> str:
    """Who did not take part in what, and the reason in its own words; empty if all took part."""
    titles: dict[tuple[str, str], list[str]] = {}
    for call in result["calls"]:
        for name, contestant in call["contestants"].items():
            if "refused" in contestant:
                titles.setdefault((name, contestant["refused"]), []).append(call["title"])
    return "\n".join(f"- {name}, {'; '.join(where)}: {reason}" for (name, reason), where in titles.items())


def floors(result: Result) -> str:
    """What Python itself takes, where that is a large part of the time."""
    return "\n".join(
        f"- {call['title']}: `{entry['does']}`, an empty block over an object in C, takes {spread(entry['ns'])} here."
        for call in result["calls"]
        if (entry := call["contestants"].get("python"))
    )


def machine(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    driver = "the software driver" if result["simulated"] else f"driver {result['driver'] or 'of unknown version'}"
    return (
        f"{result['card']}, {result['sm_count']} SMs, {driver} (CUDA {result['cuda']}), {result['cpu']}, "
        f"Python {result['python']}, {versions}; {result['date']}."
    )


def report(result: Result) -> str:
    parts = [machine(result), times_table(result), import_table(result)]
    if floor := floors(result):
        parts.insert(2, f"What Python itself takes:\n\n{floor}")
    if refused := refusals(result):
        parts.insert(2, f"Refused:\n\n{refused}")
    return "\n\n".join(parts)


def page_section(result: Result) -> str:
    title = f"### {result['card']}, CUDA {result['cuda']}"
    return "\n\n".join([title, report(result), "What was called:", what_table(result)])


def page_tables() -> str:
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*-calls.json"))]
    simulated = [result["card"] for result in results if result["simulated"]]
    if simulated:
        raise SystemExit(f"{RESULTS} holds simulated results ({', '.join(simulated)}): remove them")
    return "\n\n".join(map(page_section, results)) or "No card has been measured yet."


def page_with_tables(page: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} lacks one of its markers:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{page_tables()}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/performance.md from benchmarks/results.")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where the page differs")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    due = page_with_tables(page)
    if arguments.check and page != due:
        print(f"{PAGE} differs from benchmarks/results: run python benchmarks/tables.py", file=sys.stderr)
        return 1
    if not arguments.check:
        PAGE.write_text(due)
    return 0


if __name__ == "__main__":
    sys.exit(main())
