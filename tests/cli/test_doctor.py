"""``cuda-gctx doctor``: what it finds wrong, what it lets pass, and what it says to do."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import Device
from cuda_gctx.partitions.causes import too_few_queues

from .test_command_line import child, run

SETTINGS = [
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PROTOCOL_VERSION",
    "CUDA_MPS_SM_PARTITION",
    "CUDA_VISIBLE_DEVICES",
]

# Of settings that are not subjects themselves.
SUBJECTS = {
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "MPS contexts",
    "CUDA_MPS_PROTOCOL_VERSION": "MPS protocol",
    "CUDA_MPS_SM_PARTITION": "MPS partition",
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of the packages that are installed, to be changed."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("cuda_gctx.cli._checks.version", version)
    return versions


def findings() -> dict[str, Any]:
    document = json.loads(run("doctor", "--json").stdout)
    assert document["healthy"] is not any(check["state"] == "problem" for check in document["checks"])
    return {check["subject"]: check for check in document["checks"]}


def test_a_healthy_environment_ends_with_0(dev: Device, installed: dict[str, str]) -> None:
    assert {found["state"] for found in findings().values()} == {"ok"}
    done = run("doctor")
    assert done.exit_code == 0
    assert dev.name in done.stdout
    assert "Suggested fixes" not in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "state", "says"),
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "problem", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "4", "warning", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "many", "warning", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "33", "warning", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "²", "warning", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "٣", "warning", "at most 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32", "ok", None),
        ("CUDA_LAUNCH_BLOCKING", "1", "problem", "unset it"),
        ("CUDA_LAUNCH_BLOCKING", "0", "ok", None),
        ("CUDA_MODULE_LOADING", "EAGER", "ok", None),
        ("CUDA_MODULE_LOADING", "LAZY", "ok", None),
        ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1", "warning", "unset it"),
        ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "0", "ok", None),
        ("CUDA_MPS_PROTOCOL_VERSION", "3", "ok", None),
        ("CUDA_MPS_PROTOCOL_VERSION", "4", "warning", "use one of them"),
        ("CUDA_MPS_SM_PARTITION", "GPU-1/x", "warning", "without MPS it has no effect"),
        ("CUDA_VISIBLE_DEVICES", "", "problem", "unset it"),
        ("CUDA_VISIBLE_DEVICES", "-1", "problem", "unset it"),
        ("CUDA_VISIBLE_DEVICES", "-1,0", "problem", "unset it"),
        ("CUDA_VISIBLE_DEVICES", ",0", "problem", "unset it"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", "problem", "unset it"),
        ("CUDA_VISIBLE_DEVICES", "0", "ok", None),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937", "ok", None),
    ],
)
def test_a_setting_is_judged(
    dev: Device, monkeypatch: pytest.MonkeyPatch, name: str, value: str, state: str, says: str | None
) -> None:
    monkeypatch.setenv(name, value)
    found = findings()[SUBJECTS.get(name, name)]
    assert found["state"] == state
    assert (says in found["advice"]) if says else found["advice"] is None


@pytest.mark.parametrize("value", ["²", "٣", "many", ""])
def test_what_is_not_a_number_leaves_the_queues_as_they_are(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", value)
    assert too_few_queues(8, "contexts") is None


@pytest.mark.sim_only
@pytest.mark.parametrize(("devices", "state"), [(0, "warning"), (1, "warning"), (2, "ok")])
def test_devices_that_are_named_are_held_against_those_the_driver_sees(devices: int, state: str) -> None:
    done = child("doctor", "--json", CUDA_GCTX_DRIVER=f"sim:h200,devices={devices}", CUDA_VISIBLE_DEVICES="0, 1")
    [found] = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == "CUDA_VISIBLE_DEVICES"]
    assert found["state"] == state
    assert ("device 0 is the first" if devices == 2 else f"lists 2, but {devices} are visible") in found["found"]


@pytest.mark.parametrize(("state", "status"), [("problem", 1), ("warning", 0)])
def test_a_problem_ends_with_1_and_a_warning_with_0_and_both_are_reported(
    dev: Device, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], state: str, status: int
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1" if state == "problem" else "4")
    done = run("doctor")
    assert done.exit_code == status
    assert any(line.split()[:2] == [state, "CUDA_DEVICE_MAX_CONNECTIONS"] for line in done.stdout.splitlines())
    assert "- CUDA_DEVICE_MAX_CONNECTIONS: set it to the number of concurrent streams" in done.stdout


def test_an_mps_daemon_is_seen_by_its_pipe(dev: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").write_text("no pipe")
    assert findings()["MPS"]["state"] == "ok"
    (tmp_path / "mps" / "control").unlink()
    os.mkfifo(tmp_path / "mps" / "control")
    found = findings()["MPS"]
    assert found["state"] == "warning"
    assert str(tmp_path / "mps") in found["found"]
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/x")
    assert findings()["MPS"]["state"] == findings()["MPS partition"]["state"] == "ok"


@pytest.mark.parametrize(
    ("percentage", "without_daemon", "with_daemon"),
    [
        ("50", "warning", "problem"),
        ("half", "warning", "problem"),
        ("100", "ok", "warning"),
        ("100.0", "ok", "warning"),
        ("", "ok", "warning"),
    ],
)
def test_an_mps_share_below_all_is_a_problem_where_there_is_a_daemon(
    dev: Device,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    percentage: str,
    without_daemon: str,
    with_daemon: str,
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)
    assert findings()["MPS"]["state"] == without_daemon
    (tmp_path / "mps").mkdir()
    os.mkfifo(tmp_path / "mps" / "control")
    assert findings()["MPS"]["state"] == with_daemon


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("driver", "says", "advice"),
    [
        ("/no/such/driver.so", "that CUDA_GCTX_DRIVER names could not be opened", "correct CUDA_GCTX_DRIVER"),
        ("sim:h200,devices=0", "CUDA_ERROR_NO_DEVICE", "nvidia-smi"),
        ("sim:voodoo", "no card 'voodoo'", "correct CUDA_GCTX_DRIVER"),
        ("sim:h200@12.3", "CUDA 12.3", "12.4 or newer"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_problem_and_the_rest_is_reported_all_the_same(
    driver: str, says: str, advice: str
) -> None:
    done = child("doctor", "--json", CUDA_GCTX_DRIVER=driver)
    assert done.returncode == 1
    first, *others = json.loads(done.stdout)["checks"]
    assert (first["subject"], first["state"]) == ("driver", "problem")
    assert says in first["found"]
    assert advice in first["advice"]
    assert "CUDA_LAUNCH_BLOCKING" in [other["subject"] for other in others]
    assert not done.stderr


def test_a_fix_is_told_once_and_no_line_ends_in_spaces() -> None:
    done = child("doctor", CUDA_GCTX_DRIVER="/no/such/driver.so")
    assert done.stdout.count("correct CUDA_GCTX_DRIVER") == 1
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_without_a_driver_nothing_is_said_of_hidden_devices() -> None:
    done = child("doctor", "--json", CUDA_GCTX_DRIVER="/no/such/driver.so", CUDA_VISIBLE_DEVICES="0")
    [found] = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == "CUDA_VISIBLE_DEVICES"]
    assert (found["state"], found["advice"]) == ("ok", None)


@pytest.mark.parametrize(
    ("package", "version", "state", "says"),
    [
        ("torch", "2.11.0+cu130", "ok", None),
        ("torch", "2.3.1", "warning", "2.4 or newer"),
        ("torch", "2.11.0+cpu", "warning", "a build for CUDA"),
        ("cupy", "14.2.0", "ok", None),
        ("cupy", "13.6.0", "warning", "14.0 or newer"),
        ("numba-cuda", "0.30.4", "ok", None),
        ("numba-cuda", "0.29.0", "warning", "0.30 or newer"),
        ("cuda-core", "0.9.0", "warning", "1.0 or newer"),
        ("cuda-bindings", "13.3.1", "ok", None),
    ],
)
def test_versions_are_held_against_what_is_needed(
    dev: Device, installed: dict[str, str], package: str, version: str, state: str, says: str | None
) -> None:
    assert findings()[package]["found"] == "not installed"
    installed[package] = version
    found = findings()[package]
    assert found["state"] == state
    assert version in found["found"]
    assert (says in found["advice"]) if says else found["advice"] is None


def test_cuda_core_without_what_it_runs_on_is_a_warning(dev: Device, installed: dict[str, str]) -> None:
    installed["cuda-core"] = "1.2.2"
    assert findings()["cuda-bindings"]["state"] == "warning"
    assert "cuda-bindings==13.*" in findings()["cuda-bindings"]["advice"]
    installed["cuda-bindings"] = "13.3.1"
    assert findings()["cuda-bindings"]["state"] == "ok"


def test_cupy_is_found_under_the_names_of_its_wheels(dev: Device, installed: dict[str, str]) -> None:
    installed["cupy-cuda13x"] = "13.0"
    assert findings()["cupy-cuda13x"]["state"] == "warning"


@pytest.mark.parametrize(
    ("numba", "numpy", "state"),
    [("0.30.4", "2.5.2", "warning"), ("0.30.4", "2.3.5", "ok"), ("0.31.0", "2.5.2", "ok")],
)
def test_numba_with_a_numpy_that_it_cannot_use_is_a_warning(
    dev: Device, installed: dict[str, str], numba: str, numpy: str, state: str
) -> None:
    installed.update({"numba-cuda": numba, "numpy": numpy})
    assert findings()["numba-cuda"]["state"] == state


def test_a_slice_of_a_gpu_is_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slice:
        device_id, name, sm_count, resources = 0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, dev.resources

        def __init__(self, number: int) -> None:
            pass

        @staticmethod
        def count() -> int:
            return 1

    monkeypatch.setattr("cuda_gctx.cli._checks.Device", Slice)
    found = findings()["device 0"]
    assert found["state"] == "warning"
    assert "MIG" in found["found"]


def test_two_devices_are_both_looked_at(sim: Callable[..., Any]) -> None:
    sim("a100", devices=2)
    assert {"device 0", "device 1"} <= findings().keys()
