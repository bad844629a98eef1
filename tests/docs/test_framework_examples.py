"""The examples with frameworks, on a GPU; one whose framework is not installed is skipped and says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from cuda_gctx import Device
from cuda_software_driver import library_folder

from ..conftest import REPOSITORY
from ..numba_kernels import skip_unless_numba_compiles

pytestmark = pytest.mark.filterwarnings("default")
PROGRAMS = REPOSITORY / "examples" / "frameworks"


@pytest.mark.sim_only
def test_the_latency_of_cuda_core_is_measured_on_a_simulated_machine() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed here")
    pytest.importorskip(
        "nvidia.cu13", reason="no nvidia.cu13 package, which brings the compiler of CUDA, is installed here"
    )
    # The durations of its kernels are not known here: the times are printed, and are no times of a card.
    machine = {"LD_LIBRARY_PATH": library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": "h200,unknown=ignore"}
    program = [sys.executable, str(PROGRAMS / "cuda_core_latency.py")]
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_GCTX_DRIVER"} | machine
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "(simulated)" in done.stdout
    assert "partition of 8 SMs: median " in done.stdout


@pytest.mark.gpu_only
@pytest.mark.parametrize(
    ("example", "module", "said"),
    [
        ("torch_partition", "torch", "the same as without partitions: True"),
        ("cupy_partition", "cupy", "control has 16 SMs"),
        ("numba_partition", "numba_cuda", "on 16 SMs"),
        ("cuda_core_partition", "cuda.core", "control has 16 SMs"),
        ("cuda_core_latency", "cuda.core", "partition of 8 SMs: median "),
        ("flashinfer_split", "torch", "[8, 16, 24, "),
        ("torch_green_context", "torch", "and they share none"),
        ("torch_graphs_by_layout", "torch", "the graphs and the bulk work are right: True"),
        ("torch_library_sms", "torch", "1 product measured"),
        ("triton_persistent", "triton", "control has 16 SMs"),
        ("nccl_partition", "torch", "the sum over 1 ranks is 1"),
        ("../comm_compute/one_gpu", "torch", "the sum over 4 ranks is right: True"),
    ],
)
def test_an_example_with_a_framework_runs(example: str, module: str, said: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed here")
    if module == "numba_cuda":
        skip_unless_numba_compiles()
    run(example, said)


@pytest.mark.gpu_only
def test_ranks_with_a_gpu_each_run() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    if Device.count() < 2:
        pytest.skip("needs two GPUs")
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run("../comm_compute/several_gpus", "rank 1 of 2: every element is 64.0: True", *ranks)


@pytest.mark.gpu_only
def test_the_program_of_the_page_on_one_capture_runs() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    page = (REPOSITORY / "docs" / "graphs.md").read_text()
    [program] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "keep_graph=True" in text]
    said = finished("-c", program).splitlines()
    shown = [re.fullmatch(r"(\w+): (\d+) SMs \(.*\), [\d.]+ ms, equal (\w+)", line) for line in said]
    assert [one and one.groups() for one in shown] == [("small", "16", "True"), ("large", "64", "True")], said


def run(example: str, said: str, *launcher: str) -> None:
    assert said in finished(*launcher, str(PROGRAMS / f"{example}.py"))


def finished(*arguments: str) -> str:
    """What a program prints, which ends without an error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "NCCL_NVLS_ENABLE": "0"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
