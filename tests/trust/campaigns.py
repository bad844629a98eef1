"""The page Reliability, written from campaigns.json.

    python -m tests.trust.campaigns

A row of campaigns.json is one campaign: what is tried (`what`), the command that anyone can run (`command`), how much
was really run (`amount`), and on which day (`date`). `group` is the part of the page. What never ran on hardware has a
name for the first line of the page (`never`). Campaigns that found something say what (`found`) and have a row of a
table; the others are a line.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "appendix" / "reliability.md"
CAMPAIGNS = REPOSITORY / "tests" / "trust" / "campaigns.json"
PROGRAMS = REPOSITORY / "tests" / "outside" / "test_programs.py"
PROGRAM = '@pytest.mark.parametrize("driver", DRIVERS)\n'  # each of which "make test" runs
MARKED = re.compile(r"(<!-- =[a-z0-9 -]+ -->)(.*?)<!-- = -->")
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
They ran on the [software driver](../software-driver.md) or on the CPU. [On a card](#on-a-card) has what ran on
hardware.

Randomised tests, fuzzers and stress tests look for three kinds of fault: silently wrong answers, crashes and hangs, and
leaks. The tables show how much of each campaign has run, and which faults it found. A campaign that found nothing new
is a line below the table.

All amounts are of runs that took place. `make test` runs a sample of each campaign, with a fixed seed if it has one;
`make test-long` runs more of them every week.

"""
TAIL = """## Outside

`make outside` runs public programs, reduced to their calls, and `make peers` the [test suites of other
projects](suites.md), on the software driver. This table shows how many of them pass:

| programs or tests | {drivers} |
| --- | {rules} |
{rows}
"""


def outside() -> str:
    """How many programs, and how many tests of each suite pass, by driver version."""
    suites = [json.loads(file.read_text()) for file in sorted((REPOSITORY / "tests" / "peers").glob("*.json"))]
    drivers = sorted({driver for suite in suites for driver in suite["counts"]})

    def passed(suite: Any, driver: str) -> str:
        counts = suite["counts"].get(driver)
        return f"{counts['passed']:,} of {counts['passed'] + counts['failed']:,}" if counts else "-"

    programs = PROGRAMS.read_text().count(PROGRAM)
    rows = [f"| public programs | {' | '.join(f'{programs} of {programs}' for _ in drivers)} |"]
    rows += [f"| {one['name']} | {' | '.join(passed(one, driver) for driver in drivers)} |" for one in suites]
    return TAIL.format(
        drivers=" | ".join(f"driver {driver}" for driver in drivers),
        rules=" | ".join("---" for _ in drivers),
        rows="\n".join(rows),
    )


def part(group: str, campaigns: list[dict[str, str]]) -> str:
    title, text = GROUPS[group]
    lines = [f"## {title}", "", *([text, ""] if text else [])]
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


def page() -> str:
    stored = json.loads(CAMPAIGNS.read_text())
    campaigns: list[dict[str, str]] = stored["campaigns"]
    assert {one["group"] for one in campaigns} <= set(GROUPS)
    parts = "".join(part(group, campaigns) for group in GROUPS if any(one["group"] == group for one in campaigns))
    watchdog = (
        "\nA test that takes longer than ten minutes ends the run with the stacks of all threads. On a GPU, each file\n"
        "of tests is a process under a time limit, and the log of one that hangs ends with them, too.\n"
    )
    *never, last = dict.fromkeys(one["never"] for one in campaigns if "never" in one)
    text = HEAD.format(never=f"{', '.join(never)} and {last}") + parts + outside() + watchdog
    return with_present_numbers(text, PAGE.read_text())


def with_present_numbers(text: str, present: str) -> str:
    """The numbers that benchmarks/tables.py writes stay as they stand on the page."""
    known = dict(MARKED.findall(present))
    return MARKED.sub(lambda found: f"{found[1]}{known.get(found[1], found[2])}<!-- = -->", text)


if __name__ == "__main__":
    PAGE.write_text(page())
