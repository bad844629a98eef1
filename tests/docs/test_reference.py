"""The reference has every public module, and everything in it that can be called has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import FunctionType

import pytest

import cuda_gctx

from ..conftest import REPOSITORY

PAGES = REPOSITORY / "docs" / "reference"
DOCUMENTED = re.findall(
    r"automodule:: ([\w.]+)$", "\n".join(page.read_text() for page in PAGES.glob("*.md")), re.MULTILINE
)
# Programs, modules for the other modules of the package, and the library of the core, which is not a module.
WITHOUT_REFERENCE = {"bench", "cli", "draw", "measure", "libcuda_gctx"}


def public_modules() -> set[str]:
    """Modules and packages that users import: with names of their own, and no underscore in the path."""
    found = {"cuda_gctx"}
    for module in pkgutil.iter_modules(cuda_gctx.__path__, "cuda_gctx."):
        if module.name.split(".")[1] not in WITHOUT_REFERENCE and "._" not in module.name:
            found.add(module.name)
    return found


def callables() -> list[tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}
    for module in DOCUMENTED:
        for name in getattr(importlib.import_module(module), "__all__", ()):
            thing = getattr(importlib.import_module(module), name)
            if not (inspect.isclass(thing) or callable(thing)) or not str(thing.__module__).startswith("cuda_gctx"):
                continue
            found.setdefault(id(thing), (f"{module}.{name}", thing))
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and (callable(value) or isinstance(value, (staticmethod, classmethod))):
                    found.setdefault(id(value), (f"{module}.{name}.{member}", getattr(value, "__func__", value)))
    return list(found.values())


def test_every_public_module_has_a_place_in_the_reference() -> None:
    assert public_modules() <= set(DOCUMENTED)


def arguments(thing: object) -> set[str]:
    """The arguments of a function: those of the stub for a compiled one, which has no signature to read."""
    owner = getattr(thing, "__objclass__", thing)
    module = sys.modules[str(getattr(owner, "__module__", None) or "cuda_gctx")]
    stub = Path(str(module.__file__).split(".")[0] + ".pyi")
    if not isinstance(thing, FunctionType) and stub.exists():
        node: ast.AST = ast.parse(stub.read_text())
        for name in str(getattr(thing, "__qualname__", "")).split("."):
            node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name)
        assert isinstance(node, ast.FunctionDef)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {argument.arg for argument in given}
    try:
        return set(inspect.signature(thing).parameters)  # type: ignore[arg-type]
    except ValueError:
        return set()


# Every argument is named in these rooms; a result that only holds values has the names of its fields.
ROOMS = ("cuda_gctx._core", "cuda_gctx.partitions", "cuda_gctx.sim", "cuda_gctx.compat", "cuda_gctx.interop")
WITHOUT_ARGUMENTS = ("cuda_gctx.interop.library_sms",)
FUNCTIONS = [(name, thing) for name, thing in callables() if not inspect.isclass(thing)]


@pytest.mark.parametrize(("name", "thing"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_docstring_names_every_argument(name: str, thing: object) -> None:
    module = str(getattr(getattr(thing, "__objclass__", thing), "__module__", ""))
    if not module.startswith(ROOMS) or module.startswith(WITHOUT_ARGUMENTS):
        return
    words = inspect.getdoc(thing) or ""
    if isinstance(thing, FunctionType) and name.rsplit(".", 1)[0].rsplit(".", 1)[-1][:1].isupper():
        owner = getattr(importlib.import_module(name.rsplit(".", 2)[0]), name.rsplit(".", 2)[1])
        words += inspect.getdoc(owner) or ""  # what several methods take is said once, in the docstring of the class
    missing = {
        argument
        for argument in arguments(thing) - {"self", "cls", "args", "kwargs"}
        if not re.search(rf"\b{argument}\b", words)
    }
    assert not missing, f"the docstring of {name} does not name {', '.join(sorted(missing))}"


@pytest.mark.parametrize(("name", "thing"), callables(), ids=[name for name, _ in callables()])
def test_what_can_be_called_has_a_docstring(name: str, thing: object) -> None:
    assert (inspect.getdoc(thing) or "").strip(), name
