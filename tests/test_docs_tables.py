"""The numbers of docs/performance.md are those of benchmarks/results, and the benchmark that writes them runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def run_program(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=120,
    )


def has_cuda_header() -> bool:
    try:
        files = importlib.metadata.files("nvidia-cuda-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    version = importlib.metadata.version("nvidia-cuda-runtime").split(".")
    return any(file.name == "cuda.h" for file in files) and (int(version[0]), int(version[1])) >= (13, 4)


def test_page_shows_the_stored_results() -> None:
    check = run_program(BENCHMARKS / "tables.py", "--check")
    assert check.returncode == 0, check.stderr


@pytest.fixture(scope="module")
def simulated_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the benchmark prints on the software driver, and the file that it writes."""
    if not has_cuda_header() or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("needs a C++ compiler and nvidia-cuda-runtime 13.4 or newer")
    folder = tmp_path_factory.mktemp("benchmarks")
    program = run_program(BENCHMARKS / "calls.py", "--rounds", "2", "--out", folder, CUDA_GCTX_DRIVER="sim:h200@13.0")
    assert program.returncode == 0, program.stderr
    [path] = folder.iterdir()
    return program.stdout, path


@pytest.mark.sim_only
def test_every_call_is_timed_raw_and_with_this_package(simulated_run: tuple[str, Path]) -> None:
    calls = {call["name"]: call["contestants"] for call in json.loads(simulated_run[1].read_text())["calls"]}
    assert all("ns" in contestants["cuda_gctx"] for contestants in calls.values())
    assert {name for name, contestants in calls.items() if "ns" not in contestants.get("raw", {})} == {"is_green"}
    for contestants in calls.values():
        for contestant in contestants.values():
            if "ns" in contestant:
                assert 0 < contestant["ns"]["p10"] <= contestant["ns"]["median"] <= contestant["ns"]["p90"]


@pytest.mark.sim_only
def test_simulated_times_are_called_so_and_compared_with_nothing(simulated_run: tuple[str, Path]) -> None:
    printed, path = simulated_run
    result = json.loads(path.read_text())
    assert printed.startswith("simulated")
    assert "to raw" not in printed
    assert result["simulated"] is True
    assert not any(call["targets"] for call in result["calls"] + result["imports"])


@pytest.mark.sim_only
def test_simulated_results_are_kept_out_of_the_page(simulated_run: tuple[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(BENCHMARKS, tmp_path / "benchmarks")
    (copy / "results").mkdir(exist_ok=True)
    shutil.copy(simulated_run[1], copy / "results")
    (tmp_path / "docs").mkdir()
    shutil.copy(BENCHMARKS.parent / "docs" / "performance.md", tmp_path / "docs")
    check = run_program(copy / "tables.py", "--check")
    assert check.returncode != 0
    assert "simulated" in check.stderr
