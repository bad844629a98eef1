"""The software driver as a package of its own: its README is executed with it, without the rest of cuda_gctx."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cuda_software_driver as sim

from .common import CUDA_INCLUDE, needs_cuda_header

FOLDER = Path(__file__).resolve().parents[1]
README = (FOLDER / "README.md").read_text()
# Without the packages of this environment that it must not need, and as an interpreter finds it that has it installed.
START = """
import runpy, sys
sys.modules.update(dict.fromkeys(("cuda_gctx", "numpy", "click", "rich")))
sys.path.insert(0, {folder!r})
sys.argv = sys.argv[1:]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains the package as its wheel does: the modules and the libraries."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "cuda_software_driver"
    shutil.copytree(FOLDER / "src" / "cuda_software_driver", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "lib").symlink_to(sim.library_folder(), target_is_directory=True)
    return folder


def blocks(title: str, language: str) -> list[str]:
    """The code of one language below a title of the README."""
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def shell(command: str, installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs commands as the README has them, with the package on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_GCTX_")}
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]]),
        "PYTHONPATH": str(installed),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p cuda_software_driver.pytest_plugin -p no:cacheprovider",
    }
    return subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@needs_cuda_header
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_c_program_runs_on_it(installed: Path, tmp_path: Path) -> None:
    (program,), (commands,), (output,) = (blocks("A C program", language) for language in ("c", "sh", "text"))
    (tmp_path / "name.c").write_text(program)
    done = shell(commands.replace("$CUDA_HOME/include", str(CUDA_INCLUDE)), installed, tmp_path)
    assert done.stdout == output, done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc: pip install nvidia-cuda-nvcc")
def test_the_program_of_nvcc_runs_on_it(installed: Path, tmp_path: Path) -> None:
    (program,), (commands,), (output,) = (blocks("A program of nvcc", language) for language in ("cuda", "sh", "text"))
    (tmp_path / "square.cu").write_text(program)
    done = shell(commands, installed, tmp_path)
    assert done.stdout == output, done.stderr


def test_the_cuda_core_program_runs_on_it(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed here")
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed here")
    program, commands, output = ("\n".join(blocks("A cuda.core program", one)) for one in ("python", "sh", "text"))
    (tmp_path / "partitions.py").write_text(program)
    done = shell(commands, installed, tmp_path)
    assert done.stdout == output, done.stderr


def test_the_numba_program_runs_on_it(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed here")
    (program,), (commands,), (output,) = (blocks("A numba program", language) for language in ("python", "sh", "text"))
    (tmp_path / "arrays.py").write_text(program)
    done = shell(commands, installed, tmp_path)
    assert done.stdout == output, done.stderr


def test_the_pytest_project_runs_on_it_by_hand_and_in_the_workflow(installed: Path, tmp_path: Path) -> None:
    (project,), (by_hand,) = blocks("A pytest project", "python"), blocks("A pytest project", "sh")
    (workflow,) = blocks("A workflow", "yaml")
    (tmp_path / "test_cards.py").write_text(project)
    (in_workflow,) = re.findall(r"- run: (python .*)", workflow)
    drivers = re.search(r"driver: \[(.*?)\]", workflow)
    assert drivers is not None
    oldest = drivers[1].split(",")[0].strip('"')
    for command in (by_hand, in_workflow.replace("${{ matrix.driver }}", oldest)):
        done = shell(command, installed, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
    assert f"running on a simulated machine: h200@{oldest},devices=2" in done.stderr


def test_the_marker_gives_a_test_a_machine_of_its_own(installed: Path, tmp_path: Path) -> None:
    (project,) = blocks("Tests of a Python project", "python")
    (tmp_path / "test_cards.py").write_text(project)
    done = shell("python -m pytest --strict-markers", installed, tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_copy_of_a_missing_result_fails_there(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_result.py").write_text(
        """
import ctypes

PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry fill(.param .u64 x)"
PTX += b"{ wgmma.fence.sync.aligned; ret; }\\n\\0"

def test_it():
    driver = ctypes.CDLL("libcuda.so.1")
    context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuModuleLoadData(ctypes.byref(module), PTX)
    driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"fill")
    driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    assert driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None) == 0
    assert driver.cuMemcpyDtoH_v2(ctypes.create_string_buffer(4), memory, ctypes.c_size_t(4)) == 0
"""
    )
    command = "python -m cuda_software_driver run -- python -m pytest"
    done = shell(command, installed, tmp_path)
    assert done.returncode == 1
    assert "kernel fill writes" in done.stdout


def test_it_needs_no_other_package(installed: Path, tmp_path: Path) -> None:
    start = START.format(folder=str(installed), module="cuda_software_driver")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start, "-", "profiles"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "NVIDIA H200 (simulated)" in done.stdout, done.stderr


def run_from(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The command ``run`` of the package in a folder, without site-packages."""
    start = START.format(folder=str(folder), module="cuda_software_driver")
    words = [sys.executable, "-I", "-S", "-c", start, "-", "run", "--", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_run_works_from_a_folder_with_a_space(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    shutil.copytree(installed, folder, symlinks=True)
    libraries = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"
    done = run_from(folder, sys.executable, "-c", libraries)
    assert done.returncode == 0, done.stderr
    assert {"libcuda_software_driver.so", "libsoftware_driver_keep_ptx.so"} <= set(
        re.findall(r"lib\w+\.so", done.stdout)
    )
    assert "ld.so" not in done.stderr


@pytest.mark.parametrize("separator", [":", ";"])
def test_run_refuses_a_folder_that_the_loaders_path_cannot_contain(
    installed: Path, tmp_path: Path, separator: str
) -> None:
    folder = tmp_path / f"a{separator}folder"
    shutil.copytree(installed, folder, symlinks=True)
    done = run_from(folder, "true")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(folder) in line


def test_its_wheel_is_under_1_mb(installed: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in (installed / "cuda_software_driver").glob("*.py"):
            wheel.write(path)
        for path in Path(sim.library_folder()).iterdir():
            wheel.write(path)
    assert 100_000 < archive.tell() < 1_000_000
