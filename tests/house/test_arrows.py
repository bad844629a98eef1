"""Imports follow the order of the rooms: a room uses the rooms below it, and none above it.

``arrows.py`` reads the imports, and lists the late ones.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

from .arrows import (
    LATE,
    PACKAGE,
    PROGRAMS,
    REPOSITORY,
    Arrow,
    arrows,
    circles,
    imported_first,
    is_late,
    nodes_of,
    reachable,
    room,
    unit,
)

# The rooms that a room stands on. It may use them and all rooms below them. "cuda_gctx" is the package's __init__.py.
STANDS_ON: dict[str, set[str]] = {
    "_cpp/driver": set(),
    "_cpp/resources": {"_cpp/driver"},
    "_cpp/handles": {"_cpp/resources"},
    "_cpp/tests": {"_cpp/handles"},
    "native": set(),
    "draw": set(),
    "_core": {"_cpp/handles"},
    "extending": {"_core"},
    "partitions": {"_core"},
    "measure": {"draw", "partitions"},
    "cuda_gctx": {"measure"},
    "interop": {"measure"},
    "compat": {"comm", "cuda_gctx", "interop"},
    "interpose": {"_cpp/resources", "cuda_gctx", "interop"},
    "tune": {"cuda_gctx", "draw", "interop", "tracing"},
    "tracing": {"draw", "interpose"},
    "comm": {"cuda_gctx", "extending", "interop"},
    "cli": {"comm", "compat", "interpose", "tracing", "tune"},
    **{program: {"comm", "compat", "native", "tune"} for program in PROGRAMS},
}


def forbidden(drawn: Collection[Arrow]) -> list[str]:
    """The arrows that the order does not allow."""
    return sorted(
        f"{file} uses {target}, and {room(file)} may not use {room(target)}"
        for file, target in drawn
        if room(file) != room(target)
        and room(target) not in reachable(room(file), STANDS_ON)
        and not is_late((file, target))
    )


def of_units(drawn: Collection[Arrow]) -> set[Arrow]:
    return {(unit(file), unit(target)) for file, target in drawn if unit(file) != unit(target)}


DRAWN = arrows(REPOSITORY)


def test_every_arrow_follows_the_order_of_the_rooms() -> None:
    wrong = forbidden(DRAWN)
    assert not wrong, "\n".join(wrong)


def test_the_order_of_the_rooms_has_no_circle() -> None:
    assert circles([(name, other) for name, others in STANDS_ON.items() for other in others]) == []


def test_no_unit_uses_itself_through_others() -> None:
    assert circles(of_units({arrow for arrow in DRAWN if not is_late(arrow)})) == []


def test_late_imports_are_the_listed_ones_and_run_in_functions() -> None:
    assert {(file, room(target)) for file, target in DRAWN} >= LATE
    assert [
        (file, target)
        for file, target in LATE
        if not file.endswith(".pyi") and target in imported_first(REPOSITORY / PACKAGE / file)
    ] == []


def test_comm_takes_from_the_core_only_what_is_public() -> None:
    files = sorted((REPOSITORY / PACKAGE / "comm").glob("*.py"))
    modules = [node.module for file in files for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
    assert [module for module in modules if str(module).startswith(f"{PACKAGE}._core")] == []


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(file) for arrow in DRAWN for file in arrow} <= STANDS_ON.keys()


# ---- every kind of arrow is seen

IN_A_FUNCTION = "def f() -> None:\n    from cuda_gctx.partitions import plan\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cuda_gctx.partitions\n"
IN_PARENTHESES = "cdef int x\nfrom cuda_gctx.partitions cimport (  # why\n    a,\n    b as c,\n)\n"


def house(root: Path, *files: str) -> None:
    """Empty files in an empty house."""
    for file in files:
        path = root / file if file.split("/")[0] in PROGRAMS else root / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("file", "text", "target"),
    [
        ("_core/new.py", "from cuda_gctx import partitions\n", "partitions/__init__.py"),
        ("_core/new.py", "from ..partitions.layout import Layout\n", "partitions/layout.py"),
        ("_core/new.py", IN_A_FUNCTION, "partitions/__init__.py"),
        ("_core/new.py", FOR_TYPES, "partitions/__init__.py"),
        ("_core/new.py", "module = import_module('cuda_gctx.partitions.layout')\n", "partitions/layout.py"),
        ("_core/new.py", "module = import_module(f'cuda_gctx.partitions.{name}')\n", "partitions/layout.py"),
        ("_core/new.pyi", "from cuda_gctx.partitions.layout import Layout\n", "partitions/layout.py"),
        ("_core/new.pyx", IN_A_FUNCTION, "partitions/__init__.py"),
        ("_core/new.pyx", "import os, cuda_gctx.partitions.layout as here\n", "partitions/layout.py"),
        ("_core/new.pyx", IN_PARENTHESES.replace("cimport", "import"), "partitions/__init__.py"),
        ("_core/new.pxd", "from cuda_gctx.comm.counts cimport Count\n", "comm/counts.pxd"),
        ("_core/new.pxd", 'cdef extern from "comm/counts.hpp" namespace "gctx" nogil:\n', "comm/counts.hpp"),
        ("_cpp/driver/new.hpp", "#  include <resources/split.hpp>\n", "_cpp/resources/split.hpp"),
        ("_cpp/driver/new.cpp", '#include "../resources/split.hpp"\n', "_cpp/resources/split.hpp"),
        ("draw/new.py", "import cuda_gctx.partitions\n", "partitions/__init__.py"),
    ],
)
def test_an_arrow_that_is_not_allowed_is_seen(tmp_path: Path, file: str, text: str, target: str) -> None:
    house(tmp_path, "__init__.py", "partitions/__init__.py", "partitions/layout.py", "comm/counts.pxd", file)
    house(tmp_path, "comm/counts.hpp", "_cpp/resources/split.hpp")
    (tmp_path / PACKAGE / file).write_text(text)

    drawn = arrows(tmp_path)
    assert (file, target) in drawn
    assert f"{file} uses {target}, and {room(file)} may not use {room(target)}" in forbidden(drawn)


@pytest.mark.parametrize(
    "text", ["import tables\n", "from tables import table\n", "from examples.tables import table\n"]
)
def test_an_import_of_a_program_next_to_it_is_seen(tmp_path: Path, text: str) -> None:
    house(tmp_path, "examples/__init__.py", "examples/tables.py", "examples/more/run.py")
    (tmp_path / "examples/more/run.py").write_text(text)
    assert arrows(tmp_path) == {("examples/more/run.py", "examples/tables.py")}


def test_a_circle_is_seen() -> None:
    ring = {("a.py", "b.py"), ("b.py", "c.py"), ("c.py", "a.py"), ("d.py", "a.py"), ("c.py", "e.py")}
    assert circles(ring) == [{"a.py", "b.py", "c.py"}]
    assert circles(ring - {("b.py", "c.py")}) == []


@pytest.mark.parametrize(
    "suffixes",
    [(".hpp", ".cpp", ".hpp"), (".h", ".cpp", ".h"), (".pxd", ".pyx", ".pxd"), (".pyi", ".pyx", ".pyi")],
)
def test_a_declaration_and_its_definition_are_one_unit(suffixes: tuple[str, str, str]) -> None:
    # a declares b, and what stands behind b uses a: of files there is no circle.
    declares, defines, used = suffixes
    ring = {(f"x/a{declares}", f"x/b{used}"), (f"x/b{defines}", f"x/a{used}"), (f"x/b{defines}", f"x/b{used}")}
    assert circles(ring) == []
    assert circles(of_units(ring)) == [{"x/a", "x/b"}]
    # Data that several sources include is no declaration.
    assert unit("abi/functions.def") != unit("abi/functions.cpp")
