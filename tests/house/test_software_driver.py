"""The software driver is a product of its own: the SDK names it in a few files, and no other code depends on it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

SOURCES = REPOSITORY / "cuda_gctx"
# The files that may name the software driver, and the reason.
MAY_NAME = {
    "_cpp/driver/driver.cpp": "opens a driver",
    "_cpp/driver/driver.hpp": "opens a driver",
    "_cpp/driver/locate.cpp": "chooses a driver",
    "_cpp/driver/locate.hpp": "chooses a driver",
    "_cpp/handles/cuda_gctx.h": "the choice of a driver, in C",
    "_core/cpp.pxd": "Device.is_simulated and the choice, as Cython sees them",
    "_core/device.pyx": "Device.is_simulated",
    "_core/driver.pyx": "the choice of a driver",
    "_core/extension.pyi": "Device.is_simulated",
    "cli/_checks.py": "the choice of a driver, which doctor shows",
    "cli/_options.py": "--profile and --driver",
    "cli/_programs.py": "the machine that programs in a partition see",
    "cli/_root.py": "the list of commands",
    "cli/share.py": "the label of what programs cost each other",
    "cli/demo.py": "the fallback of the demo, and its label",
    "cli/doctor.py": "--profile",
    "cli/trace.py": "the CUPTI that belongs to the chosen driver",
    "cli/sim.py": "the only import of the package, and the command",
    "interpose/recorder.cpp": "the label of a trace",
    "measure/machine.py": "the label of results",
    "tracing/_records.py": "the label of a trace",
    "tracing/_summary.py": "the label of a trace",
}
NAMES = re.compile(r"software.?driver|is_?simulated|\bsimulated\b|\bsim\b|CUDA_SOFTWARE_DRIVER", re.IGNORECASE)
CODE = {".py", ".pyi", ".pyx", ".pxd", ".cpp", ".hpp", ".h", ".inc", ".cuh"}


def files_of_the_sdk() -> list[Path]:
    tests = SOURCES / "_cpp" / "tests"
    return [file for file in sorted(SOURCES.rglob("*")) if file.suffix in CODE and not file.is_relative_to(tests)]


def test_the_files_that_name_the_software_driver_are_listed() -> None:
    found = {file.relative_to(SOURCES).as_posix() for file in files_of_the_sdk() if NAMES.search(file.read_text())}
    assert found == set(MAY_NAME)


def test_one_file_imports_the_software_driver() -> None:
    importing = re.compile(r"^\s*(from|import)\s+cuda_software_driver|import_module\(", re.MULTILINE)
    found = {
        file.relative_to(SOURCES).as_posix()
        for file in files_of_the_sdk()
        if "cuda_software_driver" in file.read_text() and importing.search(file.read_text())
    }
    assert found == {"cli/sim.py"}


@pytest.mark.long
def test_the_line_of_the_readme_installs_both_products(tmp_path: Path) -> None:
    line = re.search(r"`(pip install \./software_driver [^`]*)`", (REPOSITORY / "README.md").read_text())
    assert line is not None
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin" / "python", "-m", *shlex.split(line[1])], cwd=REPOSITORY, check=True)
    done = subprocess.run([tmp_path / "bin" / "cuda-gctx", "demo"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    assert b"simulated" in done.stdout
