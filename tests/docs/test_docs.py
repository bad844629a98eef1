"""What the pages and the examples show is what happens: every block of Python on a page of the repository is run, and
every example.

The blocks of a page run in order, in one namespace, on a simulated H200 with driver 13.0 that is checked for leaks when
the page is over. A ``text`` block right below a block of Python is what that block prints, a ``console`` block shows
``$ python ...`` and ``$ cuda-gctx ...`` commands with what they print. docs/blocks.py knows what a comment on the line
before a block changes. Blocks that need a GPU are run there by docs/run_on_gpu.py;
here, each of their names has to come from somewhere. Commands in ``sh`` blocks are not run.
"""

from __future__ import annotations

import atexit
import builtins
import dis
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from ..conftest import REPOSITORY
from .modules import module_of_docs

page_blocks = module_of_docs("blocks")
Block, blocks_of = page_blocks.Block, page_blocks.blocks_of
NUMBERS_VARY, LIKE = page_blocks.NUMBERS_VARY, page_blocks.LIKE
on_a_gpu = page_blocks.on_a_gpu
DOCS = REPOSITORY / "docs"
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(page for page in DOCS.rglob("*.md") if DOCS / "evidence" not in page.parents),
    *sorted((REPOSITORY / "examples").glob("*.md")),
]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
DRIVERS = ["12.4", "13.0", "13.1", "13.4"]
CHILD_LIMIT_S = 120
PROGRAMS = {"python": [sys.executable], "cuda-gctx": [sys.executable, "-m", "cuda_gctx.cli"]}

# Imports the package once, and torch for pages that use it, and runs each page in a fork: takes a line of JSON for each
# page on the standard input, and writes one to the standard output.
RUN_PAGES = f"""
import contextlib, gc, importlib, io, json, os, signal, sys, tempfile, traceback
import cuda_gctx.partitions
from cuda_software_driver import session

def run(page):
    names = {{"__name__": "__main__"}}
    printed = []
    problem = None
    try:
        with session("h200", driver="13.0"):
            for line, source in page["blocks"]:
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    # As many empty lines in front as the page has, so that a traceback names the line of the page.
                    exec(compile("\\n" * line + source, page["name"], "exec"), names)
                printed.append(out.getvalue())
            names.clear()
            gc.collect()
    except BaseException:
        problem = traceback.format_exc()
    return {{"printed": printed, "problem": problem}}

for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            signal.alarm({CHILD_LIMIT_S})
            os.dup2(errors.fileno(), 2)
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)  # pages write files
                json.dump(run(json.loads(line)), answer)
            sys.exit()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer.seek(0)
        errors.seek(0)
        print(json.dumps([status, errors.read(), answer.read()]), flush=True)
"""


def pages_with(kind: str) -> list[Path]:
    """The pages that have blocks to run of one language, or files of tests ("pytest")."""
    return [page for page in PAGES if any(block.kind == kind for block in blocks_of(page.read_text()))]


def as_shown(shown: str, printed: str, comment: str = "") -> bool:
    """Whether `printed` is what a page shows, by the comment on the line before it."""
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    shown = shown.strip()
    if comment.startswith(LIKE):
        pattern = comment.removeprefix(LIKE)
        return all(matches(pattern, " ".join(text.split())) for text in (shown, lines))
    if comment == NUMBERS_VARY:
        shown, lines = (re.sub(r"\d+(?:\.\d+)?", "0", re.sub(" +", " ", text)) for text in (shown, lines))
    return matches(shown, lines)


def matches(pattern: str, text: str) -> bool:
    """Whether a text is a pattern, in which "..." stands for any text."""
    return re.fullmatch(".*?".join(map(re.escape, pattern.split("..."))), text, re.DOTALL) is not None


# pytest on a page warns of editable installs, which have imported a module before.
QUIET = "-W 'ignore:Module already imported:pytest.PytestAssertRewriteWarning'"


def child(*command: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_LIMIT_S,
        env={**os.environ, "COLUMNS": "200", "PYTEST_ADDOPTS": QUIET, **environment},
    )


@cache
def page_runner(*modules: str) -> subprocess.Popen[str]:
    """modules: what it imports for all its pages."""
    runner = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RUN_PAGES, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    atexit.register(runner.communicate)  # closes its standard input, which ends it
    return runner


def run_page(name: str, blocks: list[Block]) -> list[str]:
    request = {"name": name, "blocks": [(block.line, block.text) for block in blocks]}
    runner = page_runner(*(["torch"] if any(block.kind == "cpu" for block in blocks) else []))
    assert runner.stdin
    assert runner.stdout
    print(json.dumps(request), file=runner.stdin, flush=True)
    status, errors, text = json.loads(runner.stdout.readline())
    assert status == 0, f"the child of {name} ended with {status}: {errors}"
    answer = json.loads(text)
    assert answer["problem"] is None, f"{name}:\n{answer['problem']}"
    printed: list[str] = answer["printed"]
    return printed


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@cache
def headings(path: Path) -> frozenset[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_on_a_page_runs_and_prints_what_the_page_shows(page: Path) -> None:
    runs_as_shown(page, "python")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("page", pages_with("cpu"), ids=name_of)
def test_torch_on_the_cpu_prints_what_the_page_shows(page: Path) -> None:
    runs_as_shown(page, "cpu")


def runs_as_shown(page: Path, kind: str) -> None:
    found = [block for block in blocks_of(page.read_text()) if block.kind == kind]
    for block, printed in zip(found, run_page(name_of(page), found), strict=True):
        if block.below is not None and block.below.language == "text":
            shown = block.below.text
            assert as_shown(shown, printed, block.below.comment), (
                f"{name_of(page)}:{block.line} shows\n{shown}\nbut prints\n{printed}"
            )


@pytest.mark.parametrize("page", pages_with("console"), ids=name_of)
def test_commands_on_a_page_print_what_the_page_shows(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        if block.kind != "console":
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            program, *words = shlex.split(command)
            assert program in PROGRAMS, f"{name_of(page)}:{block.line}: only {', '.join(PROGRAMS)} can be shown"
            # A program that such a command starts is named in full as well.
            words = [sys.executable if word == "python" else word for word in words]
            words = [str(REPOSITORY / word) if word.startswith("examples/") else word for word in words]
            done = child(*PROGRAMS[program], *words, CUDA_GCTX_DRIVER="sim:h200@13.0")
            assert done.returncode == 0, f"{command}: {done.stderr}"
            printed = done.stdout
            assert as_shown(shown, printed, block.comment), (
                f"{name_of(page)}:{block.line} shows\n{shown}\nbut prints\n{printed}"
            )


@pytest.mark.parametrize("page", pages_with("pytest"), ids=name_of)
def test_test_files_on_a_page_pass(page: Path, tmp_path: Path) -> None:
    blocks = {f"test_line_{one.line}.py": one for one in blocks_of(page.read_text()) if one.kind == "pytest"}
    for file, block in blocks.items():
        (tmp_path / file).write_text(block.text)
    plugin = () if plugin_is_registered() else ("-p", "cuda_software_driver.pytest_plugin")
    done = child(sys.executable, "-m", "pytest", "-q", "-rp", *plugin, "--rootdir", str(tmp_path), str(tmp_path))
    assert done.returncode == 0, f"{name_of(page)}:\n{done.stdout}\n{done.stderr}"
    passed = {Path(name).name for name in re.findall(r"^PASSED (.*?)::", done.stdout, re.MULTILINE)}
    assert passed == blocks.keys()


def plugin_is_registered() -> bool:
    from importlib.metadata import entry_points

    return any(entry.value == "cuda_software_driver.pytest_plugin" for entry in entry_points(group="pytest11"))


def names_in(code: CodeType, *, stored: bool) -> set[str]:
    """The names that a module assigns, or those that it reads as global ones, its functions included."""
    kinds = ("STORE_NAME",) if stored else ("LOAD_NAME", "LOAD_GLOBAL")
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in kinds}
    if not stored:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                found |= names_in(inner, stored=False) - names_in(inner, stored=True)
    return found


def unknown_names(sources: list[str]) -> set[str]:
    """The names that pieces of code read before one of them, in this order, has made them."""
    known = {*dir(builtins), "__name__"}
    unknown: set[str] = set()
    for source in sources:
        code = compile(source, "a block", "exec")
        known |= names_in(code, stored=True)
        unknown |= names_in(code, stored=False) - known
    return unknown


@pytest.mark.parametrize("page", pages_with("gpu"), ids=name_of)
def test_a_block_that_needs_a_gpu_uses_only_what_the_page_has(page: Path) -> None:
    text = page.read_text()
    assert unknown_names([block.text for block in on_a_gpu(text)]) == set()


def test_names_that_nothing_makes_are_found() -> None:
    assert unknown_names(["import os\nx = 1\n", "def f(y):\n    return x + y + z\n", "print(f(x), w)\n"]) == {"z", "w"}
    assert unknown_names(["print(x)\n", "x = 1\n"]) == {"x"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_does_not_run_has_a_reason(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        if block.comment.startswith("not run"):
            assert re.match(r"not run: \w", block.comment), (
                f"{name_of(page)}:{block.line}: not run, and no reason given"
            )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_refers_only_to_what_is_there(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name_of(page)} refers to {target}, which does not exist"
        assert not heading or heading in headings(path), f"{name_of(page)} refers to {target}: no such heading"
    for code in re.findall(r"`((?:tests|docs|examples|benchmarks|cuda_gctx)/[\w./-]*)`", prose):
        assert (REPOSITORY / code).exists(), f"{name_of(page)} names {code}, which does not exist"


@pytest.mark.parametrize(
    ("example", "driver"),
    [
        pytest.param(example, driver, marks=() if number % len(DRIVERS) == at else pytest.mark.long)
        for number, example in enumerate(EXAMPLES)
        for at, driver in enumerate(DRIVERS)
    ],
    ids=lambda value: name_of(value) if isinstance(value, Path) else value,
)
def test_an_example_runs_and_says_that_it_is_simulated(example: Path, driver: str) -> None:
    done = child(sys.executable, "-W", "error", str(example), CUDA_GCTX_DRIVER=f"sim:h200@{driver}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not done.stderr
    assert "simulated" in done.stdout


@pytest.mark.gpu_only
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs_on_the_gpu(example: Path) -> None:
    done = child(sys.executable, "-W", "error", str(example))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "simulated" not in done.stdout


def test_a_block_that_raises_fails_its_page() -> None:
    for source, words in [
        ("raise KeyError('x')\n", "KeyError"),
        (
            "import cuda_gctx\nleak = cuda_gctx.Device().create_stream()\nkeep = [leak.handle]\nraise SystemExit\n",
            "SystemExit",
        ),
    ]:
        with pytest.raises(AssertionError, match=words):
            run_page("a page", [Block("python", 1, "", source.splitlines())])


def test_a_page_that_leaks_fails() -> None:
    source = "import ctypes, sys\nfrom cuda_gctx import Device, system\nDevice().set_current()\n"
    source += "ctypes.CDLL(system.driver_path).cuStreamCreate(ctypes.byref(ctypes.c_void_p()), 1)\n"
    with pytest.raises(AssertionError, match=r"LedgerError[\s\S]*stream"):
        run_page("a page", [Block("python", 1, "", source.splitlines())])


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("16", "16\n", True),
        ("16", "160\n", False),
        ("<Stream ... of context 5>", "<Stream 0x4c0008000040 of context 5>\n", True),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a.b", "axb", False),
    ],
)
def test_outputs_are_compared_in_full(shown: str, printed: str, same: Any) -> None:
    assert as_shown(shown, printed) is same


def test_other_numbers_are_as_good_where_a_page_says_so() -> None:
    page = "```python\nx\n```\n\n<!-- numbers vary -->\n```text\n16 SMs, 2.5 ms\n```\n"
    [code, output] = blocks_of(page)
    assert code.below is output
    assert as_shown(output.text, "8 SMs, 31 ms\n", output.comment)
    assert not as_shown(output.text, "8 SMs, 31 us\n", output.comment)


def test_a_run_is_shown_in_full_where_the_next_one_is_only_like_it() -> None:
    page = "```python\nx\n```\n\n<!-- like: choice: a=16...; ...x -->\n```text\nchoice: a=16, b=116;  1.9x\n```\n"
    [code, output] = blocks_of(page)
    assert code.below is output
    assert as_shown(output.text, "choice: a=16, b=112; 1.8x\n", output.comment)
    assert not as_shown(output.text, "choice: a=8, b=124; 1.8x\n", output.comment)
    assert not as_shown("choice: a=8; 1x", "choice: a=16, b=112; 1.8x\n", output.comment)


def test_every_kind_of_block_is_found() -> None:
    blocks = blocks_of(
        "a\n```python\nx\n```\n\n```text\ny\n```\nb\n<!-- not run: why -->\n```python\nz\n```\n```text\n```\n"
    )
    assert [block.language for block in blocks] == ["python", "text", "python", "text"]
    assert blocks[0].below is blocks[1]
    assert blocks[1].below is None
    assert (blocks[2].kind, blocks[2].line, blocks[2].text) == ("", 11, "z\n")
