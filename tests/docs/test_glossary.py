"""The glossary defines each word once, in order."""

from __future__ import annotations

from ..conftest import REPOSITORY

GLOSSARY = REPOSITORY / "docs" / "concepts.md"


def test_the_glossary_defines_each_term_once_and_in_order() -> None:
    lines = GLOSSARY.read_text().split(":sorted:")[1].splitlines()
    terms = [
        line for line, below in zip(lines, [*lines[1:], ""], strict=True) if line[:1].isalpha() and below[:2] == "  "
    ]
    assert terms == sorted(terms, key=str.casefold)
    assert len({term.casefold() for term in terms}) == len(terms)
    assert {"background partition", "GPC", "grain", "unit", "SM count hint", "claim", "loan", "store"} <= set(terms)
