"""A driver in front of the software driver, whose calls a test holds up or lets fail: see front.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_gctx import system

from ..conftest import REPOSITORY


class Front:
    """A built front, and the environment of a program that uses it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler, which builds the driver of this test")
        self.library = folder / "front.so"
        self.simulated = system.driver_path
        source = REPOSITORY / "tests" / "core" / "front.c"
        table = REPOSITORY / "cuda_gctx" / "_cpp" / "driver"
        command = [compiler, "-shared", "-fPIC", "-w", "-I", table, source, "-o", self.library, "-ldl", "-lpthread"]
        subprocess.run(command, check=True)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "CUDA_GCTX_DRIVER": str(self.library), "SIMULATED": self.simulated, **more}
