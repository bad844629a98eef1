"""Counts the words of prose on the pages of users: without code, tables, comments and the software driver's own pages.

python tools/words.py
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# The pages of another product.
OTHERS = {"software-driver.md", "simulated-time.md"}


def pages_of_users() -> list[Path]:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    return [page for page in pages if page.name not in OTHERS]


def prose_of(text: str) -> str:
    """A page without comments, code, tables and the targets of links."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(```|:::).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\s*\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def words_of(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", prose_of(text)))


def main() -> None:
    counts = {page.name: words_of(page.read_text()) for page in pages_of_users()}
    for name, count in sorted(counts.items(), key=lambda entry: -entry[1]):
        print(f"{count:6} {name}")
    print(f"{sum(counts.values()):6} together")


if __name__ == "__main__":
    main()
