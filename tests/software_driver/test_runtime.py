"""Programs of the CUDA runtime use the C++ library of this package on the software driver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_gctx

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "native" / "runtime_launch.cu"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc: pip install nvidia-cuda-nvcc")
def test_kernel_of_nvcc_stays_in_its_partition(tmp_path: Path) -> None:
    include = Path(cuda_gctx.get_include())
    compiler = ["nvcc", "-std=c++17", "-cudart", "shared", str(PROGRAM), "-o", str(tmp_path / "program")]
    library = ["-I", str(include), "-L", str(include.parent), "-lcuda_gctx", f"-Xlinker=-rpath={include.parent}"]
    subprocess.run([*compiler, *library], check=True, timeout=300)
    command = [sys.executable, "-m", "cuda_software_driver", "run", "--", str(tmp_path / "program")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "launched: 16 of 16 SMs (cudaSuccess)\ncaptured: 16 SMs (cudaSuccess)\n", done.stderr
