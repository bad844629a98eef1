"""Each page answers first: it opens with its answer in a few lines, and its tables fit a screen. The appendix
is outside of the navigation, and docs/evidence outside of the site.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..conftest import REPOSITORY
from .modules import module_of_docs

page_blocks = module_of_docs("blocks")
DOCS = REPOSITORY / "docs"
LINES_OF_AN_OPENING = 5
CHARACTERS_OF_A_LINE = 160
COLUMNS = 6
COLUMNS_OF_CODE = 82


def listed(page: str) -> list[str]:
    """The pages that the tables of contents of a page name, and those of these pages."""
    found = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                name = str((Path(page).parent / line).as_posix())
                found += [name, *listed(name)]
    return found


NAVIGATION = ["index", *listed("index")]
READ = [page for page in NAVIGATION if not page.startswith("reference/")]
APPENDIX = sorted(f"appendix/{path.stem}" for path in (DOCS / "appendix").glob("*.md"))
# Those of classes, which the pages of their groups link to.
CLASSES = sorted(f"reference/{path.parent.name}/{path.stem}" for path in (DOCS / "reference").glob("*/*.md"))


def text_of(page: str) -> str:
    """A page without its front matter, the way back to its group, and its comments."""
    text = re.sub(r"\A---\n.*?\n---\n|\A\[Reference\][^\n]*\n", "", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL)
    return re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)


def test_a_page_stands_in_the_navigation_once_or_is_of_a_class_or_in_the_appendix() -> None:
    files = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    pages = {file.as_posix() for file in files if file.parts[0] != "evidence"}
    assert len(NAVIGATION) == len(set(NAVIGATION))
    appendix = pages - {*NAVIGATION, *CLASSES}
    assert set(NAVIGATION) & set(CLASSES) == set()
    assert {page for page in appendix if not page.startswith("appendix/")} == set()
    contents = text_of("appendix/index")
    assert {f"appendix/{name}" for name in re.findall(r"\]\(([\w-]+)\.md\)", contents)} == appendix - {"appendix/index"}


@pytest.mark.parametrize("page", [*NAVIGATION, *CLASSES, *APPENDIX])
def test_a_page_opens_with_its_answer(page: str) -> None:
    title, opening = text_of(page).strip().split("\n\n")[:2]
    assert re.fullmatch(r"# .+", title), f"{page} does not begin with its title"
    assert re.match(r"[\w`*\[]", opening), f"{page} opens with something else than prose: {opening[:40]}"
    assert not opening.endswith(":"), f"{page} announces its answer: {opening[-40:]}"
    assert len(opening) <= LINES_OF_AN_OPENING * CHARACTERS_OF_A_LINE


@pytest.mark.parametrize("page", [*NAVIGATION, "../README", *APPENDIX])
def test_tables_fit_a_screen(page: str) -> None:
    rules = re.findall(r"^\|[ :|-]+\|$", text_of(page), re.MULTILINE)
    assert [rule for rule in rules if rule.count("|") - 1 > COLUMNS] == []


@pytest.mark.parametrize("page", [*NAVIGATION, *CLASSES, "../README", *APPENDIX])
def test_a_row_of_a_table_is_one_line(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in prose.splitlines() if line.startswith("|") and not line.rstrip().endswith("|")] == []


@pytest.mark.parametrize("page", [*NAVIGATION, *CLASSES, "../README"])
def test_code_is_narrow_enough_for_a_column(page: str) -> None:
    blocks = re.findall(
        r"^```(?:python|sh|c|cpp|cython|rust|cmake)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE
    )
    assert [line for block in blocks for line in block.splitlines() if len(line) > COLUMNS_OF_CODE] == []


@pytest.mark.parametrize("page", [*NAVIGATION, *CLASSES, "../README", *APPENDIX])
def test_an_output_shows_the_values_that_the_reader_came_for(page: str) -> None:
    # Lines may be left out, by a line with nothing but "...". In a line, it is part of what was printed.
    blocks = page_blocks.blocks_of((DOCS / f"{page}.md").read_text())
    outputs = [
        block for block in blocks if block.language in ("text", "console") and block.comment != page_blocks.RECORDED
    ]
    shortened = re.compile(r"(?<![(.])\.\.\.(?![).])")
    assert [
        f"{block.line + number}: {line}"
        for block in outputs
        for number, line in enumerate(block.lines, 1)
        if shortened.search(line) and line != "..."
    ] == []


def test_the_readme_is_short() -> None:
    prose = re.sub(r"```.*?```|^\|.*?$|\]\([^)]*\)", "", text_of("../README"), flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 500


# Prefill and decode on one card do not pay: one page says so, and no other divides a card into them.
ABOUT_PREFILL_AND_DECODE = {"docs/prefill-decode.md"}


def test_layouts_have_the_names_of_work_that_gains() -> None:
    files = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "examples").rglob("*.*"),
        *(REPOSITORY / "cuda_gctx").rglob("*.py"),
    ]
    files += [page for page in DOCS.rglob("*.md") if DOCS / "evidence" not in page.parents]
    layout = re.compile(r"\b(decode|prefill)=(\d|None|rest|0\.)")
    found = [file for file in files if file.is_file() and file.suffix in {".md", ".py", ".cpp", ".yaml"}]
    names = {str(file.relative_to(REPOSITORY)) for file in found if layout.search(file.read_text())}
    assert names <= ABOUT_PREFILL_AND_DECODE


def test_nothing_is_installed_by_its_name_on_an_index() -> None:
    # Until there is a release, the name belongs to whoever takes it.
    files = [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *(REPOSITORY / "examples").rglob("*.md")]
    files += [file for ending in ("py", "pyx") for file in (REPOSITORY / "cuda_gctx").rglob(f"*.{ending}")]
    lines = [f"{file}: {line}" for file in files for line in file.read_text().splitlines()]
    assert [line for line in lines if re.search(r"pip3? (install|download)[^`#]*\bcuda-gctx\b", line)] == []
