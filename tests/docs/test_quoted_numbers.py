"""No number is written by hand: whichever number of the prose of a page is changed, a check finds it.

A number stands where benchmarks/tables.py writes it from results, or in the page's own code or output, which other
tests run, or in a sentence of settings.py. Left are versions, dates and the names of products.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from types import ModuleType

import pytest

from ..conftest import REPOSITORY
from .settings import SETTINGS, settings_of
from .test_pages import CLASSES, NAVIGATION

# Pages on which a number of an example is no reason for the same number in a sentence.
STRICT = ["../README", "index", "install", "which-should-i-use", "guarantee", "how-to"]
PAGES = ["../README", *NAVIGATION, *CLASSES]
NOT_PROSE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)*(?!\w)")
# A number with a unit, or with a decimal point: a measurement, whatever an example prints.
MEASURED = re.compile(
    r"[\d,]*\.\d|\d[\d,.]*(?:(?: to| and| or| of| instead of| against) \d[\d,.]*)?"
    r"\s?(?:%|(?:ns|us|ms|s|[KMGT]i?B(?:/s)?|times|MHz|W|requests|calls|rounds|runs|cases|instructions|kernels)\b)"
)
# Versions, dates and products.
NAMES = re.compile(
    r"(?<!\d)\d{4}-\d\d-\d\d|(?:August) 20\d\d"
    r"|(?:[Dd]rivers?|CUDA|C?Python|PyTorch|glibc|[Vv]ersions?|cuda[.-]core|torch|transformers|numpy|numba-cuda|[Cc]u[Pp]y"
    r"|NCCL|NVSHMEM|nvcc|Ray|Holoscan|Holoscan SDK|Kubernetes|Triton"
    r"|FlashInfer|FlashAttention|DeepGEMM|capability|PTX ISA|before|below|than|on driver"
    r"|[Ff]rom|[Uu]p to|(?:and|with|of|on|to|for|needs?|came with|an H100 with) (?=1[23]\.\d\b)|\(|Apache)\s?"
    r"(?!\d{4}-)\d[\d.]*(?:(?:,| to| and| or) (?!\d{4}-)\d[\d.]*)*(?![\d.]| ?(?:us|ns|ms|s|times|%|MiB)\b)"
    r"|1?\d\.\d+ (?:to 1?\d\.\d+(?! us)|and newer|or newer|is the version|ran on)|\| 1[23]\.\d (?=\|)"
    r"|2\.1[15](?=: | by its file)|Of the versions above, 13\.0|only 9\.0 has been run"
    r"|Apache-2\.0|x86-64|C\+\+\d+|3\.14t|error \d+|[HAB]\d00|RTX 50[78]0(?: and 50[78]0)?|MIG \d|cuda-python \d+"
    # The head of an item of a list, and of a step
    r"|^\d\. |^## \d\. ",
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
    named = any(match.start() <= number.start() < match.end() for match in NAMES.finditer(words))
    assert named is not measured
    assert measured is (MEASURED.match(words, number.start()) is not None) or not measured


def numbers_of(text: str) -> list[re.Match[str]]:
    """The numbers of the prose of a page."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    return list(NUMBER.finditer(prose))


def places(pattern: re.Pattern[str], text: str) -> set[int]:
    return {at for match in pattern.finditer(text) for at in range(*match.span())}


def written_by_hand(page: str, text: str, written: set[int]) -> list[re.Match[str]]:
    """The numbers of a page that no check would miss if they were others; `written`: what the tables write."""
    held = written | places(NAMES, text)
    for setting in settings_of(page):
        held |= places(re.compile(re.escape(setting).replace(r"\ ", r"\s+")), text)
    code = set() if page in STRICT else set(NUMBER.findall(" ".join(CODE.findall(text))))
    return [
        number
        for number in numbers_of(text)
        if number.start() not in held and (number[0] not in code or MEASURED.match(text, number.start()))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_number_that_is_changed_by_hand_is_found(
    page: str, tables: ModuleType, quoted: tuple[dict[str, str], dict[str, str]]
) -> None:
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    numbers, origins = quoted

    def as_due(text: str) -> str:
        due: str = tables.page_with_results(text, numbers, None if page == "../README" else origins)
        return due

    assert as_due(text) == text
    written = {
        at for pattern in (tables.MARKED, tables.quoted.MARKED, tables.FRONT_MATTER) for at in places(pattern, text)
    }
    assert [
        f"{text[: number.start()].count(chr(10)) + 1}: {text[max(0, number.start() - 30) : number.end() + 12]!r}"
        for number in written_by_hand(page, text, written)
    ] == []
    # Each number in turn would be noticed: those that are written all at once, the others one by one.
    changed = text
    named = places(NAMES, text)
    unnoticed = []
    for number in reversed(numbers_of(text)):
        start, other = number.start(), f"97{number[0]}"
        if start in written:
            changed = f"{changed[:start]}{other}{changed[number.end() :]}"
        elif start not in named:
            one = f"{text[:start]}{other}{text[number.end() :]}"
            if not written_by_hand(page, one, {at + 2 * (at > start) for at in written}):
                unnoticed.append(f"{number[0]} at {text[:start].count(chr(10)) + 1}")
    assert as_due(changed) == text
    assert unnoticed == []


def test_each_setting_stands_on_its_page() -> None:
    missing = [
        f"{page}: {setting}"
        for page in SETTINGS
        for setting in settings_of(page)
        if setting not in " ".join((REPOSITORY / "docs" / f"{page}.md").read_text().split())
    ]
    assert missing == []
