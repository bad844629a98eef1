"""What a process was granted by MPS or MIG, and what to tell MPS so that the partitions of a layout are processes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import Device, Layout, SplitError
from cuda_gctx.interop.mps import granted, mps_plan

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_SM_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


@pytest.fixture(params=["pipe", "socket"])
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        if request.param == "pipe":
            os.mkfifo(tmp_path / "control")
        else:
            listener.bind(str(tmp_path / "control"))
        yield


def test_a_process_has_the_whole_device(dev: Device) -> None:
    grant = granted(dev)
    assert (grant.by, grant.sm_count, grant.refusal) == ("device", 132, None)
    grant.demand()


@pytest.mark.parametrize(("percentage", "by"), [("50", "MPS percentage"), ("100", "device"), ("", "device")])
def test_a_percentage_is_a_refusal_with_its_reason(
    dev: Device, daemon: None, monkeypatch: pytest.MonkeyPatch, percentage: str, by: str
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)
    grant = granted(dev)
    assert grant.by == by
    if by == "device":
        grant.demand()
    else:
        with pytest.raises(RuntimeError, match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 overrides partitions"):
            grant.demand()


def test_without_a_daemon_the_variables_of_mps_grant_nothing(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/x")
    assert granted(dev).by == "device"


def test_a_static_partition_is_named(dev: Device, daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/x")
    grant = granted(dev)
    assert grant.by == "MPS static partition"
    assert "CUDA_MPS_SM_PARTITION=GPU-1/x" in grant.split
    grant.demand()


def test_a_layout_becomes_percentages_commands_and_a_file(dev: Device) -> None:
    planned = mps_plan(dev, Layout(decode=10, prefill=None))
    decode, prefill = planned.processes
    # The 4 SMs that fill no chunk go to the process with the rest.
    assert (decode.sm_count, decode.chunks, decode.include_remainder) == (16, 2, False)
    assert (prefill.sm_count, prefill.chunks, prefill.include_remainder) == (116, 14, True)
    assert planned.percentages["decode"] == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.2"}
    assert planned.v2[0] == "nvidia-cuda-mps-control -d -S"
    assert planned.v2[1].startswith(f'echo "sm_partition add {dev.uuid} 2" | nvidia-cuda-mps-control')
    assert json.loads(planned.to_json())["v3"] == planned.v3
    assert all(text in str(planned) for text in (*planned.v2, planned.v3))


def test_the_file_of_v3_is_toml(dev: Device) -> None:
    tomllib: Any = pytest.importorskip("tomllib", reason="Python 3.11 or newer reads TOML")
    document = tomllib.loads(mps_plan(dev, Layout(decode=16, prefill=None)).v3)
    [of_device] = document["servers"]["partitions"]["devices"]
    assert of_device["uuid"] == dev.uuid
    assert of_device["sm_partitions"] == [
        {"name": "decode", "chunks": 2, "include_remainder": False},
        {"name": "prefill", "chunks": 14, "include_remainder": True},
    ]


def test_what_does_not_fit_is_refused(dev: Device) -> None:
    with pytest.raises(SplitError, match="does not fit"):
        mps_plan(dev, Layout(decode=200))
    with pytest.raises(ValueError, match="needs 17 chunks of 8 SMs, but the device has 16"):
        mps_plan(dev, Layout(decode=128, prefill=None))
