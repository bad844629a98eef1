"""Which file uses which other: the imports and includes in the package and in the programs on it.

Every import counts: inside a function, under TYPE_CHECKING, in a stub, and a module that is named as a string. Files
have their paths in the package, or in the repository if they are programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "cuda_gctx"
# Folders of programs that use the package: each is one room.
PROGRAMS = ("benchmarks", "examples")

PYTHON = {".py", ".pyi"}
CYTHON = {".pyx", ".pxd"}
CPP = {".cpp", ".hpp", ".h", ".inc", ".def", ".cu", ".cuh"}
# What declares and what defines are one unit.
OF_A_UNIT = PYTHON | CYTHON | {".cpp", ".hpp", ".h"}

# Where an import finds its module: a stub and a module in Python read stubs first, as type checkers do.
SUFFIXES_OF_IMPORT = {".py": (".py", ".pyx"), ".pyx": (".py", ".pyx"), ".pxd": (".py", ".pyx"), ".pyi": (".pyi", ".py")}
CYTHON_FROM = re.compile(r"^[ \t]*from\s+([\w.]+)\s+(c?import)\b\s*(\([^)]*\)|.*)", re.MULTILINE)
CYTHON_IMPORT = re.compile(r"^[ \t]*(c?import)\s+(.*)", re.MULTILINE)
CYTHON_INCLUDE = re.compile(
    r"^[ \t]*cdef extern from\s+[\"']([^\"']+)[\"']|^[ \t]*include\s+[\"']([^\"']+)", re.MULTILINE
)
CPP_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
MODULE = re.compile(rf"{PACKAGE}(\.\w+)+")
DOCSTRING = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL)

Arrow = tuple[str, str]


def name_of(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix().removeprefix(f"{PACKAGE}/")


def files(root: Path) -> Iterator[Path]:
    """The sources of the package and of the programs."""
    for top in (PACKAGE, *PROGRAMS):
        for file in (root / top).rglob("*"):
            if file.suffix in PYTHON | CYTHON | CPP:
                yield file


def module_files(folder: Path, dotted: str, name: str | None, suffixes: Collection[str]) -> Iterator[Path]:
    """The file below a folder that an import of a module, or of a name from a module, reads."""
    module = folder.joinpath(*dotted.split("."))
    for candidate in ([module / name] if name else []) + [module]:
        choices = [*(candidate.with_suffix(suffix) for suffix in suffixes), candidate / "__init__.py"]
        found = next((file for file in choices if file.is_file()), None)
        if found is not None:
            yield found
            return
    raise LookupError(f"no file below {folder} defines {dotted}{f'.{name}' if name else ''}")


def imported(file: Path, root: Path, dotted: str, name: str | None, suffixes: Collection[str]) -> Iterator[Path]:
    """The same for an absolute import: of the package or, in a program, of modules in the folders around it."""
    if dotted.split(".")[0] == PACKAGE:
        yield from module_files(root, dotted, name, suffixes)
    elif not file.is_relative_to(root / PACKAGE):
        for folder in file.relative_to(root).parents:
            with suppress(LookupError):
                yield from module_files(root / folder, dotted, name, suffixes)
                return


def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of a file in Python, in no order; in half the time of ast.walk()."""
    found: list[ast.AST] = [ast.parse(file.read_text())]
    for node in found:  # which grows meanwhile
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return found


def python_imports(file: Path, root: Path) -> Iterator[Path]:
    suffixes = SUFFIXES_OF_IMPORT[file.suffix]
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from imported(file, root, alias.name, None, suffixes)
        elif isinstance(node, ast.ImportFrom):
            packages = file.relative_to(root).parts[: -node.level] if node.level else ()
            dotted = ".".join([*packages, *([node.module] if node.module else [])])
            for alias in node.names:
                if node.level:
                    yield from module_files(root, dotted, alias.name, suffixes)
                else:
                    yield from imported(file, root, dotted, alias.name, suffixes)
        elif isinstance(node, ast.JoinedStr):
            # A module whose name is computed can be each public module of its folder.
            prefix = node.values[0].value if node.values and isinstance(node.values[0], ast.Constant) else ""
            if re.fullmatch(rf"{PACKAGE}\.([\w.]+\.)?", str(prefix)):
                yield from sorted(root.joinpath(*str(prefix).split(".")).glob("[!_]*.py"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            with suppress(LookupError):  # a string may look like a module and be something else
                yield from module_files(root, node.value, None, suffixes)


def cython_imports(file: Path, root: Path) -> Iterator[Path]:
    text = DOCSTRING.sub('""', file.read_text())
    for dotted, kind, names in CYTHON_FROM.findall(text):
        suffixes = SUFFIXES_OF_IMPORT[file.suffix] if kind == "import" else (".pxd",)
        for name in re.sub(r"#.*", "", names).strip("() \n").split(","):
            if name.strip():
                yield from imported(file, root, dotted, name.split()[0], suffixes)
    for kind, names in CYTHON_IMPORT.findall(text):
        suffixes = SUFFIXES_OF_IMPORT[file.suffix] if kind == "import" else (".pxd",)
        for name in names.split("#")[0].split(","):
            yield from imported(file, root, name.split()[0], None, suffixes)
    for match in CYTHON_INCLUDE.findall(text):
        yield from included(file, root, "".join(match))


def included(file: Path, root: Path, name: str) -> Iterator[Path]:
    package = root / PACKAGE
    folders = (file.parent, package / "_cpp", package)
    yield from [found for folder in folders if (found := (folder / name).resolve()).is_file()][:1]


def cpp_includes(file: Path, root: Path) -> Iterator[Path]:
    for name in CPP_INCLUDE.findall(file.read_text()):
        yield from included(file, root, name)


def arrows(root: Path) -> set[Arrow]:
    """From which file to which, by imports and includes."""
    readers = (
        dict.fromkeys(PYTHON, python_imports) | dict.fromkeys(CYTHON, cython_imports) | dict.fromkeys(CPP, cpp_includes)
    )
    return {
        (name_of(file, root), name_of(target, root))
        for file in files(root)
        for target in readers[file.suffix](file, root)
        if target != file
    }


# ---- late imports: a method of a lower object that a higher room implements


# The file of the method, and the room that the method imports when it is called. A stub names the types of the results.
LATE = {
    ("__init__.py", "tracing"),
    ("_core/context.pyx", "partitions"),
    ("_core/device.pyx", "interop"),
    ("_core/device.pyx", "partitions"),
    ("_core/extension.pyi", "partitions"),
    ("_core/graph.pyx", "partitions"),
    ("_core/resources.pyx", "partitions"),
    ("partitions/graphs.py", "interop"),
    ("partitions/partitions.py", "interop"),
    ("partitions/sm_map.py", "draw"),
}


def is_late(arrow: Arrow) -> bool:
    file, target = arrow
    return (file, room(target)) in LATE


def imported_first(file: Path) -> set[str]:
    """The rooms that a file of the package imports as soon as it is imported itself."""
    return set(re.findall(rf"^(?:from|import) {PACKAGE}\.(\w+)", file.read_text(), re.MULTILINE))


# ---- units, rooms, circles


def unit(file: str) -> str:
    """A file without its suffix, so that a header and its source are one unit. The room _core is one unit: a Device has
    contexts, a context has streams, and a stream has a device.
    """
    path = Path(file)
    if path.parts[0] == "_core":
        return "_core"
    return path.with_suffix("").as_posix() if path.suffix in OF_A_UNIT else file


def room(file: str) -> str:
    """The room of a file: its folder, and in C++ the folder below _cpp."""
    *folders, name = file.split("/")
    if not folders:
        return {"__init__.py": PACKAGE}.get(name, name.split(".")[0])
    return "/".join(folders[: folders.index("_cpp") + 2]) if "_cpp" in folders else folders[0]


def circles(drawn: Collection[Arrow]) -> list[set[str]]:
    """The sets of nodes that reach each other."""
    following: dict[str, set[str]] = {}
    for node, target in drawn:
        following.setdefault(node, set()).add(target)
    reached = {node: reachable(node, following) for node in following}
    rings = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in following}
    return sorted((set(ring) for ring in rings if ring), key=sorted)


def reachable(node: str, following: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(following.get(node, ()))
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead.extend(following.get(other, ()))
    return found
