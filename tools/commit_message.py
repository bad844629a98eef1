"""Checks the form of a commit message: `room: what is true now`, and the why in a body.

python tools/commit_message.py FILE     a message as git hands it to the hook commit-msg
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

COLUMNS = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: \S.*")
# What git writes itself: merges, reverts, and commits that a rebase will join with others.
OF_GIT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
SCISSORS = "# ------------------------ >8 ------------------------"


def lines_of(text: str) -> list[str]:
    """The lines of a message that git keeps, without empty ones at the ends."""
    kept = [line.rstrip() for line in text.split(SCISSORS)[0].splitlines() if not line.startswith("#")]
    return "\n".join(kept).strip("\n").split("\n")


def problems_of(text: str) -> list[str]:
    subject, *rest = lines_of(text)
    if not subject or OF_GIT.match(subject):
        return []  # git refuses an empty message itself
    found = []
    if not SUBJECT.fullmatch(subject):
        found.append("the subject must be 'room: what is true now', as in 'handles: a block owns its entry'")
    if len(subject) > COLUMNS:
        found.append(f"the subject has {len(subject)} columns, more than {COLUMNS}")
    if subject.endswith("."):
        found.append("the subject must not end with a period")
    if rest and rest[0]:
        found.append("the second line must be empty")
    # A line without spaces, such as an address, cannot be wrapped.
    long = [line for line in rest if len(line) > COLUMNS and " " in line.strip()]
    if long:
        found.append(f"{len(long)} lines of the body are longer than {COLUMNS} columns, the first: {long[0]}")
    return found


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = problems_of(Path(words[0]).read_text(encoding="utf-8"))
    for problem in found:
        print(f"commit message: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
