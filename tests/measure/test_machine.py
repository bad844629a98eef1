"""What a result reports about the machine: a commit in a clone, and the power state where nvidia-smi reports one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuda_gctx import Device
from cuda_gctx.measure import machine


def test_a_result_names_the_commit_of_its_clone(tmp_path: Path) -> None:
    assert machine.commit_of(tmp_path) is None

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    commit = machine.commit_of(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "result.json").write_text("{}")  # not tracked
    assert machine.commit_of(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert machine.commit_of(tmp_path) == f"{commit}-dirty"


@pytest.mark.sim_only
def test_a_simulated_device_has_no_power_state(dev: Device) -> None:
    found = machine.described(dev, "a test")
    assert found["_what"] == "a test"
    assert found["simulated"]
    assert found["commit"] is None
    assert {found[name] for name in machine.POWER_STATE} == {None}


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("1980, 3201, 1980, 700.00, 31", [1980.0, 3201.0, 1980.0, 700.0, 31.0]),
        ("1980, 3201, 1980, [N/A], 31", [1980.0, 3201.0, 1980.0, None, 31.0]),
        ("nonsense", [None] * 5),
        (None, [None] * 5),
    ],
)
def test_the_power_state_is_what_nvidia_smi_reports(
    dev: Device, monkeypatch: pytest.MonkeyPatch, reported: str | None, expected: list[float | None]
) -> None:
    asked = []

    def output_of(command: list[str]) -> str | None:
        asked.append(command)
        return reported

    monkeypatch.setattr(machine, "_output_of", output_of)
    assert list(machine.power_state(dev).values()) == expected
    assert f"--id=GPU-{dev.uuid}" in asked[0]


@pytest.mark.gpu_only
def test_the_power_state_of_a_gpu_is_known() -> None:
    state = machine.power_state(Device(0))
    assert state["temperature_c"] is not None
    assert 0 < state["temperature_c"] < 120


def test_the_memory_of_a_device_is_what_is_free_of_all(dev: Device) -> None:
    free, total = machine.memory_of(dev)
    assert 0 < free <= total
