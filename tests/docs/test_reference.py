"""The reference has every public module, a page for each class, and an example of what can be called. A docstring names
what that takes, returns and raises."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import get_origin

import pytest

import cuda_gctx

from ..conftest import REPOSITORY

REFERENCE = REPOSITORY / "docs" / "reference"
GROUPS = sorted(REFERENCE.glob("*.md"))
PAGES_OF_CLASSES = sorted(REFERENCE.glob("*/*.md"))
# A class that its group's page lists with its module stands on its own page.
PAGES = [*PAGES_OF_CLASSES, *GROUPS]
NAMED = re.compile(r"^\.\. auto(module|class|exception|function|data):: ([\w.]+)$", re.MULTILINE)
# What has no example of its own, and why.
WITHOUT_EXAMPLE = {
    "CommBackend": "an interface that programs implement",
    "Ledger.read": "takes the driver's own answer",
    "Session.view": "needs device memory: docs/software-driver.md has one",
    "checkCudaErrors": "takes the results of cuda.bindings",
    "empty_per_locality_domain": "always raises",
    "get_locality_domain_count": "needs a card with locality domains",
    "split_device_green_ctx_by_locality_domain": "needs a card with locality domains",
    "Fork": "comes from fork()",
    "MixedCommHandler.from_process_group": "needs a process for each of two ranks: docs/communication.md has one",
    "MixedCommHandler.init_nvshmem": "needs NVSHMEM, a GPU, and a process for each of two ranks",
    "max_workqueue_concurrency": "needs driver 13.1",
    "GreenContext.split": "needs all SMs of the device",
    "Decisions.find": "for the blocks of this package",
    "Decisions.measure": "for the blocks of this package",
    "cupy_block": "for the blocks of this package",
    "torch_block": "for the blocks of this package",
    "plan_flashinfer_by_stream": "for the blocks of this package",
    "demand_choice": "for the blocks of this package",
}
# Programs, modules for the other modules of the package, and the library of the core, which is not a module.
WITHOUT_REFERENCE = {"cli", "draw", "extending", "interpose", "measure", "sim", "tracing", "libcuda_gctx"}
# Packages with a module for each library, which users import.
OF_MODULES = {"compat", "interop"}


def names_of_pages() -> dict[str, Path]:
    """The public names, in full, that the pages describe, and where."""
    found: dict[str, Path] = {}
    for page in PAGES:
        for kind, name in NAMED.findall(page.read_text()):
            names = getattr(importlib.import_module(name), "__all__", ()) if kind == "module" else ()
            for one in [f"{name}.{each}" for each in names] or [name]:
                found.setdefault(one, page)
    return found


DESCRIBED = names_of_pages()
DOCUMENTED = sorted({name.rpartition(".")[0] for name in DESCRIBED} | {"cuda_gctx.native"})


def example_in(thing: object) -> str:
    """The code of the example in a docstring, which the page of the object shows; "" if there is none."""
    found = re.search(r"^Example:\n\n((?:(?:    .*)?\n)+)", f"{inspect.getdoc(thing)}\n", re.MULTILINE)
    return "" if found is None else "".join(f"{line[4:]}\n" for line in found[1].rstrip().splitlines())


def examples_on(page: Path) -> str:
    """The code of a page: its blocks, and the examples of the docstrings that it shows."""
    things = [
        getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name, where in DESCRIBED.items()
        if where == page
    ]
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *map(example_in, things)])


def public_modules() -> set[str]:
    """Modules that users import."""
    found = {"cuda_gctx", "cuda_software_driver"}
    packages = [cuda_gctx]
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            name = module.name.rpartition(".")[2]
            if name in WITHOUT_REFERENCE or name.startswith("_"):
                continue
            found.add(module.name)
            if name in OF_MODULES:
                packages.append(importlib.import_module(module.name))
    return found


def public_classes() -> dict[int, str]:
    """The names of the public classes, each once; exceptions and warnings share a page."""
    found: dict[int, str] = {}
    for module in sorted(public_modules()):
        for name in getattr(importlib.import_module(module), "__all__", ()):
            thing = getattr(importlib.import_module(module), name)
            if inspect.isclass(thing) and not issubclass(thing, BaseException):
                found[id(thing)] = name
    return found


def callables() -> list[tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}
    for module in DOCUMENTED:
        for name in getattr(importlib.import_module(module), "__all__", ()):
            thing = getattr(importlib.import_module(module), name)
            if not (inspect.isclass(thing) or callable(thing)) or not str(thing.__module__).startswith(
                ("cuda_gctx", "cuda_software_driver")
            ):
                continue
            found.setdefault(id(thing), (f"{module}.{name}", thing))
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and (callable(value) or isinstance(value, (staticmethod, classmethod))):
                    found.setdefault(id(value), (f"{module}.{name}.{member}", getattr(value, "__func__", value)))
    return list(found.values())


def test_every_public_name_has_a_place_in_the_reference() -> None:
    described = {id(getattr(importlib.import_module(m), n)) for m, _, n in (name.rpartition(".") for name in DESCRIBED)}
    missing = [
        f"{module}.{name}"
        for module in sorted(public_modules())
        for name in getattr(importlib.import_module(module), "__all__", ())
        if id(getattr(importlib.import_module(module), name)) not in described
    ]
    assert missing == []


def test_each_class_has_a_page_of_its_own() -> None:
    titles = [re.findall(r"^# (.*)$", page.read_text(), re.MULTILINE) for page in PAGES_OF_CLASSES]
    classes = public_classes()
    assert sorted(name for [name, *_] in titles) == sorted(classes.values())
    described: dict[int, Path] = {}
    for name, page in DESCRIBED.items():
        module, _, short = name.rpartition(".")
        described.setdefault(id(getattr(importlib.import_module(module), short)), page)
    assert {number: described[number].stem for number in classes} == classes


@pytest.mark.parametrize("page", PAGES_OF_CLASSES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_the_page_of_a_class_has_an_example_and_a_link_from_its_group_and_back(page: Path) -> None:
    group, text = page.parent.with_suffix(".md"), page.read_text()
    assert f"]({group.stem}/{page.name})" in group.read_text()
    [title] = re.findall(r"^# (.*)$", group.read_text(), re.MULTILINE)
    assert text.startswith(f"[Reference](../index.md) / [{title}](../{group.name})\n\n# {page.stem}\n\n")
    assert examples_on(page).strip()


def test_what_can_be_called_has_an_example_on_its_page() -> None:
    missing = []
    for name, page in DESCRIBED.items():
        module, _, short = name.rpartition(".")
        thing = getattr(importlib.import_module(module), short)
        code = examples_on(page)
        if inspect.isclass(thing):
            methods = [
                member
                for member, value in vars(thing).items()
                if member[0] != "_" and (callable(value) or isinstance(value, (staticmethod, classmethod)))
            ]
        elif callable(thing) and get_origin(thing) is None:
            methods = []
        else:
            continue
        calls = [f"{short}.{method}" for method in methods] if methods or inspect.isclass(thing) else [short]
        missing += [
            f"{page.stem}: {call}"
            for call in calls
            if not WITHOUT_EXAMPLE.keys() & {short, call, call.rpartition(".")[2]}
            and not re.search(rf"\b{call.rpartition('.')[2]}\(", code)
        ]
    assert missing == []


@cache
def parsed(stub: Path) -> ast.Module:
    return ast.parse(stub.read_text())


def stub_of(thing: object) -> ast.FunctionDef | None:
    """What the stub says of a compiled function, which has no signature to read; None for one written in Python."""
    owner = getattr(thing, "__objclass__", thing)
    module = sys.modules[str(getattr(owner, "__module__", None) or "cuda_gctx")]
    if isinstance(thing, FunctionType) or Path(str(module.__file__)).suffix != ".so":
        return None
    # An editable install keeps the compiled modules apart from the stubs.
    node: ast.AST = parsed(REPOSITORY / f"{module.__name__.replace('.', '/')}.pyi")
    for name in str(getattr(thing, "__qualname__", "")).split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name)
    assert isinstance(node, ast.FunctionDef)
    return node


def arguments(thing: object) -> set[str]:
    """The arguments of a function."""
    node = stub_of(thing)
    if node is not None:
        return {argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    try:
        return set(inspect.signature(thing).parameters)  # type: ignore[arg-type]
    except ValueError:
        return set()


FUNCTIONS = [(name, thing) for name, thing in callables() if not inspect.isclass(thing)]


def described(name: str, thing: object) -> str:
    """The docstring of a function; what several methods written in Python share stands in that of their class."""
    words = inspect.getdoc(thing) or ""
    if isinstance(thing, FunctionType) and name.rsplit(".", 1)[0].rsplit(".", 1)[-1][:1].isupper():
        owner = getattr(importlib.import_module(name.rsplit(".", 2)[0]), name.rsplit(".", 2)[1])
        words += inspect.getdoc(owner) or ""
    return words


def test_a_docstring_names_every_argument() -> None:
    missing = [
        f"{name}: {argument}"
        for name, thing in FUNCTIONS
        for argument in sorted(arguments(thing) - {"self", "cls", "args", "kwargs"})
        if not re.search(rf"\b{argument}\b", described(name, thing))
    ]
    assert missing == []


# The files that the extension module includes.
CYTHON = "\n".join(path.read_text() for path in sorted((REPOSITORY / "cuda_gctx" / "_core").glob("*.pyx")))


def compiled_body(qualified: str) -> str:
    """The lines of a function or method of the extension module."""
    *owner, function = qualified.split(".")
    lines = CYTHON.splitlines()
    if owner:
        start = next(at for at, line in enumerate(lines) if re.match(rf"(cdef )?class {owner[0]}\b", line))
        end = next((at for at in range(start + 1, len(lines)) if re.match(r"[^\s#)]", lines[at])), len(lines))
        lines = lines[start:end]
    indent = "    " * len(owner)
    start = next(at for at, line in enumerate(lines) if re.match(rf"{indent}def {function}\(", line))
    below = (at for at in range(start + 1, len(lines)) if re.match(rf"{indent}[^\s)]", lines[at]))
    return "\n".join(lines[start : next(below, len(lines))])


def raised(thing: object) -> set[str]:
    """The exceptions that a function raises itself; a TypeError needs no words where the arguments have types."""
    owner = getattr(thing, "__objclass__", thing)
    if isinstance(thing, FunctionType):
        text = inspect.getsource(inspect.unwrap(thing))
    elif getattr(owner, "__module__", None) == "cuda_gctx._core.extension":
        text = compiled_body(thing.__qualname__)
    else:
        return set()
    return set(re.findall(r"\braise (\w+)\(", text)) - {"TypeError"}


def test_a_docstring_names_what_is_raised() -> None:
    missing = [
        f"{name}: {error}"
        for name, thing in FUNCTIONS
        for error in sorted(raised(thing))
        if error not in described(name, thing)
    ]
    assert missing == []


def test_what_can_be_called_has_a_docstring() -> None:
    assert [name for name, thing in callables() if not (inspect.getdoc(thing) or "").strip()] == []
