"""Compares the newest releases in the registry with what the drop-ins claim: "make releases".

    python tests/outside/releases.py [--record]

``releases.json`` has the facts of the releases that were compared last: version, public names, arguments, and the types
of errors that each function raises itself. The report lists what is different in the newest release, and fails if there
is anything. ``--record`` writes the facts of the newest releases, after the drop-ins have been brought up to date.

Downloads wheels, about 500 MB, and reads single files of them. Nothing of them is installed or run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("releases.json")
MAC = ("--platform", "macosx_14_0_arm64", "--python-version", "3.12")  # a fifth of the size of the one for Linux


class Package(NamedTuple):
    """The files of a wheel that are compared, and options of the download."""

    files: list[str]
    download: tuple[str, ...] = ()


PACKAGES = {
    "torch": Package(["torch/cuda/green_contexts.py"], MAC),
    "flashinfer-python": Package(["flashinfer/green_ctx.py"]),
    "cuda-core": Package(["cuda/core/cu13/_context.pyi", "cuda/core/cu13/_device_resources.pyi"]),
    "nvidia-nccl-cu13": Package(["nvidia/nccl/include/nccl.h"]),
}
# Of NCCL's header, which is not Python: what the page on NCCL names.
HEADER_NAMES = ("ncclAllReduceConfig", "ncclCollConfig_t", "maxCTAs", "minCTAs", "NCCL_CTA_POLICY_EFFICIENCY")


def described(function: ast.FunctionDef) -> str:
    """The arguments, and the types of errors that the function raises itself, not those of what it calls."""
    given = function.args
    arguments = ", ".join(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            found.add(node.exc.func.id)
    return f"({arguments})" + "".join(f" {error}" for error in sorted(found))


def arguments_in(description: str) -> set[str]:
    return set(description[1:].partition(")")[0].split(", ")) - {""}


def functions_in(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (node.name[0] != "_" or node.name == "__init__"):
            if isinstance(node, ast.ClassDef):
                yield from functions_in(node.body, f"{node.name}.")
            else:
                yield prefix + node.name, node
        elif isinstance(node, ast.If):  # names that depend on the platform
            yield from functions_in([*node.body, *node.orelse], prefix)


def facts_of(file: str, text: str) -> dict[str, Any]:
    if file.endswith(".h"):
        return {name: bool(re.search(rf"\b{name}\b", text)) for name in HEADER_NAMES}
    return {name: described(function) for name, function in functions_in(ast.parse(text).body)}


def newest(package: str) -> str:
    """The version that the registry offers."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^{package} \(([^)]*)\)", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def read_wheel(package: str, version: str) -> dict[str, Any]:
    """The facts of each file of a release."""
    what = PACKAGES[package]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
        subprocess.run([*command, *what.download, f"{package}=={version}"], check=True, stderr=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            return {file: facts_of(file, opened.read(file).decode()) for file in what.files}


def differences(package: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between the facts of two releases."""
    lines = []
    for file in before.keys() | now.keys():
        old, new = before.get(file, {}), now.get(file, {})
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                lines.append(f"{package}: {name} of {file} was {old.get(name)}, and is {new.get(name)}")
    return sorted(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the facts of the newest releases")
    record = parser.parse_args().record
    known: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found, problems = {}, []
    for package in PACKAGES:
        version = newest(package)
        facts = read_wheel(package, version)
        found[package] = {"version": version, "files": facts}
        before = known.get(package, {"version": "nothing", "files": {}})
        new = differences(package, before["files"], facts)
        print(f"{package}: compared {before['version']}, newest {version}: {len(new)} differences")
        problems += new
    print("\n".join(problems))
    if record:
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
