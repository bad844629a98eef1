"""``cuda-gctx share``: programs side by side. Simulated processes share no GPU: parts, reports, signals and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

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


def test_the_first_program_has_the_standard_input(share: Callable[..., CompletedProcess[str]]) -> None:
    read = "import sys; print(repr(sys.stdin.read()), flush=True)"
    done = share(
        "a=16", "--", *python(read), ":", "b=16", "--", *python(f"import time; time.sleep(1); {read}"), given="x"
    )
    assert done.stdout == "'x'\n''\n", done.stderr


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


def test_a_daemon_of_this_user_is_used(
    share: Callable[..., CompletedProcess[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mine")}
    subprocess.run([CONTROL, "-d"], env={**environment, **folder}, check=True)
    show = python("import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])")
    done = share("a=16", "--", *show, ":", "b=16", "--", "true", **folder)
    assert done.stdout == f"{tmp_path / 'mine'}\n", done.stderr
    assert (tmp_path / "mine" / "control").exists()
    quit_ = subprocess.run([CONTROL], env={**environment, **folder}, input="quit\n", text=True, check=False)
    assert quit_.returncode == 0


def test_the_first_failure_ends_the_others(share: Callable[..., CompletedProcess[str]]) -> None:
    done = share("a=16", "--", *python("raise SystemExit(7)"), ":", "b=16", "--", *python(WAIT))
    assert done.returncode == 7
    assert done.stdout in ("ready\n", "")


def test_a_program_that_is_killed_ends_the_others(share: Callable[..., CompletedProcess[str]]) -> None:
    kill = python("import os; os.kill(os.getpid(), 9)")
    assert share("a=16", "--", *python(WAIT), ":", "b=16", "--", *kill).returncode == 137


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


def test_a_program_that_ignores_signals_is_killed(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    loop = f"while True:\n    {WAIT.partition('; ')[2]}"
    stubborn = python(f"import os, signal; signal.signal(15, signal.SIG_IGN)\n{loop}")
    short = "import cuda_gctx.interpose.supervision as s; s.GRACE_S = 1.0; from cuda_gctx.cli import main; main()"
    process = subprocess.Popen(
        [*python(short), "share", "a=16", "--", *python(WAIT), ":", "b=16", "--", *stubborn],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    process.communicate()


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
