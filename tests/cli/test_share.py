"""``cuda-gctx share``: programs side by side. Simulated processes share no GPU: parts, reports, signals and ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import cast

import pytest

from cuda_gctx import Device
from cuda_gctx.interpose import InterposeError
from cuda_gctx.interpose.mps_daemon import mps_daemon
from cuda_software_driver import library_path, programs_folder

from .test_command_line import run

pytestmark = pytest.mark.sim_only

SMS = (
    "from cuda.bindings import driver as cu\ncu.cuInit(0)\ncu.cuDevicePrimaryCtxRetain(0)\n"
    "print(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)[1])"
)
CONTROL = f"{programs_folder()}/nvidia-cuda-mps-control"
# One call writes the line: Python may write it in two parts, between which the other program writes.
WAIT = "import os, signal; os.write(1, b'ready\\n'); signal.pause()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", "cuda_gctx.cli", "share", *words]


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder for the folders of daemons, which must be short. No daemon is left in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)
        assert folders_of_daemons(Path(name)) == []


@pytest.fixture
def environment(tmp_path: Path, folder: Path) -> dict[str, str]:
    """The environment without a daemon of MPS."""
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "none"), "TMPDIR": str(folder)}


@pytest.fixture
def share(environment: dict[str, str]) -> Callable[..., CompletedProcess[str]]:
    def started(*words: str, given: str = "", **more: str) -> CompletedProcess[str]:
        return subprocess.run(
            arguments(*words),
            env={**environment, **more},
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return started


def folders_of_daemons(folder: Path) -> list[Path]:
    return list(folder.glob(f"gctx-mps-{os.getuid()}-*"))


def on_a_machine(folder: Path, machine: str) -> dict[str, str]:
    """Variables for the software driver as a driver of this machine, whose programs are in a folder."""
    path = f"{folder}{os.pathsep}{programs_folder()}{os.pathsep}{os.environ['PATH']}"
    return {"CUDA_GCTX_DRIVER": library_path(), "CUDA_SOFTWARE_DRIVER_MACHINE": machine, "PATH": path}


@pytest.mark.parametrize(
    ("mode", "user", "reason"),
    [
        ("Prohibited", None, "the compute mode of device 1 is Prohibited"),
        ("Exclusive_Process", "/usr/bin/other", "process 4711 (/usr/bin/other) has device 1 to itself"),
        ("Exclusive_Process", "/usr/bin/nvidia-cuda-mps-server", None),
        ("Exclusive_Process", None, None),
        ("Default", "/usr/bin/other", None),
    ],
)
def test_nothing_starts_on_a_gpu_that_cannot_be_shared(
    share: Callable[..., CompletedProcess[str]], tmp_path: Path, mode: str, user: str | None, reason: str | None
) -> None:
    first, second = (f"GPU-53494d0{card}-6832-3030-0000-000000000000" for card in (1, 2))
    apps = f"echo {second}, 4711, {user}" if user is not None else ":"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\ncase $1 in\n*compute-apps*) {apps};;\n*) echo {first}, Default; echo {second}, {mode};;\nesac\n"
    )
    smi.chmod(0o755)
    words = ("a=16", "--", "touch", str(tmp_path / "x"), ":", "b=16", "--", "true")
    done = share(*words, **on_a_machine(tmp_path, "h200@13.0,devices=2"))
    assert done.returncode == (reason is not None), done.stderr
    assert reason is None or reason in done.stderr
    assert (tmp_path / "x").exists() == (reason is None)


def test_a_daemon_of_another_user_and_a_slice_of_mig_are_refused(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = {"PATH": f"{programs_folder()}{os.pathsep}{environment['PATH']}"}
    with socket.socket(socket.AF_UNIX) as pipe:
        pipe.bind(str(tmp_path / "control"))
        owner = os.getuid()
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
        other_user = pytest.raises(InterposeError, match=rf"a daemon of MPS of another user \(uid {owner}\) runs in")
        with other_user, mps_daemon({**environment, **path}, []):
            pytest.fail("a daemon of another user was used")

    class Slice:
        device_id, name = 0, "NVIDIA H200 MIG 1g.18gb"

    refused = pytest.raises(InterposeError, match="device 0 is a slice of MIG")
    with refused, mps_daemon({**environment, **path}, [cast(Device, Slice())]):
        pytest.fail("a slice was shared")


def test_a_percentage_of_mps_is_refused_before_anything_starts(
    share: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    touch = ("touch", str(tmp_path / "x"))
    done = share("a=16", "--", *touch, ":", "b=16", "--", "true", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert (done.returncode, "PERCENTAGE=50 overrides partitions" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "x").exists()


def test_each_program_has_its_part(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("control=16", "--", *python(SMS), ":", "rest", "--", *python(f"import time; time.sleep(0.5)\n{SMS}"))
    assert (done.stdout, done.returncode) == ("16\n116\n", 0), done.stderr
    assert re.search(r"^\d+ python\S* +control +16 +0 +1 +0$", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^\d+ python\S* +rest +116 +0 +1 +0$", done.stderr, re.MULTILINE), done.stderr


def test_programs_are_side_by_side_on_a_simulated_machine(environment: dict[str, str]) -> None:
    share = (
        *arguments("a=16", "--", *python(SMS), ":", "rest", "--", *python(f"import time; time.sleep(0.5)\n{SMS}")),
    )
    inside = {key: value for key, value in environment.items() if key != "CUDA_GCTX_DRIVER"}
    for command, variables in (
        ([sys.executable, "-m", "cuda_gctx.cli", "sim", "run", "--gpu", "b200", "--", *share], inside),
        (share, {**environment, "CUDA_GCTX_DRIVER": "sim:b200"}),
    ):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
        assert (done.stdout, done.returncode) == ("16\n132\n", 0), done.stderr
        assert "each program has a GPU of its own" in done.stderr


def test_the_first_program_has_the_standard_input(share: Callable[..., CompletedProcess[str]]) -> None:
    read = "import sys; print(repr(sys.stdin.read()), flush=True)"
    done = share(
        "a=16", "--", *python(read), ":", "b=16", "--", *python(f"import time; time.sleep(1); {read}"), given="x"
    )
    assert done.stdout == "'x'\n''\n", done.stderr


def test_the_first_program_reads_the_terminal(environment: dict[str, str]) -> None:
    main, terminal = pty.openpty()
    read = "import sys; print([*sys.stdin], flush=True)"
    words = ("a=16", "--", *python(read), ":", "b=16", "--", *python(f"import time; time.sleep(1); {read}"))
    with subprocess.Popen(
        arguments(*words), env=environment, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(terminal)
        os.write(main, b"one\ntwo\n\x04")
        assert process.communicate(timeout=60)[0] == "['one\\n', 'two\\n']\n[]\n"
        os.close(main)
    assert process.returncode == 0


def test_a_memory_limit_is_that_of_its_program(share: Callable[..., CompletedProcess[str]]) -> None:
    show = "import os; print(os.environ.get('CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'), flush=True)"
    done = share(
        "a=16", "mem=8G", "--", *python(show), ":", "b=16", "--", *python(f"import time; time.sleep(1); {show}")
    )
    assert done.stdout == "0=8G\nNone\n", done.stderr


def test_the_daemon_runs_while_the_programs_run(share: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    show = (
        "import os, pathlib; folder = pathlib.Path(os.environ['CUDA_MPS_PIPE_DIRECTORY'])\n"
        f"print((folder / 'control').is_socket(), len(str(folder)) < 60, str(folder) != {str(tmp_path / 'none')!r})"
    )
    done = share("a=16", "--", *python(show), ":", "b=16", "--", "true")
    assert done.stdout == "True True True\n", done.stderr


def test_programs_get_the_ids_of_their_devices_and_the_daemon_sees_all(
    environment: dict[str, str], tmp_path: Path
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\necho "[$CUDA_VISIBLE_DEVICES]" >> {tmp_path}/seen\nexec {CONTROL} "$@"\n')
    control.chmod(0o755)
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)"
    done = subprocess.run(
        arguments("a=16", "--", *python(show), ":", "b=16", "--", *python(f"import time; time.sleep(0.5); {show}")),
        env={**environment, **on_a_machine(tmp_path, "h200@13.0,devices=3"), "CUDA_VISIBLE_DEVICES": "2,1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ids = [f"GPU-53494d0{card + 1}-6832-3030-0000-000000000000" for card in (2, 1)]
    assert done.stdout == f"{','.join(ids)}\n" * 2, done.stderr
    assert set((tmp_path / "seen").read_text().split()) == {"[]"}  # also of a daemon, which sees all devices


def test_a_daemon_of_this_user_is_used(
    share: Callable[..., CompletedProcess[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mine")}
    subprocess.run([CONTROL, "-d"], env={**environment, **folder}, check=True)
    show = python("import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])")
    try:
        done = share("a=16", "--", *show, ":", "b=16", "--", "true", **folder)
        assert done.stdout == f"{tmp_path / 'mine'}\n", done.stderr
        assert (tmp_path / "mine" / "control").exists()
        command = {"env": {**environment, **folder}, "text": True, "check": True}
        subprocess.run([CONTROL], input="set_default_active_thread_percentage 50\n", **command)
        run_alone = [sys.executable, "-m", "cuda_gctx.cli", "run", "--layout", "a=16", "--as", "a", "--", "true"]
        for words in (arguments("a=16", "--", "true", ":", "b=16", "--", "true"), run_alone):
            refused = subprocess.run(words, env={**environment, **folder}, capture_output=True, text=True, check=False)
            assert (refused.returncode, "50.0% of the SMs" in refused.stderr) == (1, True), refused.stderr
    finally:
        subprocess.run([CONTROL], env={**environment, **folder}, input="quit\n", text=True, check=True)


def test_the_first_failure_ends_the_others(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("a=16", "--", *python("raise SystemExit(7)"), ":", "b=16", "--", *python(WAIT))
    assert done.returncode == 7
    assert done.stdout in ("ready\n", "")


@pytest.mark.parametrize("first", [False, True])
def test_a_program_that_is_killed_ends_the_others(share: Callable[..., CompletedProcess[str]], first: bool) -> None:
    kill = python("import os; os.kill(os.getpid(), 9)")
    commands = [kill, python(WAIT)] if first else [python(WAIT), kill]
    assert share("a=16", "--", *commands[0], ":", "b=16", "--", *commands[1]).returncode == 137


def test_children_in_sessions_of_their_own_end_with_the_command(
    environment: dict[str, str], share: Callable[..., CompletedProcess[str]]
) -> None:
    start = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True)"
    # The end of the output is that of each process that has the pipe.
    killed = share("a=16", "--", *python(f"{start}; os.kill(os.getpid(), 9)"), ":", "b=16", "--", *python(WAIT))
    assert killed.returncode == 137, killed.stderr
    process = begin(environment, "a=16", "--", *python(f"{start}; os.wait()"), ":", "b=16", "--", *python(WAIT))
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def test_an_escape_of_one_program_is_a_failure_with_strict(share: Callable[..., CompletedProcess[str]]) -> None:
    escape = python("from cuda.bindings import driver as cu\ncu.cuInit(0)\ncu.cuCtxCreate(None, 0, 0)")
    words = ("a=16", "--", "true", ":", "b=16", "--", *escape, ":", "c=16", "--", *python(SMS))
    for options in ([], ["--strict"]):
        done = share(*options, *words)
        assert (done.returncode, done.stdout) == (len(options), "16\n"), done.stderr
        assert "cuCtxCreate by cydriver" in done.stderr


def test_until_ends_the_others_without_a_failure(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("--until", "a", "a=16", "--", "true", ":", "b=16", "--", *python(WAIT))
    assert done.returncode == 0, done.stderr


def test_programs_that_end_before_they_use_the_gpu_are_listed(
    share: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    wait = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(0.05)"
    opening = f"from cuda.bindings import driver as cu\ncu.cuInit(0)\nopen({str(opened)!r}, 'w')\n{WAIT}"
    done = share(
        "--until",
        "a",
        "a=16",
        "--",
        *python(wait),
        ":",
        "b=16",
        "--",
        *python(opening),
        ":",
        "c=16",
        "--",
        *python(WAIT),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ python\S* +b +- +- +- +0$", done.stderr, re.MULTILINE), done.stderr
    assert [name for name in "abc" if f"no process of {name} opened the driver" in done.stderr] == ["a", "c"]


def begin(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """Start the command, and wait for its two programs."""
    process = subprocess.Popen(
        arguments(*words),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_program_and_its_children(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    nested = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])")
    process = begin(environment, "a=16", "--", *nested, ":", "b=16", "--", *python(WAIT))
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert process.stdout is not None
    assert process.stdout.read() == ""  # each process that has the pipe has ended
    process.communicate()


def test_a_program_that_ignores_signals_leaves_mps_and_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nif [ $# = 0 ]; then tee -a {log} | {CONTROL}; else exec {CONTROL} "$@"; fi\n')
    control.chmod(0o755)
    note = f"open({str(log)!r}, 'a').write(f'TERM {{os.getpid()}}\\n')"
    loop = f"while True:\n    {WAIT.partition('; ')[2]}"
    stubborn = python(f"{SMS}\nimport os, signal; signal.signal(15, lambda *_: {note})\n{loop}".replace("print(", "("))
    short = "import cuda_gctx.interpose.supervision as s; s.GRACE_S = 1.0; from cuda_gctx.cli import main; main()"
    process = subprocess.Popen(
        [*python(short), "share", "a=16", "--", *python(WAIT), ":", "b=16", "--", *stubborn],
        env={**environment, **on_a_machine(tmp_path, "h200@13.0")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    process.communicate()
    # A daemon lists the clients that live.
    [term, terminate] = [line.split() for line in log.read_text().splitlines() if line.lower().startswith("term")]
    assert (term[0], terminate[0], terminate[2]) == ("TERM", "terminate_client", term[1])


def test_what_a_killed_command_leaves_ends_at_the_next_start(
    environment: dict[str, str], share: Callable[..., CompletedProcess[str]], folder: Path
) -> None:
    process = begin(environment, "a=16", "--", *python(WAIT), ":", "b=16", "--", *python(WAIT))
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout is not None
    assert process.stdout.read() == ""  # the programs end with the command
    process.communicate()
    assert len(folders_of_daemons(folder)) == 1
    assert share("a=16", "--", "true", ":", "b=16", "--", "true").returncode == 0


def test_children_of_programs_that_a_killed_command_leaves_end_at_the_next_start(
    environment: dict[str, str], share: Callable[..., CompletedProcess[str]]
) -> None:
    nested = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])")
    process = begin(environment, "a=16", "--", *nested, ":", "b=16", "--", *python(WAIT))
    process.kill()
    process.wait(30)
    assert share("a=16", "--", "true", ":", "b=16", "--", "true").returncode == 0
    assert process.stdout is not None
    assert process.stdout.read() == ""  # each process that has the pipe has ended
    process.communicate()


def test_the_end_of_the_daemon_leaves_nothing_behind(environment: dict[str, str], folder: Path) -> None:
    wait = python("import os, sys; os.write(1, b'ready\\n'); sys.stdin.read()")
    process = begin(environment, "a=16", "--", *wait, ":", "b=16", "--", *python(WAIT))
    [daemon] = folders_of_daemons(folder)
    os.kill(int((daemon / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    process.communicate()


def test_without_a_control_program_nothing_starts(tmp_path: Path) -> None:
    path = {"PATH": "/usr/bin:/bin", "CUDA_GCTX_DRIVER": library_path()}
    done = subprocess.run(
        arguments("a=16", "--", "touch", str(tmp_path / "x"), ":", "b=16", "--", "touch", str(tmp_path / "y")),
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nvidia-cuda-mps-control is not installed, and programs take turns without MPS" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_that_does_not_start_is_an_error_with_its_words(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("a=16", "--", "true", ":", "b=16", "--", "true", CUDA_SOFTWARE_DRIVER_MPS="refuse")
    assert done.returncode == 1
    assert "the daemon of MPS does not start: the daemon is refused (simulated)" in done.stderr


def test_programs_take_turns_without_mps() -> None:
    done = subprocess.run(
        arguments("--no-mps", "a=16", "--", "true", ":", "b=16", "--", "true"), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_layout_that_does_not_fit_starts_nothing(share: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    done = share("a=100", "--", "touch", str(tmp_path / "x"), ":", "b=100", "--", "true")
    assert done.returncode == 1
    assert "does not fit" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_program_that_cannot_be_run_ends_the_others(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("a=16", "--", *python(WAIT), ":", "b=16", "--", "no-such-command")
    assert done.returncode == 127
    assert "cannot run no-such-command" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a=16", "--", "true"], "two programs or more"),
        (["a=16", "true", ":", "b=16", "--", "true"], "has no --"),
        (["a=16", "b=16", "--", "true", ":", "c=16", "--", "true"], "not one partition and its command"),
        (["a=16", "--", ":", "b=16", "--", "true"], "not one partition and its command"),
        (["a=16", "mem=lots", "--", "true", ":", "b=16", "--", "true"], "mem=lots is not a size"),
        (["--until", "c", "a=16", "--", "true", ":", "b=16", "--", "true"], "no program is named 'c'"),
        (["a=16", "--", "true", ":", "a=16", "--", "true"], "'a' is given twice"),
    ],
)
def test_wrong_words_are_refused(words: list[str], reason: str) -> None:
    done = run("share", *words)
    assert done.exit_code == 2
    assert reason in done.stderr
