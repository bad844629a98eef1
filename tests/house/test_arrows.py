"""Uses go down: from room to room only along the order of the house, and never in a circle.

``arrows.py`` reads them. What does not follow the order today is listed here, and each list may only become shorter:
what is listed and not found is a failure, too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from .arrows import (
    PACKAGE,
    PROGRAMS,
    REPOSITORY,
    Arrow,
    arrows,
    circles,
    registered,
    room,
    unit,
    uses_of_registry,
)

# What a room uses in addition to itself: no more, and no less. "cuda_gctx" is the package's __init__.py, which
# registers with the lower rooms what they need of the higher ones.
MAY_USE: dict[str, set[str]] = {
    "_cpp/driver": set(),
    "_cpp/resources": {"_cpp/driver"},
    "_cpp/handles": {"_cpp/resources", "_cpp/driver"},
    "_cpp/tests": {"_cpp/handles", "_cpp/driver"},
    "_core": {"_cpp/handles", "_cpp/resources", "_cpp/driver"},
    "native": set(),
    "draw": set(),
    "measure": {"_core"},
    "partitions": {"_core", "draw"},
    "interop": {"_core", "measure", "partitions"},
    "cuda_gctx": {"_core", "partitions", "interop"},
    "compat": {"_core", "partitions", "interop"},
    "tune": {"_core", "draw", "measure", "partitions", "interop"},
    "comm": {"_core", "cuda_gctx", "interop"},
    "cli": {"measure", "partitions", "interop", "cuda_gctx", "tune"},
    "benchmarks": {"draw", "measure", "partitions", "interop", "cuda_gctx", "tune", "comm"},
    "examples": {"native", "interop", "cuda_gctx", "compat", "tune", "comm"},
    "studies": {"measure", "interop", "cuda_gctx", "tune"},
}
# Between folders, each with its C++, stubs included, and without the examples.
MOST_ARROWS = 46

# ---- the exceptions

# Units that use each other.
CIRCLES: list[set[str]] = []

# What a file uses of the registry, and how often.
USES_OF_REGISTRY = {
    ("_core/context.pyx", "verify"): 1,
    ("_core/device.pyx", "cuda_core"): 7,
    ("_core/device.pyx", "partition"): 1,
    ("_core/device.pyx", "partition_sizes"): 1,
    ("_core/driver.pyx", "memory_use"): 1,
    ("_core/graph.pyx", "verify_graph"): 1,
    ("_core/resources.pyx", "free_sms"): 1,
    ("partitions/graphs.py", "torch_capture"): 1,
    ("partitions/graphs.py", "torch_graph"): 1,
    ("partitions/partitions.py", "cupy_block"): 1,
    ("partitions/partitions.py", "torch_block"): 1,
}

# From unit to unit of one room, back up: objects that return each other. Their modules import each other at first use,
# and their stubs name each other.
BACK_UP = {
    ("_core/context", "_core/device"),
    ("_core/current", "_core/context"),
    ("_core/errors", "_core/resources"),
    ("_core/event", "_core/context"),
    ("_core/event", "_core/device"),
    ("_core/resources", "_core/device"),
    ("_core/stream", "_core/context"),
    ("_core/stream", "_core/graph"),
}

# From a stub to a higher room: the types of what the root registers, which users see as results of methods. A type
# checker has no registry, and the types use each other in whatever room they are declared: Device.partition() returns
# Partitions, and the device of their streams is a Device again. A protocol in the lower room would repeat each member
# of Partitions and Partition; a Device that is generic in its partitions would name them in every signature; and with
# a subclass in the root that has partition(), Context.device and Stream.device would be of the class without it.
TYPES_OF_WHAT_IS_REGISTERED = {
    ("_core/context.pyi", "partitions"),
    ("_core/device.pyi", "partitions"),
    ("_core/driver.pyi", "partitions"),
    ("_core/graph.pyi", "partitions"),
}


def forbidden(drawn: Collection[Arrow]) -> list[str]:
    """The arrows that the order does not allow."""
    return sorted(
        f"{file} uses {target}, and {room(file)} may not use {room(target)}"
        for file, target in drawn
        if room(file) != room(target)
        and room(target) not in MAY_USE.get(room(file), ())
        and (file, room(target)) not in TYPES_OF_WHAT_IS_REGISTERED
    )


def of_rooms(drawn: Collection[Arrow]) -> set[Arrow]:
    return {
        (room(file), room(target))
        for file, target in drawn
        if room(file) != room(target) and (file, room(target)) not in TYPES_OF_WHAT_IS_REGISTERED
    }


def of_units(drawn: Collection[Arrow]) -> set[Arrow]:
    found = {
        (unit(file), unit(target))
        for file, target in drawn
        if (file, room(target)) not in TYPES_OF_WHAT_IS_REGISTERED and unit(file) != unit(target)
    }
    return found - BACK_UP


def differences(found: Mapping[Arrow, int], listed: Mapping[Arrow, int]) -> list[str]:
    """What is found more or less often than it is listed."""
    return [
        f"{file} uses above.{name} {found.get((file, name), 0)} times, and {listed.get((file, name), 0)} are listed"
        for file, name in sorted({*found, *listed})
        if found.get((file, name), 0) != listed.get((file, name), 0)
    ]


def written(rings: Collection[Collection[str]], drawn: Collection[Arrow]) -> str:
    return "\n".join(
        f"a circle of {len(ring)}: {sorted(ring)}\n"
        + "\n".join(sorted(f"  {a} -> {b}" for a, b in drawn if a in ring and b in ring))
        for ring in rings
    )


DRAWN = arrows(REPOSITORY)


def test_every_arrow_follows_the_order_of_the_rooms() -> None:
    wrong = forbidden(DRAWN)
    assert not wrong, "\n".join(wrong)


def test_no_room_may_use_what_it_does_not_use() -> None:
    allowed = {(name, other) for name, others in MAY_USE.items() for other in others}
    unused = allowed - of_rooms(DRAWN)
    assert not unused, f"take out of MAY_USE: {sorted(unused)}"


def test_no_room_uses_itself_through_others() -> None:
    assert circles(of_rooms(DRAWN)) == []


def test_the_only_circles_of_units_are_the_listed_ones() -> None:
    units = of_units(DRAWN)
    found = circles(units)
    assert found == sorted(CIRCLES, key=sorted), f"list the circles as they are now, smaller:\n{written(found, units)}"


def test_arrows_back_up_are_the_listed_ones() -> None:
    assert {(unit(file), unit(target)) for file, target in DRAWN} >= BACK_UP
    assert {(file, room(target)) for file, target in DRAWN} >= TYPES_OF_WHAT_IS_REGISTERED


def test_the_uses_of_the_registry_are_the_listed_ones() -> None:
    wrong = differences(uses_of_registry(REPOSITORY), USES_OF_REGISTRY)
    assert not wrong, "\n".join(wrong)
    assert registered(REPOSITORY).keys() == {name for _, name in USES_OF_REGISTRY}


def test_the_house_has_few_arrows() -> None:
    folders = {(room(file).split("/")[0], room(target).split("/")[0]) for file, target in DRAWN}
    assert len([pair for pair in folders if pair[0] not in (pair[1], "examples")]) <= MOST_ARROWS


def description(folder: Path) -> str:
    """What a folder says of itself: in its first file if it is a package, else in a README."""
    package = folder / "__init__.py"
    readme = folder / "README.md"
    words = ast.get_docstring(ast.parse(package.read_text())) if package.exists() else None
    return words or (readme.read_text() if readme.exists() else "")


FOLDERS = sorted(
    folder
    for top in (REPOSITORY / PACKAGE, REPOSITORY / "tests")
    for folder in [top, *top.rglob("*")]
    if folder.is_dir() and "__pycache__" not in folder.parts and any(file.is_file() for file in folder.iterdir())
)


@pytest.mark.parametrize("folder", [folder.relative_to(REPOSITORY).as_posix() for folder in FOLDERS])
def test_every_folder_says_what_it_is_for_and_what_it_may_use(folder: str) -> None:
    words = description(REPOSITORY / folder)
    assert words, f"{folder} needs a README.md, or a docstring in its __init__.py"
    of_the_package = folder.removeprefix(f"{PACKAGE}/")
    if of_the_package not in MAY_USE.keys() - {PACKAGE}:  # what that one says is for users
        return
    line = re.search(r"^May use: ([^.]+)\.", words, re.MULTILINE)
    assert line, f"{folder} needs a line 'May use: ...' with the rooms that MAY_USE names"
    said = {name.strip("` \n") for name in line[1].split(",")}
    assert said == (MAY_USE[of_the_package] or {"nothing of the package"})


def folders_in_table(page: str) -> list[str]:
    """The folders in the first column of the tables of a page."""
    return re.findall(r"^\| `([\w./]+)` \|", (REPOSITORY / page).read_text(), re.MULTILINE)


def test_the_tables_of_folders_name_every_room() -> None:
    design = folders_in_table("docs/appendix/design.md")
    assert [name for name in folders_in_table("CONTRIBUTING.md") if name != ".github"] == design
    assert [name for name in design if not (REPOSITORY / name).is_dir()] == []
    rooms = {name if name in (PACKAGE, *PROGRAMS) else f"{PACKAGE}/{name}" for name in MAY_USE} - {PACKAGE}
    assert [
        name
        for name in sorted(rooms)
        if not any(f"{row}/".startswith(f"{name}/") or f"{name}/".startswith(f"{row}/") for row in design)
    ] == []


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(file) for arrow in DRAWN for file in arrow} <= MAY_USE.keys()


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
        ("studies/new/run.py", "from cuda_gctx.partitions.layout import Layout\n", "partitions/layout.py"),
        ("examples/new.py", "import cuda_gctx.partitions\n", "partitions/__init__.py"),
    ],
)
def test_an_arrow_that_is_not_allowed_is_seen(tmp_path: Path, file: str, text: str, target: str) -> None:
    house(tmp_path, "__init__.py", "partitions/__init__.py", "partitions/layout.py", "comm/counts.pxd", file)
    house(tmp_path, "comm/counts.hpp", "_cpp/resources/split.hpp")
    (tmp_path / (file if file.split("/")[0] in PROGRAMS else f"{PACKAGE}/{file}")).write_text(text)

    drawn = arrows(tmp_path)
    assert (file, target) in drawn
    assert f"{file} uses {target}, and {room(file)} may not use {room(target)}" in forbidden(drawn)


@pytest.mark.parametrize(
    "text", ["import tables\n", "from tables import table\n", "from studies.tables import table\n"]
)
def test_an_import_of_a_program_next_to_it_is_seen(tmp_path: Path, text: str) -> None:
    house(tmp_path, "studies/__init__.py", "studies/tables.py", "studies/serving/run.py")
    (tmp_path / "studies/serving/run.py").write_text(text)
    assert arrows(tmp_path) == {("studies/serving/run.py", "studies/tables.py")}


IMPORT = "from cuda_gctx._core.above import above\n"


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("_core/polling.py", IMPORT + "async def until_done(event):\n    above.check(decode=[event])\n", "check"),
        ("_core/new.pyx", IMPORT + "def f():\n    return above.check  # above, in a comment\n", "check"),
        ("_core/new.py", IMPORT + "getattr(above, 'check')()\n", "?"),
        ("_core/new.py", IMPORT + "roof = above\nroof.check()\n", "?"),
        ("_core/new.py", "from cuda_gctx._core.above import above as roof\nroof.check()\n", "?"),
        ("_core/new.py", "import cuda_gctx._core.above as registry\nregistry.above.check()\n", "?"),
        ("_core/new.pyx", IMPORT + "getattr(above, 'check')()\n", "?"),
        ("_core/new.pyx", "from cuda_gctx._core.above import above as roof\nroof.check()\n", "?"),
        ("partitions/new.py", IMPORT + "above.check()\n", "check"),
    ],
)
def test_a_use_of_the_registry_is_seen(tmp_path: Path, file: str, text: str, name: str) -> None:
    house(tmp_path, "_core/above.py", "interop/sharing.py", file)
    loader = "def _check():\n    from cuda_gctx.interop.sharing import check\n    return check\n"
    (tmp_path / PACKAGE / "__init__.py").write_text(f"{loader}above.register(check=_check)\n")
    (tmp_path / PACKAGE / file).write_text(text)

    assert registered(tmp_path) == {"check": "interop/sharing.py"}
    found = uses_of_registry(tmp_path)
    assert found[file, name] >= 1
    assert f"{file} uses above.{name} {found[file, name]} times, and 0 are listed" in differences(found, {})


def test_a_listed_use_that_is_gone_is_seen() -> None:
    listed = {("_core/new.py", "check"): 2}
    assert differences(Counter({("_core/new.py", "check"): 2}), listed) == []
    assert differences(Counter({("_core/new.py", "check"): 1}), listed) == [
        "_core/new.py uses above.check 1 times, and 2 are listed"
    ]


def test_a_circle_is_seen() -> None:
    ring = {("a.py", "b.py"), ("b.py", "c.py"), ("c.py", "a.py"), ("d.py", "a.py"), ("c.py", "e.py")}
    assert circles(ring) == [{"a.py", "b.py", "c.py"}]
    assert circles(ring - {("b.py", "c.py")}) == []
    assert circles(of_rooms({("a/x.py", "b/x.py"), ("b/y.py", "a/y.py")})) == [{"a", "b"}]


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
