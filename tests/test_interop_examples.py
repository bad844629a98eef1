"""The examples with frameworks, on a GPU; one whose framework is not installed is skipped and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .common import skip_where_numba_cannot_compile
from .conftest import REPOSITORY

pytestmark = [pytest.mark.gpu_only, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    ("example", "module", "said"),
    [
        ("torch_partition", "torch", "the same as without partitions: True"),
        ("cupy_partition", "cupy", "decode has 16 SMs"),
        ("numba_partition", "numba_cuda", "on 16 SMs"),
        ("cuda_core_partition", "cuda.core", "decode has 16 SMs"),
        ("flashinfer_split", "torch", "[8, 16, 24, "),
    ],
)
def test_an_example_with_a_framework_runs(example: str, module: str, said: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed here")
    if module == "numba_cuda":
        skip_where_numba_cannot_compile()
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "frameworks" / f"{example}.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert said in done.stdout
