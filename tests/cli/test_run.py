"""``cuda-gctx run``: the layout that a command gets, and torch in one partition from the start of a process on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cuda_gctx import Layout

from ..conftest import REPOSITORY
from .test_command_line import child, run

pytestmark = pytest.mark.sim_only

SHOW = "import os; print(os.environ['CUDA_GCTX_LAYOUT'])"
PARTITION = "from cuda_gctx import Device\nwith Device().partition() as parts: print(parts.names, parts[0].sm_count)"
# torch on the software driver, with torch's list of what to call when it initialises CUDA.
TORCH = """
import ctypes, importlib.util, sys
from types import SimpleNamespace
targets = []
blas = SimpleNamespace(
    cublasGetSmCountTarget=lambda handle, count: 0,
    cublasSetSmCountTarget=lambda handle, count: targets.append(count.value) or 0,
)
load = ctypes.CDLL
ctypes.CDLL = lambda name, *options, **named: blas if "cublas" in str(name) else load(name, *options, **named)
spec = importlib.util.spec_from_file_location("stand_in_torch", {path!r})
stand_in = importlib.util.module_from_spec(spec)
sys.modules["stand_in_torch"] = stand_in
spec.loader.exec_module(stand_in)
torch = stand_in.StandInTorch()
queued = []
torch.targets = targets
torch.cuda._lazy_call = queued.append
torch.cuda.init = lambda: [call() for call in queued]
sys.modules["torch"] = torch
"""
PROGRAM = """
import sys, threading
assert "torch" not in sys.modules and "cuda_gctx._core.extension" not in sys.modules
import torch
from cuda_gctx import Stream
print("before", torch.cuda.current_stream().cuda_stream == torch._defaults[0].handle)
torch.cuda.init()
def show(where):
    stream = torch.cuda.current_stream()
    print(where, Stream(stream).resources.sm.sm_count, "SMs of device", stream.device.index)
show("main")
print("hint", torch.targets)
other = threading.Thread(target=show, args=("thread",))
other.start()
other.join()
"""


@pytest.fixture
def hooked(tmp_path: Path) -> str:
    """The folder of a torch that runs on the software driver, and of another sitecustomize."""
    (tmp_path / "torch.py").write_text(TORCH.format(path=str(REPOSITORY / "tests" / "stand_in_torch.py")))
    (tmp_path / "sitecustomize.py").write_text("print('hidden', flush=True)")
    return str(tmp_path)


def test_a_command_gets_the_layout() -> None:
    done = child("run", "--layout", "decode=16,prefill=rest", "--", sys.executable, "-c", PARTITION)
    assert (done.stdout, done.returncode) == ("('decode', 'prefill') 16\n", 0), done.stderr


def test_the_file_of_a_layout_may_be_out_of_reach_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(Layout(decode=16).to_json())
    done = child("run", "--layout", str(tmp_path / "layout.json"), sys.executable, "-c", SHOW)
    assert done.stdout.strip() == Layout(decode=16).to_json()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layout", "decode=many", "--", "true"], "'decode=many' is not a layout: invalid request 'many'"),
        (["--layout", "", "--", "true"], "at least one partition"),
        (["--layout", "decode=16", "--as", "prefill", "--", "true"], "no partition 'prefill': the names are decode"),
        (["--layout", "decode=16"], "COMMAND"),
        (["--", "true"], "--layout"),
    ],
)
def test_wrong_words_are_refused_before_the_command_runs(arguments: list[str], reason: str) -> None:
    done = run("run", *arguments)
    assert done.exit_code == 2
    assert reason in done.stderr


def test_a_command_that_cannot_be_run_ends_with_127() -> None:
    done = child("run", "--layout", "decode=16", "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "Error: cannot run no-such-command: No such file or directory\n")


def test_torch_runs_in_the_partition_from_its_start_on(hooked: str) -> None:
    for rank, device in (("1", 1), ("2", 0)):
        done = child(
            *("run", "--layout", "decode=16,prefill=rest", "--as", "decode", "--", sys.executable, "-c", PROGRAM),
            PYTHONPATH=os.pathsep.join(filter(None, [hooked, os.environ.get("PYTHONPATH")])),
            LOCAL_RANK=rank,
            CUDA_GCTX_DRIVER="sim:h200@13.0,devices=2",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "hidden",  # in the process of cuda-gctx, too
            "hidden",
            "before True",
            f"main 16 SMs of device {device}",
            "hint [16]",
            "thread 132 SMs of device 0",  # is not reached
        ]
        assert "torch runs in partition decode, 16 SMs of NVIDIA H200" in done.stderr


def test_a_percentage_of_mps_is_refused_where_torch_starts(hooked: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "control")
    done = child(
        *("run", "--layout", "decode=16", "--as", "decode", "--", sys.executable, "-c", PROGRAM),
        PYTHONPATH=os.pathsep.join(filter(None, [hooked, os.environ.get("PYTHONPATH")])),
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path),
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50",
    )
    assert done.returncode == 1
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 overrides partitions" in done.stderr


def test_mps_is_told_as_text_and_as_json() -> None:
    text = run("mps", "decode=16,prefill=rest")
    document = json.loads(run("mps", "decode=16", "prefill=rest", "--json").stdout)
    assert document["plan"]["v3"] in text.stdout
    assert [process["chunks"] for process in document["plan"]["processes"]] == [2, 14]
    refused = run("mps", "decode=128", "prefill=rest")
    assert (refused.exit_code, "needs 17 chunks" in refused.stderr) == (1, True)


def test_a_partition_that_the_device_cannot_give_is_an_error_where_torch_starts(hooked: str) -> None:
    done = child(
        *("run", "--layout", "decode=16,prefill=200", "--as", "decode", "--", sys.executable, "-c", PROGRAM),
        PYTHONPATH=os.pathsep.join(filter(None, [hooked, os.environ.get("PYTHONPATH")])),
    )
    assert done.returncode == 1
    assert "SplitError: CUDA_GCTX_LAYOUT='decode=16,prefill=200': " in done.stderr
