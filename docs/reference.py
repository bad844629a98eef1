"""The reference page: every public name, as the installed package declares and describes it.

    python docs/reference.py            writes docs/reference.md
    python docs/reference.py --check    fails where the page differs from the package

Signatures are read from the stubs, or from the source where a module has none; the words are the docstrings.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

PAGE = Path(__file__).resolve().parent / "reference.md"
HEAD = """# Reference

Every public name, with its signature and what it says of itself; written by `docs/reference.py`. How they are used
together is in the [guide](guide.md) and the [other pages](index.md).
"""
MODULES = (
    "cuda_gctx",
    "cuda_gctx.partitions",
    "cuda_gctx.interop.torch",
    "cuda_gctx.interop.cupy",
    "cuda_gctx.interop.numba",
    "cuda_gctx.interop.cuda_core",
    "cuda_gctx.interop.library_sms",
    "cuda_gctx.interop.nccl",
    "cuda_gctx.compat.flashinfer",
    "cuda_gctx.compat.torch_green",
    "cuda_gctx.comm",
    "cuda_gctx.tune",
    "cuda_gctx.sim",
)


@cache
def declarations(module: str) -> dict[str, ast.stmt]:
    """What a module declares, by name."""
    spec = import_module(module).__spec__
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin)
    stub = source.with_name(source.name.split(".")[0] + ".pyi")
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((stub if stub.exists() else source).read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
    return found


def is_decorated(node: ast.FunctionDef, *names: str) -> bool:
    return any(ast.unparse(decorator).split(".")[-1] in names for decorator in node.decorator_list)


def parameter(argument: ast.arg, default: ast.expr | None = None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return argument.arg + annotation
    return f"{argument.arg}{annotation}{' = ' if annotation else '='}{ast.unparse(default)}"


def parameters(node: ast.FunctionDef, *, bound: bool) -> list[str]:
    """The parameters as they are written; without self if it is bound."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    told = [parameter(*pair) for pair in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        told.insert(len(given.posonlyargs), "/")
    if given.vararg or given.kwonlyargs:
        told.append(f"*{parameter(given.vararg) if given.vararg else ''}")
    told += [parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        told.append(f"**{parameter(given.kwarg)}")
    told = told[1:] if bound else told
    return told[1:] if told[:1] == ["/"] else told


def signature(node: ast.FunctionDef, name: str, *, bound: bool) -> str:
    """How it is called, and what it returns, but where that is the class itself."""
    called = f"{name}({', '.join(parameters(node, bound=bound))})"
    if name[0].isupper() or node.returns is None:
        return called
    returned = ast.unparse(node.returns)
    if is_decorated(node, "contextmanager"):
        returned = returned.replace("Iterator[", "AbstractContextManager[", 1)
    return f"{called} -> {returned}"


def text(thing: object) -> str:
    """A docstring as Markdown: a line ``name: ...`` is an entry of a list, what is indented is code."""
    said = inspect.getdoc(thing) or ""
    said = re.sub(r"(?m)^(?: {4}.*\n?)+", lambda code: f"~~~\n{dedent(code[0]).rstrip()}\n~~~\n", said)
    return re.sub(r"(?m)^((?:\w+, )*\w+): (?=\S)", r"- `\1`: ", said)


def words(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def members(node: ast.ClassDef, owner: type) -> list[tuple[str, str]]:
    """Attributes and methods of a class: how each is written, and what it says."""
    rows = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name, written, said = item.target.id, f"{item.target.id}: {ast.unparse(item.annotation)}", ""
        elif isinstance(item, ast.FunctionDef):
            if is_decorated(item, "setter"):
                continue
            name = item.name
            said = words(inspect.getattr_static(owner, name, None))
            if is_decorated(item, "property", "cached_property"):
                assert item.returns is not None
                written = f"{name}: {ast.unparse(item.returns)}"
            else:
                static = inspect.getattr_static(owner, name, None)
                said = words(static.__func__) if isinstance(static, (staticmethod, classmethod)) else said
                written = signature(item, name, bound=not is_decorated(item, "staticmethod"))
                if isinstance(static, (staticmethod, classmethod)):
                    written = f"{node.name}.{written}"
        else:
            continue
        if not name.startswith("_"):
            rows.append((written, said))
    return rows


def constructor(node: ast.ClassDef, owner: type) -> str | None:
    """How the class is called; None where it cannot be, or is an exception."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__"):
            if "Never" in ast.unparse(item.args) or "object" in ast.unparse(item.args):
                return None
            return signature(item, node.name, bound=True)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if not hasattr(owner, "__dataclass_fields__") or issubclass(owner, BaseException):
        return None
    return f"{node.name}({', '.join(ast.unparse(field) for field in fields if ast.unparse(field.target)[0] != '_')})"


def cell(text: str) -> str:
    return text.replace("|", r"\|")


def described(name: str, thing: Any) -> list[str]:
    """The entry of one name."""
    if inspect.isfunction(thing) or inspect.isbuiltin(thing) or type(thing).__name__ == "cython_function_or_method":
        node = declarations(thing.__module__)[thing.__name__]
        assert isinstance(node, ast.FunctionDef)
        return [f"### {name}", f"`{signature(node, name, bound=False)}`", text(thing)]
    owner = thing if inspect.isclass(thing) else type(thing)
    if owner.__module__.partition(".")[0] != "cuda_gctx":
        return [f"### {name}", f"`{str(thing).replace('typing.', '')}`"]
    node = declarations(owner.__module__)[owner.__name__]
    assert isinstance(node, ast.ClassDef)
    entry = [f"### {name}"]
    if thing is not owner:
        entry.append(f"The one `{owner.__name__}` of the process.")
        if owner.__name__ in import_module(owner.__module__).__dict__.get("__all__", ()):
            return entry
    elif (called := constructor(node, owner)) is not None:
        entry.append(f"`{called}`")
    entry.append(text(owner))
    # What the constructor shows already is not told again.
    rows = [row for row in members(node, owner) if row[1] or f"{row[0].partition(':')[0]}:" not in entry[1]]
    if rows:
        table = ["| member | |", "| --- | --- |", *(f"| `{cell(written)}` | {cell(said)} |" for written, said in rows)]
        entry.append("\n".join(table))
    return entry


def page() -> str:
    parts = [HEAD.rstrip()]
    told: dict[int, str] = {}
    for module in MODULES:
        found = import_module(module)
        parts += [f"## {module}", inspect.getdoc(found).split("\n\n")[0] if found.__doc__ else ""]
        for name in found.__all__:
            thing = getattr(found, name)
            # A name that two modules have is described where it comes first.
            if id(thing) not in told:
                told[id(thing)] = name
                parts += described(name, thing)
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/reference.md from the installed package.")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where the page differs")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print("docs/reference.md is not as the package is: run python docs/reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
