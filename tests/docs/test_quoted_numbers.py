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
from .test_pages import NAVIGATION

# Pages whose every number is written by program, but for what NOT_MEASURED describes.
STRICT = [
    "../README",
    "index",
    "install",
    "which-should-i-use",
    "guarantee",
    "how-to",
]
# On the other pages, those that have a unit or a decimal point; whole numbers there are sizes of examples and codes.
# The two that are left out quote the notes of their own measurements.
OTHERS = [page for page in NAVIGATION if page not in (*STRICT, "communication", "tuning")]
NOT_PROSE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)
MEASURED = re.compile(
    r"[\d,]*\.\d|\d[\d,.]*(?:(?: to| and| or| of| instead of| against) \d[\d,.]*)?"
    r"\s?(?:%|(?:ns|us|ms|s|[KMGT]i?B(?:/s)?|times|MHz|W|requests|calls|rounds|runs|cases|instructions|kernels)\b)"
)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)*(?!\w)")
# What is no measurement: versions, and sizes that a rule, an example or the set-up of a measurement is about.
NOT_MEASURED = re.compile(
    # Versions
    r"(?:[Dd]rivers?|CUDA|C?Python|PyTorch|glibc|[Vv]ersions?|cuda[.-]core|torch|transformers|numpy|numba-cuda|[Cc]u[Pp]y"
    r"|NCCL|NVSHMEM|nvcc|Ray|Holoscan|Holoscan SDK|Kubernetes|Triton"
    r"|FlashInfer|FlashAttention|DeepGEMM|capability|PTX ISA|before|below|than|on driver"
    r"|[Ff]rom|[Uu]p to|(?:and|with|of|on|to|for|needs?|came with|an H100 with) (?=1[23]\.\d\b)|\(|Apache)\s?"
    r"\d[\d.]*(?:(?:,| to| and| or) \d[\d.]*)*(?![\d.]| ?(?:us|ns|ms|s|times|%|MiB)\b)"
    r"|1?\d\.\d+ (?:to 1?\d\.\d+(?! us)|and newer|or newer|is the version|ran on)|\| 1[23]\.\d (?=\|)"
    r"|2\.1[15](?=: | by its file)|Of the versions above, 13\.0"
    r"|Apache-2\.0|x86-64|C\+\+\d+|3\.14t|error \d+|[HAB]\d00|RTX 50[78]0|MIG \d"
    # Sizes that an example, a rule or the set-up of a measurement is about
    r"|256 MiB(?: in 16 SMs and a GEMM in 116)?|2 and 4 GPUs|16 SMs|groups of 2 SMs|0\.5 and 0\.5|1\.0 is refused"
    r"|with 100 kernels|99 %|100 %|75 % of the|below 100|below 1\b|^\d\. \*\*|200 calls|200 KiB|8192 x 8192 x 8192"
    r"|256 x 4096|10,000 requests"
    # Goals and limits
    r"|goal for making a moved graph executable is 1\.1 times|1\.3 times the raw driver call plus 50 ns"
    r"|under \d+ (?:ns|us|ms)"
    r"|no calls for \d+ ms|stands still for at most 100 ms|takes 5 us per block|about 0\.2 ms long|more than 2 %",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "benchmarks")
        module = importlib.import_module("tables")
        patch.setattr(module, "table", cache(module.table))
        yield module


@pytest.fixture(scope="module")
def quoted(tables: ModuleType) -> tuple[dict[str, str], dict[str, str]]:
    """The text of each number by its name, and where it was measured."""
    return tables.quoted.quoted(tables.results_of), tables.quoted.origins(tables.results_of)


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        ("from 12 us to", True),
        ("about 0.1 to 0.2 us more", True),
        ("next to 1.27 times", True),
        ("from 12.4 on", False),
        ("torch 2.11.0,", False),
    ],
)
def test_versions_are_told_from_measurements(words: str, measured: bool) -> None:
    [number, *_] = NUMBER.finditer(words)
    chosen = any(match.start() <= number.start() < match.end() for match in NOT_MEASURED.finditer(words))
    assert chosen is not measured
    assert measured is (MEASURED.match(words, number.start()) is not None) or not measured


def numbers_of(text: str) -> list[re.Match[str]]:
    """The numbers of the prose of a page."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    return list(NUMBER.finditer(prose))


@pytest.mark.parametrize("page", [*STRICT, *OTHERS])
def test_a_number_that_is_changed_by_hand_is_found(
    page: str, tables: ModuleType, quoted: tuple[dict[str, str], dict[str, str]]
) -> None:
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    numbers, origins = quoted

    def as_due(text: str) -> str:
        written: str = tables.page_with_results(text, numbers, None if page == "../README" else origins)
        return written

    assert as_due(text) == text
    chosen = {at for match in NOT_MEASURED.finditer(text) for at in range(*match.span())}
    written = {
        at
        for pattern in (tables.MARKED, tables.quoted.MARKED, tables.FRONT_MATTER)
        for match in pattern.finditer(text)
        for at in range(*match.span())
    }
    measured = [number for number in numbers_of(text) if page in STRICT or MEASURED.match(text, number.start())]
    assert [
        f"{text[: number.start()].count(chr(10)) + 1}: {text[number.start() - 30 : number.end() + 12]!r}"
        for number in measured
        if number.start() not in chosen | written
    ] == []
    changed = text
    for number in reversed(measured):
        if number.start() in written:
            changed = f"{changed[: number.start()]}9{number[0]}{changed[number.end() :]}"
    assert as_due(changed) == text
