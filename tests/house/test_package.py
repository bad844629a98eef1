"""What the installed package is: its names, what importing it costs, and what it carries."""

from __future__ import annotations

import ast
import importlib.metadata
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cuda_gctx

PACKAGE = Path(cuda_gctx.__file__).parent
MODULE_OF_NAME = {name: module for module, names in cuda_gctx._NAMES_OF_MODULE.items() for name in names}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    imports = [
        node
        for block in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]
    assert {alias.asname: node.module for node in imports for alias in node.names} == MODULE_OF_NAME


@pytest.mark.parametrize("name", cuda_gctx.__all__)
def test_public_name_is_the_one_of_its_module(name: str) -> None:
    value = getattr(cuda_gctx, name)
    assert getattr(sys.modules[MODULE_OF_NAME[name]], name) is value
    assert name in dir(cuda_gctx)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'cuda_gctx' has no attribute 'Devices'"):
        cuda_gctx.Devices  # noqa: B018


def test_version_is_that_of_the_distribution() -> None:
    assert cuda_gctx.__version__ == importlib.metadata.version("cuda-gctx")


def test_import_loads_no_driver_and_no_framework() -> None:
    loaded = json.loads(
        run_python(
            "import sys; before = set(sys.modules); import cuda_gctx, json;"
            "maps = open('/proc/self/maps').read();"
            "print(json.dumps({'modules': sorted({m.split('.')[0] for m in sys.modules.keys() - before}),"
            "                  'driver': 'libcuda' in maps}))"
        )
    )
    assert not {"numpy", "torch", "cupy", "numba", "cuda", "rich", "click", "ctypes"} & set(loaded["modules"])
    assert not loaded["driver"]


@pytest.mark.parametrize("module", ["cuda_gctx", "cuda_gctx._core.device"])
def test_import_takes_less_than_50_ms(module: str) -> None:
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    assert min(float(run_python(code)) for _ in range(5)) < 0.050


def test_the_sources_say_that_they_are_not_the_package(tmp_path: Path) -> None:
    copied = tmp_path / "cuda_gctx"
    (copied / "_core").mkdir(parents=True)
    for name in ("__init__.py", "_lazy.py", "_core/__init__.py", "_core/above.py"):
        (copied / name).write_bytes((PACKAGE / name).read_bytes())
    ended = subprocess.run([sys.executable, "-c", "import cuda_gctx"], cwd=tmp_path, capture_output=True, text=True)
    assert f"{copied} holds the sources of cuda_gctx, and nothing is built in it: start Python in" in ended.stderr
    assert ended.returncode


def test_every_extension_module_has_a_stub() -> None:
    modules = {path.with_name(path.name.split(".")[0]) for path in PACKAGE.rglob("*.so")} - {PACKAGE / "libcuda_gctx"}
    assert modules
    assert modules == {path.with_suffix("") for path in PACKAGE.rglob("*.pyi")}
    assert (PACKAGE / "py.typed").exists()


def test_package_carries_no_sources_of_its_libraries() -> None:
    assert not [path for pattern in ("*.cpp", "*.hpp", "*.pyx", "CMakeLists.txt") for path in PACKAGE.rglob(pattern)]


def test_package_is_under_3_mb() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in importlib.metadata.files("cuda-gctx") or ():
            if "__pycache__" not in file.parts and ".." not in file.parts:
                wheel.write(file.locate(), file)
    assert 0 < archive.tell() < 3_000_000


def test_software_driver_does_not_take_the_place_of_the_real_one() -> None:
    # A library of the same soname would be handed out by the loader for every later dlopen("libcuda.so.1").
    code = f"""
import ctypes
simulated = ctypes.CDLL({str(PACKAGE / "sim" / "lib" / "libcuda.so.1")!r})
try:
    print(ctypes.CDLL("libcuda.so.1")._handle == simulated._handle)
except OSError:
    print(False)
"""
    assert run_python(code).strip() == "False"


def test_lint_alone_brings_what_mypy_reads() -> None:
    wanted: dict[str, set[str]] = {}
    for line in importlib.metadata.requires("cuda-gctx") or []:
        requirement, _, extra = line.partition("; extra == ")
        wanted.setdefault(extra.strip("'\""), set()).add(requirement.strip())
    assert wanted["cli"]
    assert wanted["plot"]
    assert wanted["cli"] | wanted["plot"] <= wanted["lint"]
