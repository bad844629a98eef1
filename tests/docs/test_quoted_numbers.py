"""No number of a measurement is written by hand: whichever number of the prose of a page is changed, the check of
benchmarks/tables.py finds it, except for names of versions and the sizes that an example or a rule is about.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from types import ModuleType

import pytest

from ..conftest import REPOSITORY

# The pages that quote measurements only by placeholder. What a block of code prints is compared by test_docs.py.
PAGES = [
    "README.md",
    *(
        f"docs/{page}.md"
        for page in (
            "index",
            "install",
            "which-should-i-use",
            "guarantee",
            "how-to/latency-critical-kernel",
            "how-to/communication",
        )
    ),
]
NOT_PROSE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)*(?!\w)")
# What is no measurement: versions, and sizes that a rule, an example or the set-up of a measurement is about.
NOT_MEASURED = re.compile(
    r"(?:[Dd]rivers?|CUDA|C?Python|glibc|[Vv]ersions?|cuda\.core|torch|numpy|NCCL|before|from|on driver|Apache) "
    r"\d[\d.]*(?:(?:,| to| and| or) \d[\d.]*)*"
    r"|\d+(?:\.\d+)+ (?:to \d+(?:\.\d+)+|and newer|or newer|is the version|ran on)|before \d\.\d"
    r"|Apache-2\.0|x86-64|C\+\+\d+|3\.14t|error \d+|[HAB]\d00|MIG \d"
    r"|256 MiB(?: in 16 SMs and a GEMM in 116)?|2 and 4 GPUs|16 SMs|groups of 2 SMs"
    r"|99 % use|75 % of the|below 100|^\d\. \*\*",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "benchmarks")
        module = importlib.import_module("tables")
        patch.setattr(module, "table", cache(module.table))
        yield module


def numbers_of(text: str) -> list[re.Match[str]]:
    """The numbers of the prose of a page."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    return list(NUMBER.finditer(prose))


@pytest.mark.parametrize("page", PAGES)
def test_a_number_that_is_changed_by_hand_is_found(page: str, tables: ModuleType) -> None:
    text = (REPOSITORY / page).read_text()
    quoted = tables.quoted.quoted(tables.results_of)
    assert tables.page_with_results(text, quoted) == text
    chosen = {at for match in NOT_MEASURED.finditer(text) for at in range(*match.span())}
    missed = []
    for number in numbers_of(text):
        changed = f"{text[: number.start()]}9{number[0]}{text[number.end() :]}"
        if tables.page_with_results(changed, quoted) == changed and number.start() not in chosen:
            missed.append(
                f"{text[: number.start()].count(chr(10)) + 1}: {text[number.start() - 30 : number.end() + 12]!r}"
            )
    assert missed == []
