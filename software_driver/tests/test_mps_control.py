"""The stand-in for nvidia-cuda-mps-control."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import cuda_software_driver as sim

COMMAND = [sys.executable, "-m", "cuda_software_driver.mps_control"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe")}


def ask(environment: dict[str, str], commands: str) -> CompletedProcess[str]:
    return subprocess.run(COMMAND, env=environment, input=commands, capture_output=True, text=True, check=False)


def test_a_daemon_answers_until_it_quits(environment: dict[str, str], tmp_path: Path) -> None:
    control = tmp_path / "pipe" / "control"
    with subprocess.Popen([*COMMAND, "-f"], env=environment) as daemon:
        while not control.exists():
            time.sleep(0.01)
        assert ask(environment, "get_server_list\nterminate_client 1 2\nps\n").stdout == ""
        assert ask(environment, "get_default_active_thread_percentage\n").stdout == "100.0\n"
        ask(environment, "set_default_active_thread_percentage 50\n")
        assert ask(environment, "get_default_active_thread_percentage\n").stdout == "50.0\n"
        assert ask(environment, "dance\n").stdout == "Unrecognized command: dance\n"
        second = subprocess.run([*COMMAND, "-f"], env=environment, capture_output=True, text=True, check=False)
        assert (second.returncode, "already running" in second.stderr) == (1, True)
        assert ask(environment, "quit\n").returncode == 0
        assert daemon.wait(30) == 0
    assert not control.exists()
    assert ask(environment, "ps\n").returncode == 1


def test_processes_on_the_driver_are_clients(environment: dict[str, str], tmp_path: Path) -> None:
    code = f"import ctypes; ctypes.CDLL({sim.library_path()!r}); print('ready', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([*COMMAND, "-f"], env=environment) as daemon,
        subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes) as client,
    ):
        while not (tmp_path / "pipe" / "control").exists():
            time.sleep(0.01)
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        assert ask(environment, "get_server_list\n").stdout == f"{daemon.pid}\n"
        assert ask(environment, f"get_client_list {daemon.pid}\n").stdout == f"{client.pid}\n"
        client.communicate("\n")
        assert ask(environment, "get_server_list\n").stdout == ""
        ask(environment, "quit\n")


def test_a_daemon_can_refuse_to_start(environment: dict[str, str]) -> None:
    refused = subprocess.run(
        [*COMMAND, "-f"],
        env={**environment, "CUDA_SOFTWARE_DRIVER_MPS": "refuse"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, refused.stderr) == (1, "the daemon is refused (simulated)\n")
    other = subprocess.run([*COMMAND, "-S"], env=environment, capture_output=True, text=True, check=False)
    assert other.returncode == 2
