"""The page Reliability, written from campaigns.json and from the soaks of cards.

    python -m tests.trust.campaigns [--soak FILE DATE]

`--soak` adds what `tests/trust/soak.py --out FILE` wrote on a card to the results first.

A row of campaigns.json is one campaign: what is tried (`what`), the command that anyone can run (`command`), how much
was really run (`amount`), and on which day (`date`). `group` is the part of the page. Campaigns that found something
say what (`found`) and have a row of a table; the others are a line.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from cuda_gctx.measure.results import write_result

from ..conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "appendix" / "reliability.md"
CAMPAIGNS = REPOSITORY / "tests" / "trust" / "campaigns.json"
MARKED = re.compile(r"(<!-- =[a-z0-9 -]+ -->)(.*?)<!-- = -->")
SOAKS = REPOSITORY / "benchmarks" / "results" / "h200-driver-13.0-soak.json"
GROUPS = {
    "answers": ("Silent answers", "Numbers and results that are wrong without an error."),
    "order": ("Crashes, hangs and order", ""),
    "failures": ("Failures and leaks", ""),
    "tests": ("Do the tests notice?", "The code is broken on purpose, and a test has to fail."),
    "card": ("On a card", ""),
}
HEAD = """---
measured: synthetic worlds, seed 7
---
# Reliability

**Never run on hardware:** {never}.
They ran on the [software driver](../software-driver.md) or on the CPU. Everything that ran on a card is in the last
part, and [what was measured there](../install.md) with its results.

Three kinds of fault count: crashes and hangs, leaks, and silently wrong answers. Amounts are those that were really
run. `make test` runs a sample of each campaign, with a fixed seed where there is one; `make test-long` runs more of
them every week. A campaign that found nothing new is a line with its command.

"""
TAIL = """## Outside

`make outside` runs ten public programs, reduced to their calls, on four drivers. `make peers` runs the
[test suites of other projects](suites.md) on the software driver:

| suite | {drivers} |
| --- | {rules} |
{rows}
"""


def outside() -> str:
    """How many tests of each suite pass, by driver version."""
    suites = [json.loads(file.read_text()) for file in sorted((REPOSITORY / "tests" / "peers").glob("*.json"))]
    drivers = sorted({driver for suite in suites for driver in suite["counts"]})

    def passed(suite: Any, driver: str) -> str:
        counts = suite["counts"].get(driver)
        return f"{counts['passed']:,} of {counts['passed'] + counts['failed']:,}" if counts else "-"

    rows = [f"| {one['name']} | {' | '.join(passed(one, driver) for driver in drivers)} |" for one in suites]
    return TAIL.format(
        drivers=" | ".join(f"driver {driver}" for driver in drivers),
        rules=" | ".join("---" for _ in drivers),
        rows="\n".join(rows),
    )


def part(group: str, campaigns: list[dict[str, str]]) -> str:
    title, text = GROUPS[group]
    lines = [f"## {title}", "", *([text, ""] if text else [])]
    lines += [soaks().rstrip(), ""] if group == "card" else []
    chosen = [one for one in campaigns if one["group"] == group]
    if found := [one for one in chosen if "found" in one]:
        lines += ["| campaign | amount | what it found |", "| --- | --- | --- |"]
        for one in found:
            lines.append(f"| {one['what']}: `{one['command']}` | {one['amount']} ({one['date']}) | {one['found']} |")
        lines.append("")
    for one in chosen:
        if "found" not in one:
            lines.append(f"- {one['what']}: `{one['command']}`, {one['amount']} ({one['date']}).")
    return "\n".join(lines).rstrip() + "\n\n"


def add_soak(file: Path, date: str) -> None:
    """Adds what a soak wrote: its first line, a line for each minute, and its result."""
    first, *rows, result = map(json.loads, file.read_text().splitlines())
    kept = ("seconds", "rounds", "device_mib", "torch_mib", "host_mib")
    run = {
        "seed": first["seed"],
        "date": date,
        "right": rows[-1]["right"],
        "wrong": result["wrong"],
        "rows": [{name: row[name] for name in kept} for row in rows],
    }
    stored = json.loads(SOAKS.read_text()) if SOAKS.exists() else {"card": first["card"], "cuda": "13.0", "runs": []}
    write_result(stored | {"runs": [*(one for one in stored["runs"] if one["seed"] != run["seed"]), run]}, SOAKS)


def soaks() -> str:
    """A row for each soak: memory is that of the last row, and how much more it is than in the row before."""
    stored = json.loads(SOAKS.read_text())
    lines = [
        "`python tests/trust/soak.py --seconds N --seed S` "
        f"on an {stored['card'].removeprefix('NVIDIA ')} with a driver of "
        f"CUDA {stored['cuda']}: random layouts, torch on four",
        "threads, switches, a graph that moves, partitions that close while results go to pinned memory,",
        "ranks that are partitions, expandable segments. Every result is compared to the bit. Runs of nine",
        "minutes have not been made. With seed 1, device memory grew between rounds 82 and 237, part of it in torch's",
        "allocator, and not in the 41 rounds after that: whether it is flat, only a longer run shows.",
        "",
        "| seed | seconds | rounds | results | wrong | device memory, MiB | host memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in stored["runs"]:
        last, right = run["rows"][-1], sum(run["right"].values()) - run["right"].get("drops", 0)
        memory = [
            ", ".join(f"{row[name]:,.0f} at {row['seconds']:.0f} s" for row in run["rows"])
            for name in ("device_mib", "host_mib")
        ]
        lines.append(
            f"| {run['seed']} ({run['date']}) | {last['seconds']:.0f} | {last['rounds']:,} | {right:,} | "
            f"{len(run['wrong'])} | {memory[0]} | {memory[1]} |"
        )
    return "\n".join(lines) + "\n\n"


def page() -> str:
    stored = json.loads(CAMPAIGNS.read_text())
    campaigns: list[dict[str, str]] = stored["campaigns"]
    assert {one["group"] for one in campaigns} <= set(GROUPS)
    parts = "".join(part(group, campaigns) for group in GROUPS if any(one["group"] == group for one in campaigns))
    watchdog = (
        "\nA test that takes longer than ten minutes ends the run with the stacks of all threads. On a GPU, each file\n"
        "of tests is a process under a time limit, and the log of one that hangs ends with them, too.\n"
    )
    text = HEAD.format(never=stored["never"]) + parts + outside() + watchdog
    return with_present_numbers(text, PAGE.read_text())


def with_present_numbers(text: str, present: str) -> str:
    """The numbers that benchmarks/tables.py writes stay as they stand on the page."""
    known = dict(MARKED.findall(present))
    return MARKED.sub(lambda found: f"{found[1]}{known.get(found[1], found[2])}<!-- = -->", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", nargs=2, metavar=("FILE", "DATE"))
    options = parser.parse_args()
    if options.soak:
        add_soak(Path(options.soak[0]), options.soak[1])
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
