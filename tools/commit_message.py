"""Checks the form of a commit message: `room: imperative verb, noun`, an empty line, and a body that says why.

python tools/commit_message.py FILE     FILE: a message as git passes it to the hook commit-msg
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

COLUMNS = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*: (\S+).*")
# First words that are no verb, and endings of verbs that report: "fixed" and "fixes", but not "need" and "pass".
NO_VERBS = {"a", "no", "nothing", "of", "that", "the", "what"}
NO_IMPERATIVE = re.compile(r"\w+(?:[^e]ed|[^s]s)")
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
    parts = SUBJECT.fullmatch(subject)
    if parts is None:
        found.append("the subject must be 'room: imperative verb, noun', as in 'core: find entries below open blocks'")
    elif parts[1].lower() in NO_VERBS or NO_IMPERATIVE.fullmatch(parts[1]):
        found.append(
            f"the subject must begin with a verb after the colon, as in 'core: find entries', not {parts[1]!r}"
        )
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
