"""The table of the study, which README.md here and docs/appendix/serving.md show, from results.json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.entrants import ENTRANTS

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.json"
PAGES = (FOLDER / "README.md", FOLDER.parents[1] / "docs" / "appendix" / "serving.md")
BEGIN, END = "<!-- table, written by studies/serving -->", "<!-- end of table -->"
MARKED = re.compile(f"({BEGIN}\n).*?({END})", re.DOTALL)

# Wider tables do not fit a screen.
LOADS_OF_A_TABLE = 5
# Measured once, and not part of these programs any more: the commit of the results has it.
TITLES = {name: one.title for name, one in ENTRANTS.items()} | {"layers": "layers of prefill between decodes"}

Row = Mapping[str, Any]
Load = tuple[str, str, float]


def load_of(row: Row) -> Load:
    return row["model"], row["load"], row["gap_ms"]


def best_of(rows: Sequence[Row], load: Load, contender: str) -> Row | None:
    """The row of a contender that keeps most under a load; None if it was not run."""
    mine = [row for row in rows if load_of(row) == load and row["contender"] == contender]
    return max(mine, key=lambda row: row["kept"], default=None)


def rate_of(row: Row) -> str:
    """Requests per second with the first seed, and with all in parentheses."""
    by_all = f" ({row['kept_by_all']:.3g})" if "kept_by_all" in row else ""
    return f"{row['kept']:.3g}{by_all}"


def share_of(row: Row | None, best: Row) -> str:
    """What a contender keeps of the best chunked prefill, with the first seed and with all in parentheses."""
    if row is None:
        return "not run"
    kept = row["kept"] / best["kept"]
    if "below" in row:
        below = f"{row['below'] / best['kept']:.2f}"
        return f"{kept:.2f} to {below}" if kept else f"below {below}"
    both = "kept_by_all" in row and "kept_by_all" in best
    return f"{kept:.2f}" + (f" ({row['kept_by_all'] / best['kept_by_all']:.2f})" if both else "")


def table(result: Mapping[str, Any]) -> str:
    """Loads by contenders: requests per second of the best chunked prefill, and the shares that the others keep."""
    rows = result["goodput"]
    loads = list(dict.fromkeys(map(load_of, rows)))
    best = {load: row for load in loads if (row := best_of(rows, load, "chunked")) is not None}
    cells = [["", *(f"{model} {load}, {gap:g} ms" for model, load, gap in best)]]
    cells.append(["chunked prefill, requests/s", *map(rate_of, best.values())])
    for name, title in TITLES.items():
        if name != "chunked":
            cells.append([title, *(share_of(best_of(rows, load, name), best[load]) for load in best)])
    cells.insert(1, ["---"] * len(cells[0]))
    parts = [f"{result['card']}, driver {result['driver']} (CUDA {result['cuda']}), {result['date']}."]
    for first in range(1, len(cells[0]), LOADS_OF_A_TABLE):
        chosen = [[row[0], *row[first : first + LOADS_OF_A_TABLE]] for row in cells]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in chosen))
    return "\n\n".join(parts)


def with_table(page: str, text: str) -> str:
    if len(MARKED.findall(page)) != 1:
        raise SystemExit(f"a page should have one table between {BEGIN} and {END}")
    return MARKED.sub(lambda marked: f"{marked[1]}\n{text}\n\n{marked[2]}", page)


def write(*, check: bool) -> int:
    """Write the table into the pages; with check, change nothing, and return 1 where a page differs."""
    text = table(json.loads(RESULTS.read_text()))
    pages = {path: path.read_text() for path in PAGES}
    differing = [path for path, page in pages.items() if page != with_table(page, text)]
    for path in differing:
        if check:
            print(f"{path}: not as in {RESULTS.name}; run python -m serving page", file=sys.stderr)
        else:
            path.write_text(with_table(pages[path], text))
    return int(check and bool(differing))
