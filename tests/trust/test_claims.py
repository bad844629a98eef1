"""Each sentence of README and of all pages that says "never", or "on all" or "every" driver, rank, card or thread,
names the tests that hold it: claims.json.

tests/docs/test_guarantees.py does the same for each row and item of the pages of guarantees.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache

import pytest

from ..conftest import REPOSITORY

CLAIMS = REPOSITORY / "tests" / "trust" / "claims.json"
WORDS = re.compile(
    r"\bnever\b|\bon (all|every|each|any) (other )?(drivers?|ranks?|cards?|threads?|process(es)?|of them)\b|"
    r"\bthe same on (all|every|each|any)\b",
    re.IGNORECASE,
)
# What a contributor does stands there with its commands.
ELSEWHERE = "\n## Building\n"


def sentences(text: str) -> list[str]:
    text = re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    blocks = [
        " ".join(part.split())
        for block in re.split(r"\n\s*\n", text)
        for part in re.split(r"\n(?=\s*[-*|#]|\s*\d+\. )", block)
    ]
    return [sentence for block in blocks for sentence in re.split(r"(?<=[.:;!?]) (?=[A-Z`*])", block)]


def claims_of_the_pages() -> dict[str, list[str]]:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    found = {
        str(page.relative_to(REPOSITORY)): [
            one for one in sentences(page.read_text().partition(ELSEWHERE)[0]) if WORDS.search(one)
        ]
        for page in pages
    }
    return {page: claims for page, claims in found.items() if claims}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / "tests" / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def held() -> dict[str, dict[str, list[str] | str]]:
    """Of each page, the beginning of each claim and its tests, or why it has none."""
    found: dict[str, dict[str, list[str] | str]] = json.loads(CLAIMS.read_text())
    return found


def missing(pages: dict[str, list[str]], ledger: dict[str, dict[str, list[str] | str]]) -> list[str]:
    return [
        f"{page}: {claim}"
        for page, claims in pages.items()
        for claim in claims
        if not any(claim.startswith(begin) for begin in ledger.get(page, {}))
    ]


def test_every_claim_names_its_tests() -> None:
    assert missing(claims_of_the_pages(), held()) == []


def test_the_ledger_has_nothing_else_and_its_tests_exist() -> None:
    pages = claims_of_the_pages()
    gone = [
        f"{page}: {begin}"
        for page, claims in held().items()
        for begin in claims
        if not any(claim.startswith(begin) for claim in pages.get(page, []))
    ]
    assert gone == []
    tests = [
        name for claims in held().values() for names in claims.values() if isinstance(names, list) for name in names
    ]
    assert [name for name in tests if name.split("::")[1] not in names_in(name.split("::")[0])] == []
    assert len(tests) > 40


@pytest.mark.parametrize("claim", ["A stream is never lost.", "It works on every driver from 12.4 on."])
def test_a_claim_without_a_test_is_found(claim: str) -> None:
    assert missing({"docs/guide.md": sentences(f"# Guide\n\nSome text. {claim}\n")[-1:]}, held()) == [
        f"docs/guide.md: {claim}"
    ]
