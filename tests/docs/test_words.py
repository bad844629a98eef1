"""One word for each thing: the glossary defines each once, and words that were replaced do not return."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..conftest import REPOSITORY

GLOSSARY = REPOSITORY / "docs" / "glossary.md"
# What stands for each: background partition, background load, GPC, single TPC, loan.
REPLACED = re.compile(r"\b(?:the fence|fenced|hogs?|clusters? of the chip|lone pairs?|leases?)\b", re.IGNORECASE)
# Kernels speak of memory fences; comm has its own vocabulary.
LEFT_OUT = ("cuda_gctx/comm/_kernels", "cuda_gctx/sim/_cpp")
# What stands for each: reports, returns or shows; next to, compared with or in addition to.
UNIDIOMATIC = re.compile(r"(?<![.\w])(?:told|tells?|besides?)\b|def test_\w*_(?:told|tells?|beside)_\w*", re.IGNORECASE)


def texts() -> Iterator[tuple[Path, str]]:
    for path in [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").rglob("*.py"),
        *(path for path in (REPOSITORY / "tests").rglob("*.py") if path.parent != Path(__file__).parent),
    ]:
        yield path, path.read_text()
    for kind in ("py", "pyx", "pyi", "hpp", "cpp"):
        for path in (REPOSITORY / "cuda_gctx").rglob(f"*.{kind}"):
            if not str(path.relative_to(REPOSITORY)).startswith(LEFT_OUT):
                yield path, path.read_text()


def test_replaced_words_do_not_return() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {match[0]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for match in REPLACED.finditer(line)
    ]
    assert found == []


def test_sentences_use_the_usual_verbs_and_prepositions() -> None:
    folders = [REPOSITORY / name for name in ("cuda_gctx", "docs", "examples", "tests")]
    pages = [*REPOSITORY.glob("*.md"), *(path for folder in folders for path in folder.rglob("*"))]
    kinds = {".py", ".pyx", ".pxd", ".pyi", ".hpp", ".cpp", ".h", ".cuh", ".md"}
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {match[0]}"
        for path in pages
        if path.suffix in kinds and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in UNIDIOMATIC.finditer(line)
    ]
    assert found == []


def test_the_glossary_defines_each_term_once_and_in_order() -> None:
    lines = GLOSSARY.read_text().split(":sorted:")[1].splitlines()
    terms = [
        line for line, below in zip(lines, [*lines[1:], ""], strict=True) if line[:1].isalpha() and below[:2] == "  "
    ]
    assert terms == sorted(terms, key=str.casefold)
    assert len({term.casefold() for term in terms}) == len(terms)
    assert {"background partition", "GPC", "grain", "unit", "SM count hint", "claim", "loan", "store"} <= set(terms)
