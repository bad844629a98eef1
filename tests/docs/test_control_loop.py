"""The programs that people copy: the control loop, with a partition, without one and as two programs; the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

SERVER = str(REPOSITORY / "examples" / "asyncio_server.py")
LOOP = str(REPOSITORY / "examples" / "control_loop" / "loop.py")


def said(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=110, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def missed(printed: str) -> tuple[int, int]:
    found = re.search(r"missed (\d+) of (\d+) deadlines", printed)
    assert found is not None, printed
    return int(found[1]), int(found[2])


def p99_us(printed: str) -> float:
    found = re.search(r"p99 (\d+) us", printed)
    assert found is not None, printed
    return float(found[1])


@pytest.mark.sim_only
def test_a_partition_keeps_deadlines_that_a_priority_misses() -> None:
    # On a simulated GPU, it measures device time by itself: the host's clock says nothing there.
    words = (sys.executable, LOOP, "--steps", "100")
    assert missed(said(*words, CUDA_GCTX_DRIVER="sim:h200@13.0")) == (0, 100)
    assert missed(said(*words, "--without", CUDA_GCTX_DRIVER="sim:h200@13.0")) == (100, 100)


@pytest.mark.sim_only
def test_two_programs_keep_deadlines_without_a_word_of_partitions() -> None:
    share = (sys.executable, "-m", "cuda_gctx.cli", "share", "--no-mps", "--until", "control")
    control = ("control=16", "--", sys.executable, LOOP, "--steps", "100", "--only", "control")
    bulk = ("rest", "--", sys.executable, LOOP, "--only", "bulk", "--seconds", "60")
    printed = said(*share, *control, ":", *bulk, CUDA_GCTX_DRIVER="sim:h200@13.0")
    assert missed(printed) == (0, 100)


@pytest.mark.sim_only
def test_a_picture_has_a_bar_for_each_step(tmp_path: Path) -> None:
    picture = tmp_path / "latencies.svg"
    said(sys.executable, LOOP, "--steps", "50", "--svg", str(picture), CUDA_GCTX_DRIVER="sim:h200@13.0")
    assert len(re.findall(r"M[\d.]+ 160v", picture.read_text())) == 50


@pytest.mark.sim_only
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells, in order, as a notebook runs them, with kernels of this package in place of PyTorch's."""
    for file in (REPOSITORY / "examples" / "control_loop").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    cells = json.loads((tmp_path / "control_loop.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    commands = [cell.removeprefix("!") for cell in code if cell.startswith("!")]
    shown = [cell for cell in code if not cell.startswith("!")]
    environment = {
        "CUDA_GCTX_DRIVER": "sim:h200@13.0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    printed = []
    for command in commands:
        words = command.replace("torch_work", "spin_work").replace("--steps 2000", "--steps 100")
        words = words.replace("share ", "share --no-mps ").replace("--only bulk", "--only bulk --seconds 60")
        printed.append(said("sh", "-c", f"cd {tmp_path} && {words}", **environment))
    assert [missed(words) for words in printed] == [(0, 100), (100, 100), (0, 500)]
    assert all((tmp_path / re.findall(r'SVG\("(.+)"\)', cell)[0]).read_text().startswith("<svg") for cell in shown)


@pytest.mark.sim_only
def test_urgent_requests_of_a_server_wait_for_no_batch_in_a_partition() -> None:
    def longest_us(*words: str) -> int:
        printed = said(sys.executable, SERVER, *words, CUDA_GCTX_DRIVER="sim:h200@13.0")
        [found] = re.findall(r"40 urgent requests: at most (\d+) us", printed)
        return int(found)

    batch_us = 1000
    assert longest_us() < 0.1 * batch_us
    assert longest_us("--without") > batch_us


@pytest.mark.gpu_only
@pytest.mark.alone
def test_a_partition_of_its_own_halves_the_p99_of_a_policy_next_to_training() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("nvidia-cuda-mps-control is not installed here")
    loop = (sys.executable, LOOP, "--work", "torch_work", "--steps", "2000")
    share = (sys.executable, "-m", "cuda_gctx.cli", "share", "--until", "control")
    programs = ("control=16", "--", *loop, "--only", "control", ":", "rest", "--", *loop, "--only", "bulk")
    assert p99_us(said(*share, *programs)) <= p99_us(said(*loop, "--without")) / 2
