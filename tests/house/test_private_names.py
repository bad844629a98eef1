"""A name with an underscore belongs to its file, and such a module to its room and to the tests of the room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from pprint import pformat

import pytest

import cuda_gctx

from .arrows import PACKAGE, PROGRAMS, REPOSITORY, nodes_of

PRIVATE = re.compile(r"_(?!_)\w*[^_]")  # not the names that notebooks look for: _repr_html_
# What files use of others all the same: each list may only become shorter.
EXCEPTIONS: dict[str, set[str]] = {
    "cuda_gctx/cli/_checks.py": {"cuda_gctx.interop._frameworks"},
    "cuda_gctx/cli/tune.py": {"cuda_gctx.tune._objectives"},
    "cuda_gctx/tune/_causes.py": {"cuda_gctx.interop._frameworks"},
    "cuda_gctx/tune/_explain.py": {"cuda_gctx.interop._current"},
    "cuda_gctx/tune/_parts.py": {"cuda_gctx.interop._current"},
    "tests/comm/test_handler.py": {"_gpu", "_messages"},
    "tests/comm/test_tuning.py": {"cuda_gctx._core.progress"},
    "tests/compat/test_flashinfer.py": {"cuda_gctx._core.extension"},
    "tests/compat/test_torch_green.py": {"_active", "cuda_gctx._core.extension"},
    "tests/house/test_package.py": {"_NAMES_OF_MODULE"},
    "tests/interop/test_frameworks_on_gpu.py": {"cuda_gctx._core.extension"},
    "tests/interop/test_libraries_on_gpu.py": {"_entries"},
    "tests/interop/test_library_counts.py": {"_margin_class", "_margin_place"},
    "tests/interop/test_library_sms.py": {"_loaded"},
    "tests/interop/test_torch.py": {"cuda_gctx._core.extension"},
    "tests/partitions/test_partitions.py": {"cuda_gctx._core.extension"},
    "tests/partitions/test_order.py": {"cuda_gctx._core.extension"},
    "tests/partitions/test_pool.py": {"cuda_gctx._core.extension"},
    "tests/partitions/test_sm_map.py": {"_known"},
    "tests/partitions/test_verify.py": {"cuda_gctx._core.extension"},
    "tests/trust/barriers.py": {"cuda_gctx._core.extension"},
    "tests/trust/test_programs.py": {"cuda_gctx._core.extension"},
    "tests/tune/conftest.py": {"cuda_gctx._core.clock"},
    "tests/tune/test_libraries.py": {"_library_sms"},
    "tests/tune/test_package.py": {"_NAMES_OF_MODULE"},
}


def private_names_of(nodes: Iterable[ast.AST]) -> set[str]:
    """The private names that a file defines: functions, classes, variables, fields and slots."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            names.add(node.attr)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__slots__":
            names.update(ast.literal_eval(node.value))
    return {name for name in names if PRIVATE.fullmatch(name)}


def is_own(node: ast.Attribute) -> bool:
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")


def private_names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The private names that a file reads from objects and modules."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and not is_own(node):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (alias.name for alias in node.names if PRIVATE.fullmatch(alias.name))


def imported_modules(nodes: Iterable[ast.AST], root: Path) -> Iterator[str]:
    """The modules of the package that a file imports, by their dotted names."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if root.joinpath(*module.split(".")).with_suffix(".py").is_file() else node.module


def is_private_for(file: str, module: str) -> bool:
    """Whether a module is closed to a file: it has an underscore, and the file is not of its room or of its tests."""
    package, *parts = module.split(".")
    if package != PACKAGE or not any(PRIVATE.fullmatch(part) for part in parts):
        return False
    top, *folders = file.split("/")
    if top == PACKAGE and PRIVATE.fullmatch(parts[0]):
        return False  # a room of the package: the order of the rooms says who may use it
    return top not in (PACKAGE, "tests") or folders[0] != parts[0].removeprefix("_")


def uses_of_others(root: Path) -> dict[str, set[str]]:
    """For each file the private names of other files, and the modules of other rooms, that it uses."""
    own: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    closed: dict[str, set[str]] = {}
    for top in (PACKAGE, *PROGRAMS, "docs", "packaging", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            file, nodes = path.relative_to(root).as_posix(), nodes_of(path)
            own[file], read[file] = private_names_of(nodes), set(private_names_in(nodes))
            closed[file] = {module for module in imported_modules(nodes, root) if is_private_for(file, module)}
    known = {name for file, names in own.items() if not file.startswith("tests") for name in names}
    known -= {Path(file).stem for file in own}
    used = {file: (names & known) - own[file] | closed[file] for file, names in read.items()}
    return {file: names for file, names in used.items() if names}


def test_private_names_of_other_files_are_used_only_as_listed() -> None:
    found = uses_of_others(REPOSITORY)
    more = {file: sorted(names - EXCEPTIONS.get(file, set())) for file, names in found.items()}
    fewer = {file: sorted(names - found.get(file, set())) for file, names in EXCEPTIONS.items()}
    assert not any(more.values()), f"not listed: {pformat({file: names for file, names in more.items() if names})}"
    assert not any(fewer.values()), f"gone: {pformat({file: names for file, names in fewer.items() if names})}"


def test_what_stands_on_the_library_takes_public_names_from_its_face() -> None:
    wrong = [
        f"{file.relative_to(REPOSITORY)}: {alias.name} comes from {PACKAGE}, not from {node.module}"
        for top in (*PROGRAMS, f"{PACKAGE}/comm", f"{PACKAGE}/cli")
        for file in sorted((REPOSITORY / top).rglob("*.py"))
        for node in nodes_of(file)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{PACKAGE}.")
        for alias in node.names
        if alias.name in cuda_gctx.__all__
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "text", "used"),
    [
        ("cuda_gctx/b/x.py", "def f(a):\n    return a._kept\n", {"_kept"}),
        ("cuda_gctx/a/y.py", "from cuda_gctx.a.x import _made\n", {"_made"}),
        ("tests/a/test_x.py", "import cuda_gctx.a.x as x\nx._made()\n", {"_made"}),
        ("cuda_gctx/b/x.py", "from cuda_gctx.a._own import f\n", {"cuda_gctx.a._own"}),
        ("tests/b/test_x.py", "from cuda_gctx.a import _own\n", {"cuda_gctx.a._own"}),
        ("tests/a/test_x.py", "from cuda_gctx.a import _own\n", set()),
        ("benchmarks/x.py", "import cuda_gctx._room.x\n", {"cuda_gctx._room.x"}),
        ("cuda_gctx/b/x.py", "import cuda_gctx._room.x\n", set()),
        ("cuda_gctx/b/x.py", "class B:\n    def f(self, other):\n        self._kept = other._kept\n", set()),
        ("cuda_gctx/b/x.py", "import torch\ntorch._C\n", set()),
    ],
)
def test_a_use_of_a_private_name_is_seen(tmp_path: Path, file: str, text: str, used: set[str]) -> None:
    texts = {
        "cuda_gctx/a/x.py": "class A:\n    def __init__(self):\n        self._kept = 1\n\ndef _made():\n    pass\n",
        "cuda_gctx/a/_own.py": "",
        "cuda_gctx/_room/x.py": "",
        file: text,
    }
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert uses_of_others(tmp_path).get(file, set()) == used
