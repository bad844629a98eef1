"""What the installed package is: its names, what importing it costs, and what it carries."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import cuda_gctx
import cuda_software_driver
from cuda_software_driver import library_path

from ..common import tool
from ..conftest import REPOSITORY

PACKAGE = Path(cuda_gctx.__file__).parent
pytestmark = pytest.mark.skipif(
    PACKAGE == REPOSITORY / "cuda_gctx", reason="the install is editable: 'make test' tests an installed package"
)
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


@pytest.mark.parametrize("package", ["cuda_gctx", *(f"cuda_gctx.{room}" for room in ("comm", "partitions", "tune"))])
def test_errors_are_shown_under_the_names_by_which_they_are_imported(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert getattr(sys.modules[found.__module__], found.__name__) is found
            assert "._" not in found.__module__
            assert found.__module__ in ("cuda_gctx", package)


def test_dir_shows_public_names_alone() -> None:
    hidden = {"Any", "TYPE_CHECKING", "annotations", "find_spec", "lazy_names"}
    assert not hidden & set(dir(cuda_gctx))
    assert [name for name in dir(cuda_gctx) if name.startswith("_") and not name.startswith("__")] == []


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'cuda_gctx' has no attribute 'Devices'"):
        cuda_gctx.Devices  # noqa: B018


def test_version_is_that_of_the_distribution() -> None:
    assert cuda_gctx.__version__ == importlib.metadata.version("cuda-gctx")
    assert f"version: {cuda_gctx.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()


def test_the_extra_sim_allows_the_software_driver_of_the_same_release() -> None:
    requirements = map(Requirement, importlib.metadata.requires("cuda-gctx") or [])
    [driver] = [each for each in requirements if each.name == "cuda-software-driver"]
    assert driver.marker is not None
    assert driver.marker.evaluate({"extra": "sim"})
    assert driver.specifier.contains(cuda_software_driver.__version__)
    major, minor = map(int, cuda_gctx.__version__.split(".")[:2])
    assert cuda_software_driver.__version__.startswith(f"{major}.{minor}.")
    assert not driver.specifier.contains(f"{major}.{minor + 1}.0")
    assert importlib.metadata.version("cuda-software-driver") == cuda_software_driver.__version__


# What "import cuda_gctx" runs. The rest of the package is imported when a name of it is used first.
LOADED_AT_IMPORT = {"cuda_gctx", "cuda_gctx._core", "cuda_gctx._core.lazy"}


def loaded_by(statement: str) -> tuple[set[str], bool]:
    """The modules that a statement imports in a fresh interpreter, and whether a driver is loaded after it."""
    modules, driver = json.loads(
        run_python(
            f"import sys; before = set(sys.modules); {statement}; after = set(sys.modules); import json;"
            "print(json.dumps([sorted(after - before), 'libcuda.so' in open('/proc/self/maps').read()]))"
        )
    )
    return set(modules), driver


def of_the_package(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "cuda_gctx"}


def test_import_loads_little() -> None:
    # How long it takes is measured by benchmarks/calls.py; what takes the time is counted here.
    modules, driver = loaded_by("import cuda_gctx")
    assert of_the_package(modules) == LOADED_AT_IMPORT
    assert len(modules) <= 50
    assert not driver


@pytest.mark.parametrize("name", ["Device", "PartitionPool"])
def test_a_public_name_loads_no_framework(name: str) -> None:
    modules, driver = loaded_by(f"from cuda_gctx import {name}")
    assert not {"numpy", "torch", "cupy", "numba", "cuda", "rich", "click", "ctypes"} & modules
    assert not {"interop", "compat", "tune", "comm", "cli"} & {
        module.split(".")[1] for module in of_the_package(modules) - {"cuda_gctx"}
    }
    assert not driver


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that contains the Python sources of the package, and nothing compiled."""
    for file in PACKAGE.rglob("*.py"):
        copy = tmp_path / "cuda_gctx" / file.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        ["-c", "import cuda_gctx; print(cuda_gctx.__file__)"],
        ["-c", "import cuda_gctx._core.extension as core; print(core.__file__)"],
    ],
)
def test_python_started_in_a_clone_finds_the_installed_package(clone: Path, program: list[str]) -> None:
    done = subprocess.run([sys.executable, *program], cwd=clone, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(PACKAGE)


def test_modules_of_the_package_run_as_programs_in_a_clone(clone: Path) -> None:
    command = [sys.executable, "-m", "cuda_gctx.cli", "--help"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout


def test_sources_without_an_installed_package_name_the_command_that_builds(clone: Path) -> None:
    # -I -S: no installed packages are on the path.
    code = f"import sys; sys.path.insert(0, {str(clone)!r}); import cuda_gctx"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert f"{clone / 'cuda_gctx'} contains the sources of cuda_gctx without compiled modules" in done.stderr
    assert "make develop" in done.stderr


def test_links_of_the_description_work_on_a_package_index() -> None:
    text = importlib.metadata.metadata("cuda-gctx").get_payload()
    assert isinstance(text, str)
    assert text.startswith("# cuda_gctx\n")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "[" not in re.sub(r"```.*?```|`[^`]*`|\[[^]]*\]\((https://|#)[^)]*\)", "", text, flags=re.DOTALL)


def test_no_container_is_made_by_cython_of_a_python_one() -> None:
    """Cython's function returns a copy, outside of what catches errors: without memory, it ends the process."""
    written = sorted((REPOSITORY / "build" / "package" / "cython").rglob("*.cpp"))
    if not written:
        pytest.skip("build/package/cython is not here: make writes it")
    found = {path.stem: set(re.findall(r"__pyx_convert_\w+_from_py\w*", path.read_text())) for path in written}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_a_release_links_to_the_files_of_its_version(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "cuda_gctx/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    address = "https://example.org/someone/cuda-gctx"
    program = [sys.executable, str(REPOSITORY / "packaging" / "address.py"), "--root", str(tmp_path)]
    subprocess.run([*program, address], check=True)
    made = subprocess.run(
        [sys.executable, "-m", "hatch_fancy_pypi_readme"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]*)\)", made.stdout)
    elsewhere = set(re.findall(r"\]\((https://[^)]*)\)", (REPOSITORY / "README.md").read_text()))
    files = [
        link.removeprefix(f"{address}/{'raw' if picture else 'blob'}/v{cuda_gctx.__version__}/").partition("#")[0]
        for picture, link in links
        if link not in elsewhere
    ]
    assert len(files) > 20
    assert "docs/images/latency.svg" in files
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []
    assert f'Repository = "{address}"' in (tmp_path / "pyproject.toml").read_text()
    other = subprocess.run([*program, "--version-is", "0.0.1"], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert other.stderr == f"the package has version {cuda_gctx.__version__}, not 0.0.1\n"
    again = subprocess.run([*program, address], capture_output=True, text=True, check=False)
    assert "must have this line once" in again.stderr


def test_every_extension_module_has_a_stub() -> None:
    modules = {path.with_name(path.name.split(".")[0]) for path in PACKAGE.rglob("*.so") if path.name[:3] != "lib"}
    assert modules
    assert modules == {path.with_suffix("") for path in PACKAGE.rglob("*.pyi")}
    assert (PACKAGE / "py.typed").exists()


def test_package_carries_no_sources_of_its_libraries() -> None:
    sources = {
        path
        for pattern in ("*.cpp", "*.hpp", "*.pyx", "*.pxd", "*.md", "CMakeLists.txt")
        for path in PACKAGE.rglob(pattern)
    }
    headers = {PACKAGE / "include" / name for name in ("cuda_gctx.hpp", "cuda_gctx_driver.hpp")}
    assert sources == {*headers, PACKAGE / "native" / "c.pxd"}


def names_needed(library: Path) -> str:
    return subprocess.run(
        ["nm", "-D", "-C", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, of GNU binutils")
def test_libraries_use_no_streams_of_the_c_plus_plus_library() -> None:
    """They depend on its locales, of which other libraries of the process may bring their own."""
    for path in PACKAGE.rglob("*.so"):
        # Cython can translate the exception of streams, and names its type.
        names = names_needed(path).replace("typeinfo for std::ios_base::failure", "")
        assert re.findall(r"std::(?:\w+::)*(?:\w*stream\w*|ios_base|basic_ios|locale)\b", names) == [], path.name


def test_the_wheel_is_small() -> None:
    if b"libstdc++.so.6\0" not in (PACKAGE / "libcuda_gctx.so").read_bytes():
        pytest.skip("this compiler links the C++ library into each library, which the wheels do not")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in importlib.metadata.files("cuda-gctx") or ():
            if "__pycache__" not in file.parts and ".." not in file.parts:
                wheel.write(file.locate(), file)
    assert 0 < archive.tell() < 1_500_000


def test_package_carries_no_driver_library() -> None:
    carried = {Path(file).name for file in importlib.metadata.files("cuda-gctx") or ()}
    assert "libcuda_gctx.so" in carried
    assert not {name for name in carried if name.startswith(("libcuda.so", "libnvidia-ml", "libcuda_software_driver"))}


def test_software_driver_does_not_take_the_place_of_the_real_one() -> None:
    # A library of the same soname would be handed out by the loader for every later dlopen("libcuda.so.1").
    code = f"""
import ctypes
simulated = ctypes.CDLL({library_path()!r})
try:
    print(ctypes.CDLL("libcuda.so.1")._handle == simulated._handle)
except OSError:
    print(False)
"""
    assert run_python(code).strip() == "False"


def test_lint_alone_brings_what_mypy_reads() -> None:
    requirements = tool("requirements")
    assert set(requirements.requirements_of("cli")) <= set(requirements.requirements_of("lint"))
