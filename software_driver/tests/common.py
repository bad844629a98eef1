"""Helpers of several test files: the CUDA header, and programs in children."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cuda_software_driver import library_folder

Kind = TypeVar("Kind", bound=BaseException)
PROJECT = Path(__file__).resolve().parents[1]
HARDWARE = PROJECT / "tests" / "hardware"


def cuda_include() -> Path | None:
    """The folder of cuda.h in the wheel nvidia-cuda-runtime."""
    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime"):
        if (13, 5) <= tuple(map(int, found.version.split(".")[:2])) < (14, 0):
            for file in found.files or ():
                if file.name == "cuda.h":
                    return Path(str(file.locate())).parent
    return None


CUDA_INCLUDE = cuda_include()
needs_cuda_header = pytest.mark.skipif(
    CUDA_INCLUDE is None, reason="no cuda.h of CUDA 13.5 or newer: pip install 'nvidia-cuda-runtime>=13.5,<14'"
)


def run_on_machine(code: str, *arguments: str, machine: str = "h200@13.0") -> subprocess.CompletedProcess[str]:
    """Runs a program in a child whose libcuda.so.1 is the software driver."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": library_folder(),
            "CUDA_SOFTWARE_DRIVER_MACHINE": machine,
            "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
        },
    )


def refusal(kind: type[Kind], action: Callable[[], object]) -> Kind:
    """The error that an action raises, without its traceback, whose frames would keep objects alive."""
    try:
        answer = action()
    except kind as error:
        return error.with_traceback(None)
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")
