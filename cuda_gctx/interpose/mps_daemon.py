"""A daemon of MPS for the programs of one command, so that they run at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cuda_gctx import Device
from cuda_gctx.interop.mps import PIPES, is_mig_slice, mps_settings
from cuda_gctx.interpose import InterposeError, folder_for_sockets
from cuda_gctx.interpose.supervision import MPS_SERVER, prctl

__all__ = ["MEMORY_VARIABLE", "demand_whole_percentage", "mps_daemon", "terminate_clients"]

CONTROL = "nvidia-cuda-mps-control"
NO_DAEMON = "Cannot find MPS control daemon process"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
START_S = 10.0
# Selects devices, or loads a profiler, in programs and not in the daemon.
VISIBLE = "CUDA_VISIBLE_DEVICES"
NOT_INHERITED = (VISIBLE, "CUDA_INJECTION64_PATH")
_PR_SET_PDEATHSIG = 1


def _control(environment: Mapping[str, str], *commands: str) -> subprocess.CompletedProcess[str]:
    """Send commands to the daemon of an environment."""
    return subprocess.run(
        [CONTROL],
        input="".join(f"{command}\n" for command in commands),
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def _answers(environment: Mapping[str, str]) -> bool:
    """Return whether a daemon runs. The control program says that it cannot find one."""
    with suppress(subprocess.SubprocessError):
        asked = _control(environment, "get_server_list")
        return NO_DAEMON not in asked.stdout + asked.stderr
    return False


def demand_whole_percentage(environment: Mapping[str, str]) -> None:
    """Raise InterposeError if the daemon of an environment gives its programs a percentage of the SMs by default."""
    if shutil.which(CONTROL, path=environment.get("PATH")) is None:
        return
    with suppress(subprocess.SubprocessError, ValueError):  # a daemon of another user answers with a sentence
        percentage = float(_control(environment, "get_default_active_thread_percentage").stdout)
        if percentage < 100:
            raise InterposeError(
                f"the daemon of MPS gives its programs {percentage}% of the SMs, which overrides partitions: tell it "
                "set_default_active_thread_percentage 100"
            )


def _ask_smi(*query: str) -> Iterator[list[str]]:
    """The rows that nvidia-smi answers about the machine; none where it is not installed."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return
    command = [smi, *query, "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    for line in done.stdout.splitlines():
        yield [word.strip() for word in line.split(",", 2)]


def _refuse_unusable_devices(devices: Sequence[Device]) -> None:
    for device in devices:
        if is_mig_slice(device):
            raise InterposeError(
                f"device {device.device_id} is a slice of MIG, whose SMs are divided already: use run --as, or name a "
                "whole GPU in CUDA_VISIBLE_DEVICES"
            )
    modes = dict(_ask_smi("--query-gpu=uuid,compute_mode"))
    users = [row for row in _ask_smi("--query-compute-apps=gpu_uuid,pid,process_name") if len(row) == 3]
    for device in devices:
        mode = modes.get(f"GPU-{device.uuid}", "")
        if mode == "Prohibited":
            raise InterposeError(f"the compute mode of device {device.device_id} is Prohibited: no program can use it")
        for uuid, process, name in users:
            if mode == "Exclusive_Process" and uuid == f"GPU-{device.uuid}" and os.path.basename(name) != MPS_SERVER:
                raise InterposeError(
                    f"process {process} ({name}) has device {device.device_id} to itself, in compute mode {mode}: end "
                    "it, or set the compute mode to Default"
                )


def _own_running_daemon(environment: Mapping[str, str]) -> bool:
    """Return whether a daemon of this user runs. Raises InterposeError for the daemon of another user."""
    settings = mps_settings()
    if not settings.daemon:
        return False
    owner = os.stat(Path(settings.folder) / "control").st_uid
    if owner != os.getuid():
        raise InterposeError(
            f"a daemon of MPS of another user (uid {owner}) runs in {settings.folder}: only its user can share the GPU"
        )
    demand_whole_percentage(environment)
    return _answers(environment)  # a dead daemon leaves the file


def _end_daemon(folder: Path, environment: Mapping[str, str]) -> None:
    """End the daemon of a folder, its servers and its clients, and remove the folder."""
    with suppress(OSError, subprocess.SubprocessError):
        _control({**environment, PIPES: str(folder), LOGS: str(folder)}, "quit")
    setting = f"{PIPES}={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if setting in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _end_abandoned_daemons(environment: Mapping[str, str]) -> None:
    """End the daemons of commands that were killed. A command holds a lock as long as it lives."""
    for lock in Path(folder_for_sockets()).glob(f"gctx-mps-{os.getuid()}-*/lock"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_daemon(lock.parent, environment)


@contextmanager
def mps_daemon(inherited: Mapping[str, str], devices: Sequence[Device]) -> Iterator[dict[str, str]]:
    """Yield the environment with a running daemon: that of this user, or a new daemon that ends with the block.

    inherited: the environment, whose PATH has the control program. devices: the devices of the programs, which their
    environment names by id: a daemon may number devices in another way. Raises InterposeError where MPS cannot work.
    """
    chosen = {VISIBLE: ",".join(f"GPU-{device.uuid}" for device in devices)} if VISIBLE in inherited else {}
    if shutil.which(CONTROL, path=inherited.get("PATH")) is None:
        raise InterposeError(
            f"{CONTROL} is not installed, and programs take turns without MPS: install it, or pass --no-mps"
        )
    _refuse_unusable_devices(devices)
    _end_abandoned_daemons(inherited)
    if _own_running_daemon(inherited):
        yield {**inherited, **chosen}
        return
    folder = Path(tempfile.mkdtemp(prefix=f"gctx-mps-{os.getuid()}-", dir=folder_for_sockets()))
    variables = {PIPES: str(folder), LOGS: str(folder)}
    environment = {key: value for key, value in inherited.items() if key not in NOT_INHERITED} | variables
    with (folder / "lock").open("w") as lock, (folder / "output").open("wb") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        daemon = subprocess.Popen(
            [CONTROL, "-f"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_end_with_the_command,
        )
        try:
            _wait_until_ready(daemon, folder, environment)
            yield {**inherited, **chosen, **variables}
        finally:
            with suppress(OSError, subprocess.SubprocessError):
                _control(environment, "quit")
            try:
                daemon.wait(START_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _end_with_the_command() -> None:
    os.setpgid(0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(daemon: subprocess.Popen[bytes], folder: Path, environment: Mapping[str, str]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and daemon.poll() is None:
        if (folder / "control").exists() and _answers(environment):
            return
        time.sleep(0.05)
    said = (folder / "output").read_text(errors="replace").strip().splitlines()
    raise InterposeError(
        f"the daemon of MPS does not start: {said[-1] if said else 'it says nothing'}; end the programs that use the "
        "GPU, or pass --no-mps"
    )


def terminate_clients(environment: Mapping[str, str], processes: Sequence[int]) -> None:
    """Tell the servers to end the clients among some processes, before these are killed."""
    with suppress(OSError, subprocess.SubprocessError):
        for server in _control(environment, "get_server_list").stdout.split():
            clients = set(_control(environment, f"get_client_list {server}").stdout.split())
            for process in processes:
                if str(process) in clients:
                    _control(environment, f"terminate_client {server} {process}")
