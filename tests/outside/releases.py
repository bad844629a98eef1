"""Compares the newest releases in the registry with the claims of the drop-ins and the pages: "make releases".

    python tests/outside/releases.py [--record]

``releases.json`` has the date and the facts of the releases that were compared last. The facts of a Python function are
its arguments, the types of errors that it raises itself, and a hash of its body and of the private helpers that it
uses. The hash ignores docstrings and formatting. A stub has no bodies, so its hash contains the docstrings. The facts
of a name in a C header are a hash of the declarations with that name and of their comments.

The report names each function that is different in the newest release, and the claim to check. The program exits with 1
if there is a difference, or if pip fails for a package. ``--record`` writes the facts of the newest releases, after the
drop-ins have been brought up to date.

Downloads wheels, about 900 MB, and reads single files of them. Nothing of them is installed or run. cuda.core has no
source distribution in the registry: its stubs are compared, not its bodies. Holoscan's classes are compiled: its public
names are compared.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("releases.json")
MAC = ("--platform", "macosx_14_0_arm64")  # torch without CUDA


class Watched(NamedTuple):
    """A file of a wheel. claim: what depends on it. names: the only names that matter, in a header or a Python file."""

    claim: str
    names: tuple[str, ...] = ()


class Package(NamedTuple):
    """The files of a wheel that are compared, and options of the download."""

    files: dict[str, Watched]
    download: tuple[str, ...] = ()


PACKAGES = {
    "torch": Package(
        {"torch/cuda/green_contexts.py": Watched("cuda_gctx.compat.torch_green, docs/drop-ins.md#torchs-greencontext")},
        MAC,
    ),
    "flashinfer-python": Package(
        {
            "flashinfer/green_ctx.py": Watched("cuda_gctx.compat.flashinfer, docs/drop-ins.md#flashinfer"),
            "flashinfer/cake_fmha.py": Watched(
                "cuda_gctx.interop.library_sms.plan_flashinfer_by_stream, docs/drop-ins.md#flashinfer",
                ("enable_cake_fmha_sm_partitions",),
            ),
            "flashinfer/comm/mixed_comm.py": Watched("cuda_gctx.comm.MixedCommHandler, docs/communication.md"),
        }
    ),
    "sglang-kernel": Package(
        {"sgl_kernel/spatial.py": Watched("cuda_gctx.compat.sgl_kernel, docs/drop-ins.md#sglang-sgl_kernelspatial")}
    ),
    "cuda-core": Package(
        {
            "cuda/core/cu13/_context.pyi": Watched("cuda_gctx.Context"),
            "cuda/core/cu13/_device_resources.pyi": Watched("cuda_gctx.SMResource, cuda_gctx.WorkqueueResource"),
        }
    ),
    "holoscan-core-cu13": Package(
        {
            "holoscan/execution.pyi": Watched(
                "docs/native.md, the table of Holoscan",
                (
                    *("CudaGreenContextPlacement.__init__", "CudaGreenContextPlacement.sm_count"),
                    *("CudaGreenContextCapability.min_sm_partition_size", "query_cuda_green_context_capability"),
                    "DeploymentBinding.bind_cuda_green_context",
                ),
            )
        },
        ("--platform", "manylinux_2_39_x86_64"),
    ),
    "nvidia-nccl-cu13": Package(
        {
            "nvidia/nccl/include/nccl.h": Watched(
                "cuda_gctx.interop.nccl, docs/frameworks.md#nccl",
                ("ncclAllReduceConfig", "ncclCollConfig_t", "maxCTAs", "minCTAs", "NCCL_CTA_POLICY_EFFICIENCY"),
            )
        }
    ),
    "nvidia-cuda-runtime": Package(
        {
            "nvidia/cu13/include/cuda.h": Watched(
                "the core, docs/guarantee.md",
                (
                    *("cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGreenCtxGetDevResource", "cuGreenCtxStreamCreate"),
                    *("cuGreenCtxRecordEvent", "cuGreenCtxWaitEvent", "cuGreenCtxGetId", "cuCtxFromGreenCtx"),
                    *("cuDevSmResourceSplit", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc"),
                    *("cuDeviceGetDevResource", "cuCtxGetDevResource", "cuStreamGetDevResource", "cuStreamGetGreenCtx"),
                ),
            ),
            "nvidia/cu13/include/cuda_runtime_api.h": Watched(
                "docs/native.md#the-cuda-runtime-and-execution-contexts",
                ("cudaGreenCtxCreate", "cudaExecutionCtxStreamCreate", "cudaExecutionCtxGetDevResource"),
            ),
        }
    ),
}

# ---- Python


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


def statements_in(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """The functions, and the fields of each class under "Class.*", public and private, with their full names."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from statements_in(node.body, f"{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        elif isinstance(node, ast.If):  # names that depend on the platform
            yield from statements_in([*node.body, *node.orelse], prefix)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield (f"{prefix}*" if prefix else target.id), node


def is_public(name: str) -> bool:
    return all(part[0] != "_" or part == "__init__" for part in name.split("."))


def structure(node: Any, with_docstrings: bool) -> Any:
    """The tree as lists, without empty fields: these differ between versions of Python."""
    if isinstance(node, list):
        return [structure(entry, with_docstrings) for entry in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not with_docstrings:
        fields["body"] = node.body[ast.get_docstring(node) is not None :]
    given = [(name, structure(value, with_docstrings)) for name, value in fields.items() if value not in (None, [])]
    return [type(node).__name__, *given]


def hash_of(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:12]


def names_used_in(node: ast.AST) -> set[str]:
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return used | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def python_facts(file: str, text: str, only: tuple[str, ...]) -> dict[str, str]:
    places: dict[str, list[ast.stmt]] = {}
    private: dict[str, list[ast.stmt]] = {}
    for name, node in statements_in(ast.parse(text).body):
        places.setdefault(name, []).append(node)
        if not is_public(name):
            private.setdefault(name.rpartition(".")[2], []).append(node)

    def with_helpers(nodes: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, and the private ones that they use, also those that these use."""
        reached, left = set(), [*nodes]
        helpers: list[ast.stmt] = []
        while left:
            for name in sorted(names_used_in(left.pop()) & private.keys() - reached):
                reached.add(name)
                helpers += private[name]
                left += private[name]
        return [*nodes, *sorted(helpers, key=lambda node: node.lineno)]

    facts = {}
    for name, nodes in places.items():
        if name in only or (not only and is_public(name)):
            functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
            if functions or name.endswith(".*"):
                body = structure(with_helpers(nodes), file.endswith(".pyi"))
                facts[name] = f"{described(functions[-1]) if functions else '()'} #{hash_of(body)}"
    return facts


# ---- C headers


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """The declarations of a header, each as code, and as code with the comments before and inside it."""
    comments = r"/\*.*?\*/|//[^\n]*"
    # A comment, a line of the preprocessor, or the next sign that can end or nest a declaration.
    parts = re.compile(rf"(?P<comment>{comments})|(?P<line>^[ \t]*#(?:\\\n|[^\n])*)|[{{}};]", re.DOTALL | re.MULTILINE)
    begin = depth = 0
    for part in parts.finditer(text):
        if part["comment"]:
            continue
        before = text[begin : part.start()]
        if part["line"]:
            if depth == 0:
                yield re.sub(comments, "", part["line"], flags=re.DOTALL), before + part["line"]
                begin = part.end()
            continue
        if part[0] == "{" and 'extern "C"' in before[-40:]:
            begin = part.end()
            continue
        depth = max(0, depth + {"{": 1, "}": -1}.get(part[0], 0))
        if part[0] == ";" and depth == 0:
            whole = text[begin : part.end()]
            yield re.sub(comments, "", whole, flags=re.DOTALL), whole
            begin = part.end()


def header_facts(text: str, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for code, whole in declarations(text):
        for name in names:
            if re.search(rf"\b{name}\b", code):
                found.setdefault(name, []).append(" ".join(whole.split()))
    return {name: f"in {len(found[name])} places #{hash_of(found[name])}" for name in names if name in found}


def facts_of(file: str, text: str, names: tuple[str, ...] = ()) -> dict[str, str]:
    return header_facts(text, names) if file.endswith(".h") else python_facts(file, text, names)


# ---- the registry


class PipError(Exception):
    """Carries the output of a pip that failed."""


def newest_python() -> str:
    """The newest Python that this package supports, by its classifiers."""
    found = re.findall(r"Programming Language :: Python :: 3\.(\d+)", (REPOSITORY / "pyproject.toml").read_text())
    return f"3.{max(map(int, found))}"


def pip(*arguments: str) -> str:
    # A constraint of this machine must not hide the newest release.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise PipError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def newest(package: str) -> str:
    """The version that the registry offers for the newest supported Python."""
    text = pip("index", "versions", package, "--python-version", newest_python(), *PACKAGES[package].download)
    found = re.search(rf"^{package} \(([^)]*)\)", text, re.MULTILINE)
    if found is None:
        raise PipError(f"pip names no version of {package}: {text.strip()}")
    return found[1]


def read_wheel(package: str, version: str) -> dict[str, dict[str, str]]:
    """The facts of each file of a release. A file that the release does not have has none."""
    what = PACKAGES[package]
    with tempfile.TemporaryDirectory() as folder:
        options = ("-q", "--no-deps", "--only-binary", ":all:", "--python-version", newest_python(), *what.download)
        pip("download", *options, "-d", folder, f"{package}=={version}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            names = opened.namelist()
            return {
                file: facts_of(file, opened.read(file).decode(), watched.names) if file in names else {}
                for file, watched in what.files.items()
            }


def differences(package: str, before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> list[str]:
    """Lists the differences between the facts of two releases, with the claims to check."""
    lines = []
    for file in before.keys() | now.keys():
        old, new = before.get(file, {}), now.get(file, {})
        watched = PACKAGES[package].files.get(file)
        claim = f"; check {watched.claim}" if watched else ""
        for name in sorted(old.keys() | new.keys()):
            was, now_is = old.get(name), new.get(name)
            if was == now_is:
                continue
            if was and now_is and was.partition("#")[0] == now_is.partition("#")[0]:
                change = "has another body" if not file.endswith((".h", ".pyi")) else "has another text"
            else:
                change = f"was {was or 'absent'}, and is {now_is or 'absent'}"
            lines.append(f"{package}: {name} of {file} {change}{claim}")
    return sorted(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the facts of the newest releases")
    record = parser.parse_args(arguments).record
    known: dict[str, Any] = json.loads(RECORD.read_text())["packages"] if RECORD.exists() else {}
    found, problems = dict(known), []
    for package in PACKAGES:
        before = known.get(package, {"version": "nothing", "files": {}})
        try:
            version = newest(package)
            facts = read_wheel(package, version)
        except PipError as error:
            print(f"{package}: pip failed, so that {before['version']} is compared with nothing:\n{error}")
            problems.append(f"{package}: pip failed")
            continue
        found[package] = {"version": version, "files": facts}
        new = differences(package, before["files"], facts)
        print(f"{package}: compared {before['version']}, newest {version}: {len(new)} differences", flush=True)
        problems += new
    print("\n".join(problems))
    if record:
        written = {"recorded": date.today().isoformat(), "packages": found}
        RECORD.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
