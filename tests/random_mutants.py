"""Mutants of the Python rooms and of the planner, chosen by a seed: how many of them does a test of their room notice?

    python tests/random_mutants.py [--count 150] [--seed 42] [--rooms partitions,planner] [--jobs 1] [--out FILE]

A mutant is one change of an expression: a comparison, `and` for `or`, a condition without its `not`, a number that is
one larger, True for False, a sum for a difference, or None for what is returned. The seed ranks the places by their
lines, so that a change of the sources draws others only for the lines that are gone. Each is tried with the tests of
its room that run the changed line, quickest first, and with those that start processes (see tests/callers.py); what is
run at import, with all tests of the room. JOBS are tried at the same time. The planner is C++, and is built anew for
each of its mutants, one after the other, as in tests/native_mutants.py. A line of JSON follows each. What survived has
to be looked at: tests/survivors.json says of each that was seen why it changes nothing that a user would notice, or
which test notices it now.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from tests import callers, native_mutants
from tests.mutants import PACKAGE, REPOSITORY, failed_test

ROOMS = {
    "partitions": "tests/partitions",
    "interop": "tests/interop tests/compat",
    "compat": "tests/compat tests/interop/test_torch.py",
    "measure": "tests/measure tests/tune/test_intervals.py tests/tune/test_ranking.py tests/house/test_results.py",
    "tune": "tests/tune",
}
# The planner's sources, and what is tried with their mutants.
PLANNER = "planner"
PLANNER_SOURCES, LIBRARY = "_cpp/resources", "libcuda_gctx.so"
COMPILER = "(the compiler)"
ONE_BUILD = threading.Lock()
ROOMS[PLANNER] = (
    "tests/core/test_split.py tests/core/test_split_oracle.py tests/core/test_split_raw_values.py "
    "tests/core/test_split_contexts.py tests/core/test_overlap.py tests/core/test_workqueue.py "
    "tests/core/test_device.py tests/core/test_bad_input.py tests/core/test_versions.py tests/partitions"
)
# In sources that clang-format has written, an operator with two sides stands between blanks.
OTHER_CXX = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
    "*": "/", "/": "*", "%": "/", "true": "false", "false": "true", "!": "",
}  # fmt: skip
OPERATOR_CXX = re.compile(
    r"(?<= )(?:[<>=!]=|[<>+*/%-]|&&|\|\|)(?= )|\b(?:true|false)\b|!(?=[\w(])|(?<![\w.'])\d+(?![\w.'])"
)
# What holds no code: comments, texts, and lines for the preprocessor or the compiler alone.
NO_CODE_CXX = re.compile(r'//.*|"(?:\\.|[^"\\])*"|^#.*|^template.*|static_assert\(.*', re.MULTILINE)
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


class Site(NamedTuple):
    """A change: what stands from one byte of a file to another becomes something else."""

    room: str
    file: str
    line: int
    begin: int
    end: int
    new: str
    function: int | None  # the first line of the function around it

    def old(self) -> str:
        return (REPOSITORY / "cuda_gctx" / self.file).read_bytes()[self.begin : self.end].decode()

    def rank(self, seed: int) -> str:
        return hashlib.sha256(f"{seed} {self}".encode()).hexdigest()

    def __str__(self) -> str:
        """The text of its lines, which changes with the mutant, and not their numbers, which change with all else."""
        text = (REPOSITORY / "cuda_gctx" / self.file).read_bytes()
        before = text[text.rfind(b"\n", 0, self.begin) + 1 : self.begin].decode()
        after = text[self.end : text.find(b"\n", self.end)].decode()
        return f"{self.file}: " + " ".join(f"{before}[{self.old()} -> {self.new}]{after}".split())


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may become."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [OTHER[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(OTHER[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER:
        if not any(isinstance(side, (ast.JoinedStr, ast.Constant)) and not is_number(side) for side in ast.walk(node)):
            yield ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif is_number(node) and isinstance(node, ast.Constant):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
        yield ast.Return(ast.Constant(None))


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def left_out(tree: ast.Module) -> set[ast.AST]:
    """Annotations, text of formats, what type checkers read, and bodies that only say what a class is for."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [
                node.returns,
                *(argument.annotation for argument in ast.walk(node.args) if isinstance(argument, ast.arg)),
            ]
            parts += node.body if node.name in ("__repr__", "__str__") else []
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif (
            isinstance(node, (ast.JoinedStr, ast.Raise))
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            or (isinstance(node, ast.Assign) and "__all__" in ast.unparse(node))
        ):
            parts = [node]
        for part in parts:
            found.update(ast.walk(part) if part is not None else ())
    return found


def functions_of(tree: ast.Module) -> dict[ast.AST, int]:
    """The first line of the innermost function around each node."""
    found: dict[ast.AST, int] = {}
    for node in ast.walk(tree):  # from the outside to the inside
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found.update(dict.fromkeys((one for part in node.body for one in ast.walk(part)), first))
    return found


def sites(room: str) -> list[Site]:
    found = []
    for path in sorted((PACKAGE / room).glob("*.py")):
        source = path.read_bytes()
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        tree = ast.parse(source)
        ignored, functions = left_out(tree), functions_of(tree)
        for node in ast.walk(tree):
            if node not in ignored:
                for new in changed(node):
                    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
                    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
                    text = ast.unparse(ast.fix_missing_locations(new))
                    text = f"({text})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant) else text
                    where = f"{room}/{path.name}"
                    found.append(Site(room, where, node.lineno, begin, end, text, functions.get(node)))  # type: ignore[attr-defined]
    return found


def planner_sites() -> list[Site]:
    found = []
    for path in sorted((REPOSITORY / "cuda_gctx" / PLANNER_SOURCES).glob("*.cpp")):
        text = path.read_text()
        assert text.isascii(), path  # places are those of bytes
        code = NO_CODE_CXX.sub(lambda part: " " * len(part[0]), text)
        for one in OPERATOR_CXX.finditer(code):
            new = OTHER_CXX.get(one[0]) if not one[0].isdigit() else str(int(one[0]) + 1)
            assert new is not None, one
            line = text.count("\n", 0, one.start()) + 1
            found.append(Site(PLANNER, f"{PLANNER_SOURCES}/{path.name}", line, *one.span(), new, None))
    return found


def all_sites(rooms: Iterable[str] = ROOMS) -> list[Site]:
    return [site for room in rooms for site in (planner_sites() if room == PLANNER else sites(room))]


def run_by(room: str, jobs: int) -> dict[str, list[str]]:
    """The tests of a room that run each line, quickest first."""
    found: dict[str, list[tuple[float, str]]] = {}
    # Each share of the tests has a file or more.
    shares = min(jobs, sum(len(list((REPOSITORY / one).glob("test_*.py"))) or 1 for one in ROOMS[room].split()))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(shares) as pool:
        files = [Path(folder) / f"{number}.json" for number in range(shares)]
        path = os.pathsep.join([str(PACKAGE.parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])

        def trace(file: Path) -> str | None:
            tests = f"-p tests.callers --share={int(file.stem) + 1}/{shares} {ROOMS[room]}"
            asked = {"CUDA_GCTX_CALLERS": str(file), "CUDA_GCTX_CALLED": room, "PYTHONPATH": path}
            return failed_test(tests, PACKAGE.parent, 3600, **asked)

        for test in pool.map(trace, files):
            if test is not None:
                raise SystemExit(f"without a mutant, {test} fails")
        for file in files:
            for line, tests in json.loads(file.read_text()).items():
                found[line] = sorted(found.get(line, []) + tests)
    return {line: [name for _, name in tests] for line, tests in found.items()}


def write_planner(site: Site, package: Path) -> bool:
    """Builds the core with a mutant into a package; False if it does not compile."""
    file = native_mutants.SOURCES / "cuda_gctx" / site.file
    text = file.read_text()
    file.write_text(text[: site.begin] + site.new + text[site.end :])
    try:
        if native_mutants.build("cuda_gctx_core").returncode != 0:
            return False
    finally:
        file.write_text(text)
    (package / LIBRARY).unlink()  # a link to the installed file
    shutil.copy(next(native_mutants.BUILD.rglob(LIBRARY)), package)
    return True


def write_python(site: Site, package: Path) -> None:
    file = package / site.file
    text = file.read_bytes()
    file.unlink()  # a link to the installed file
    file.write_bytes(text[: site.begin] + site.new.encode() + text[site.end :])


def killed_by(site: Site, run_by: dict[str, list[str]]) -> str | None:
    """What fails with a mutant: a test, or the compiler; None if it survives."""
    with tempfile.TemporaryDirectory() as folder, ONE_BUILD if site.room == PLANNER else nullcontext():
        copy = Path(folder) / "cuda_gctx"
        shutil.copytree(PACKAGE, copy, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
        if site.room != PLANNER:
            write_python(site, copy)
        elif not write_planner(site, copy):
            return COMPILER
        return failed_test(tests_of(site, run_by), Path(folder))


def tests_of(site: Site, run_by: dict[str, list[str]]) -> str:
    """The tests that may notice a change, quickest first."""
    own = run_by.get(f"{site.file}:{site.line}") or run_by.get(f"{site.file}:{site.function}")
    return shlex.join(dict.fromkeys([*own, *run_by.get(callers.PROCESSES, [])])) if own else ROOMS[site.room]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="the ones they are drawn from")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none begins after these")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at the same time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true", help="name them, and run nothing")
    options = parser.parse_args()
    if PACKAGE == REPOSITORY / "cuda_gctx":
        raise SystemExit("the install is editable, so that a copy would not be imported: use 'make random-mutants'")
    every = all_sites(options.rooms.split(","))
    wanted = sorted(every, key=lambda site: site.rank(options.seed))[: options.count]
    drawn = set() if options.list else {site.room for site in wanted}
    found = {room: run_by(room, options.jobs) for room in drawn - {PLANNER}}
    if PLANNER in drawn:
        native_mutants.prepare()
    begin, outcomes, rows = time.monotonic(), Counter[str](), []
    if options.list:
        print(*wanted, sep="\n")
        return 0

    def tried(site: Site) -> bool:
        if time.monotonic() - begin > options.seconds:
            return False
        test = killed_by(site, found.get(site.room, {}))
        outcomes["survived" if test is None else "not compiled" if test == COMPILER else "killed"] += 1
        rows.append({"mutant": str(site), "killed_by": test})
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return True

    with ThreadPoolExecutor(options.jobs) as pool:
        run = sum(pool.map(tried, wanted))
    print(f"seed {options.seed}: {run} of {len(wanted)} run, out of {len(every)} places: {dict(outcomes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
