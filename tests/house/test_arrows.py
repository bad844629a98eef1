"""Imports and includes go down: from room to room only along the order of the house, and never in a circle.

Every import counts: inside a function, under TYPE_CHECKING, in a stub, and a module that is named as a string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "cuda_gctx"

CORE = {"_cpp/handles", "_cpp/resources", "_cpp/driver"}
SOFTWARE_DRIVER = {"sim/_cpp/abi", "sim/_cpp/chip", "sim/_cpp/machine", "sim/_cpp/calls"}
BASE = {"_core", "draw", "measure"}
# What a room may use in addition to itself. "cuda_gctx" is the package's __init__.py, which registers with the lower
# rooms what they need of the higher ones.
MAY_USE: dict[str, set[str]] = {
    "_cpp/driver": set(),
    "_cpp/resources": {"_cpp/driver"},
    "_cpp/handles": {"_cpp/resources", "_cpp/driver"},
    "_cpp/tests": CORE,
    "sim/_cpp/abi": set(),
    "sim/_cpp/chip": set(),
    "sim/_cpp/machine": {"sim/_cpp/abi", "sim/_cpp/chip"},
    "sim/_cpp/calls": {"sim/_cpp/abi", "sim/_cpp/chip", "sim/_cpp/machine"},
    "sim/_cpp/tests": SOFTWARE_DRIVER,
    "_core": CORE,
    "draw": {"_core"},
    "measure": {"_core"},
    "sim": {"_core"},
    "partitions": BASE,
    "interop": BASE | {"partitions"},
    "cuda_gctx": BASE | {"partitions", "interop"},
    "compat": BASE | {"partitions", "interop", "cuda_gctx"},
    "tune": BASE | {"partitions", "interop", "cuda_gctx", "compat"},
    "comm": BASE | CORE | {"partitions", "interop", "cuda_gctx", "compat"},
    "bench": BASE | CORE | {"partitions", "interop", "cuda_gctx", "compat"},
    "cli": BASE | {"partitions", "interop", "cuda_gctx", "compat", "tune", "comm", "bench", "sim"},
}

# Arrows that a stub may draw upwards: it names the types of what the root registers with the room.
TYPES_OF_WHAT_IS_REGISTERED = {
    ("_core/context.pyi", "partitions"),
    ("_core/device.pyi", "partitions"),
    ("_core/driver.pyi", "partitions"),
}

PYTHON = {".py", ".pyi"}
CYTHON = {".pyx", ".pxd"}
CPP = {".cpp", ".hpp", ".h", ".inc", ".def", ".cu", ".cuh"}

# Where an import finds its module: a stub and a module in Python read stubs first, as type checkers do.
SUFFIXES_OF_IMPORT = {".py": (".py", ".pyx"), ".pyx": (".py", ".pyx"), ".pxd": (".py", ".pyx"), ".pyi": (".pyi", ".py")}
CYTHON_FROM = re.compile(r"^[ \t]*from\s+([\w.]+)\s+(c?import)\b\s*(\([^)]*\)|.*)", re.MULTILINE)
CYTHON_IMPORT = re.compile(r"^[ \t]*(c?import)\s+(.*)", re.MULTILINE)
CYTHON_INCLUDE = re.compile(
    r"^[ \t]*cdef extern from\s+[\"']([^\"']+)[\"']|^[ \t]*include\s+[\"']([^\"']+)", re.MULTILINE
)
CPP_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
DOCSTRING = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL)

Arrow = tuple[str, str]


def module_files(dotted: str, name: str | None, suffixes: Collection[str], sources: Path) -> Iterator[Path]:
    """The file of this package that an import of a module, or of a name from a module, reads."""
    package, *parts = dotted.split(".")
    if package != "cuda_gctx":
        return
    module = sources.joinpath(*parts)
    for candidate in ([module / name] if name else []) + [module]:
        files = [candidate.with_suffix(suffix) for suffix in suffixes] if candidate != sources else []
        found = next((file for file in [*files, candidate / "__init__.py"] if file.is_file()), None)
        if found is not None:
            yield found
            return
    raise LookupError(f"no file of the package defines {dotted}{f'.{name}' if name else ''}")


def python_imports(file: Path, sources: Path) -> Iterator[Path]:
    suffixes = SUFFIXES_OF_IMPORT[file.suffix]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from module_files(alias.name, None, suffixes, sources)
        elif isinstance(node, ast.ImportFrom):
            above = ["cuda_gctx", *file.relative_to(sources).parts[: -node.level]] if node.level else []
            dotted = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield from module_files(dotted, alias.name, suffixes, sources)
        elif isinstance(node, ast.JoinedStr):
            # A module whose name is computed can be each public module of its folder.
            prefix = node.values[0].value if node.values and isinstance(node.values[0], ast.Constant) else ""
            if re.fullmatch(r"cuda_gctx\.([\w.]+\.)?", str(prefix)):
                yield from sorted(sources.joinpath(*str(prefix).split(".")[1:]).glob("[!_]*.py"))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"cuda_gctx(\.\w+)+", str(node.value)):
            with suppress(LookupError):  # a string may look like a module and be something else
                yield from module_files(str(node.value), None, suffixes, sources)


def cython_imports(file: Path, sources: Path) -> Iterator[Path]:
    text = DOCSTRING.sub('""', file.read_text())
    for dotted, kind, names in CYTHON_FROM.findall(text):
        suffixes = SUFFIXES_OF_IMPORT[file.suffix] if kind == "import" else (".pxd",)
        for name in re.sub(r"#.*", "", names).strip("() \n").split(","):
            if name.strip():
                yield from module_files(dotted, name.split()[0], suffixes, sources)
    for kind, names in CYTHON_IMPORT.findall(text):
        suffixes = SUFFIXES_OF_IMPORT[file.suffix] if kind == "import" else (".pxd",)
        for name in names.split("#")[0].split(","):
            yield from module_files(name.split()[0], None, suffixes, sources)
    for match in CYTHON_INCLUDE.findall(text):
        yield from included(file, "".join(match), sources)


def included(file: Path, name: str, sources: Path) -> Iterator[Path]:
    # Each of the two libraries has a root of its own.
    root = sources / ("sim/_cpp" if file.is_relative_to(sources / "sim") else "_cpp")
    folders = (file.parent, root, sources)
    yield from [found for folder in folders if (found := (folder / name).resolve()).is_file()][:1]


def cpp_includes(file: Path, sources: Path) -> Iterator[Path]:
    for name in CPP_INCLUDE.findall(file.read_text()):
        yield from included(file, name, sources)


def arrows(sources: Path) -> set[Arrow]:
    """From which file to which, by their paths in the package."""
    readers = (
        dict.fromkeys(PYTHON, python_imports) | dict.fromkeys(CYTHON, cython_imports) | dict.fromkeys(CPP, cpp_includes)
    )
    return {
        (file.relative_to(sources).as_posix(), target.relative_to(sources).as_posix())
        for file in sources.rglob("*")
        if file.suffix in readers
        for target in readers[file.suffix](file, sources)
        if target != file
    }


def room(file: str) -> str:
    """The room of a file: its folder, and in C++ the folder below _cpp or sim/_cpp."""
    *folders, name = file.split("/")
    if not folders:
        return {"__init__.py": "cuda_gctx"}.get(name, name.split(".")[0])
    return "/".join(folders[: folders.index("_cpp") + 2]) if "_cpp" in folders else folders[0]


def forbidden(drawn: Collection[Arrow]) -> list[str]:
    """The arrows that the order does not allow."""
    return sorted(
        f"{file} uses {target}, and {room(file)} may not use {room(target)}"
        for file, target in drawn
        if room(file) != room(target)
        and room(target) not in MAY_USE.get(room(file), ())
        and not (file.endswith(".pyi") and (file, room(target)) in TYPES_OF_WHAT_IS_REGISTERED)
    )


def circles(drawn: Collection[Arrow]) -> list[str]:
    """The sets of nodes that reach each other, each with the arrows between its nodes."""
    following: dict[str, set[str]] = {}
    for file, target in drawn:
        following.setdefault(file, set()).add(target)
    reached = {node: reachable(node, following) for node in following}
    rings = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in following}
    return sorted(
        "a circle: " + "; ".join(sorted(f"{a} -> {b}" for a, b in drawn if a in ring and b in ring))
        for ring in rings
        if ring
    )


def reachable(node: str, following: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(following.get(node, ()))
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead.extend(following.get(other, ()))
    return found


def circles_of_files(drawn: Collection[Arrow]) -> list[str]:
    # A stub describes types, and two classes whose methods return each other have stubs that name each other. A
    # declaration (.pxd, .hpp) and what stands behind it (.pyx, .cpp) are two files.
    return circles([arrow for arrow in drawn if not arrow[0].endswith(".pyi")])


def circles_of_rooms(drawn: Collection[Arrow]) -> list[str]:
    return circles({(room(a), room(b)) for a, b in drawn if room(a) != room(b) and not a.endswith(".pyi")})


DRAWN = arrows(SOURCES)


def test_every_arrow_follows_the_order_of_the_rooms() -> None:
    wrong = forbidden(DRAWN)
    assert not wrong, "\n".join(wrong)


def test_no_file_and_no_room_uses_itself_through_others() -> None:
    wrong = circles_of_files(DRAWN) + circles_of_rooms(DRAWN)
    assert not wrong, "\n".join(wrong)


def description(folder: Path) -> str:
    """What a folder says of itself: in its first file if it is a package, else in a README."""
    package = folder / "__init__.py"
    readme = folder / "README.md"
    words = ast.get_docstring(ast.parse(package.read_text())) if package.exists() else None
    return words or (readme.read_text() if readme.exists() else "")


FOLDERS = sorted(
    folder
    for top in (SOURCES, SOURCES.parent / "tests")
    for folder in [top, *top.rglob("*")]
    if folder.is_dir() and "__pycache__" not in folder.parts and any(file.is_file() for file in folder.iterdir())
)


@pytest.mark.parametrize("folder", [folder.relative_to(SOURCES.parent).as_posix() for folder in FOLDERS])
def test_every_folder_says_what_it_is_for_and_what_it_may_use(folder: str) -> None:
    words = description(SOURCES.parent / folder)
    assert words, f"{folder} needs a README.md, or a docstring in its __init__.py"
    of_the_package = folder.removeprefix("cuda_gctx/")
    if of_the_package not in MAY_USE.keys() - {"cuda_gctx"}:  # what that one says is for users
        return
    line = re.search(r"^May use: ([^.]+)\.", words, re.MULTILINE)
    assert line, f"{folder} needs a line 'May use: ...' with the rooms that MAY_USE names"
    said = {name.strip("` \n") for name in line[1].split(",")}
    assert said == (MAY_USE[of_the_package] or {"nothing of the package"})


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(file) for arrow in DRAWN for file in arrow} <= MAY_USE.keys()
    assert circles([(name, other) for name, others in MAY_USE.items() for other in others]) == []


def test_stubs_name_only_types_that_they_need() -> None:
    assert {(file, room(target)) for file, target in DRAWN} >= TYPES_OF_WHAT_IS_REGISTERED


IN_A_FUNCTION = "def f() -> None:\n    from cuda_gctx.partitions import plan\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cuda_gctx.partitions\n"
IN_PARENTHESES = "cdef int x\nfrom cuda_gctx.partitions cimport (  # why\n    a,\n    b as c,\n)\n"


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
        ("_core/new.pxd", "from cuda_gctx.bench.counts cimport Count\n", "bench/counts.pxd"),
        ("_core/new.pxd", 'cdef extern from "bench/counts.hpp" namespace "gctx" nogil:\n', "bench/counts.hpp"),
        ("_cpp/driver/new.hpp", "#  include <resources/split.hpp>\n", "_cpp/resources/split.hpp"),
        ("_cpp/driver/new.cpp", '#include "../resources/split.hpp"\n', "_cpp/resources/split.hpp"),
        ("_cpp/handles/new.hpp", '#include "sim/_cpp/abi/abi.hpp"\n', "sim/_cpp/abi/abi.hpp"),
        ("_cpp/tests/new.cpp", '#include "../../sim/_cpp/abi/abi.hpp"\n', "sim/_cpp/abi/abi.hpp"),
        ("sim/_cpp/machine/new.cpp", '#include "calls/entry.hpp"\n', "sim/_cpp/calls/entry.hpp"),
        ("sim/_cpp/calls/new.cpp", '#include "_cpp/resources/split.hpp"\n', "_cpp/resources/split.hpp"),
    ],
)
def test_an_arrow_upwards_is_seen(tmp_path: Path, file: str, text: str, target: str) -> None:
    others = ["__init__.py", "partitions/__init__.py", "partitions/layout.py", "bench/counts.pxd", "bench/counts.hpp"]
    others += ["_cpp/resources/split.hpp", "sim/_cpp/abi/abi.hpp", "sim/_cpp/calls/entry.hpp"]
    for other in [*others, file]:
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).touch()
    (tmp_path / file).write_text(text)

    drawn = arrows(tmp_path)
    assert (file, target) in drawn
    assert any(
        f"{file} uses {target}, and {room(file)} may not use {room(target)}" in line for line in forbidden(drawn)
    )


def test_a_circle_is_seen() -> None:
    ring = {("a.py", "b.py"), ("b.py", "c.py"), ("c.py", "a.py"), ("d.py", "a.py"), ("c.py", "e.py")}
    assert circles_of_files(ring) == ["a circle: a.py -> b.py; b.py -> c.py; c.py -> a.py"]
    assert circles_of_files(ring - {("b.py", "c.py")}) == []
    assert circles_of_rooms({("a/x.py", "b/x.py"), ("b/y.py", "a/y.py")}) == ["a circle: a -> b; b -> a"]
