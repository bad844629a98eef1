"""``cuda-gctx run``: the layout that a command gets, and programs in one partition of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_gctx import Layout
from cuda_software_driver import library_path

from .test_command_line import child, run

pytestmark = pytest.mark.sim_only

SHOW = "import os; print(os.environ['CUDA_GCTX_LAYOUT'])"
PARTITION = "from cuda_gctx import Device\nwith Device().partition() as parts: print(parts.names, parts[0].sm_count)"
# Opens the driver by its file, as a process without the library, and stays until the poll has seen it.
LINGER = f"import ctypes, time; ctypes.CDLL({library_path()!r}); time.sleep(1.5)"
IN_PART = (
    "from cuda.bindings import driver as cu\ncu.cuInit(0)\n"
    "context = cu.cuDevicePrimaryCtxRetain(0)[1]\n"
    "print(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)[1])"
)
AS_DECODE = ("run", "--layout", "decode=16,rest", "--as", "decode")


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


def test_a_program_and_its_children_run_in_the_partition() -> None:
    for command in ([sys.executable, "-I", "-c", IN_PART], ["sh", "-c", f"{sys.executable} -c '{IN_PART}'"]):
        done = child(*AS_DECODE, "--", *command)
        assert (done.stdout, done.returncode) == ("16\n", 0), done.stderr
        assert "no MPS daemon runs, so processes take turns" in done.stderr
        assert re.search(r"^\d+ python\S* +decode +16 +0 +1 +0$", done.stderr, re.MULTILINE), done.stderr


def test_a_program_that_opens_no_driver_is_in_no_table() -> None:
    done = child(*AS_DECODE, "--", sys.executable, "-c", "raise SystemExit(5)")
    assert done.returncode == 5
    assert "no process of decode opened the driver" in done.stderr


def test_an_end_by_a_signal_is_the_status_of_a_shell() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert child(*AS_DECODE, "--", sys.executable, "-c", code).returncode == 137


def test_a_signal_reaches_the_program() -> None:
    # Blocked, the signal waits for sigwait; a handler could run just before pause, which then waits for ever.
    blocks = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [15])\nprint('ready', flush=True)"
    code = f"{blocks}\nexit(signal.sigwait([15]) - 12)"
    command = [sys.executable, "-m", "cuda_gctx.cli", *AS_DECODE, "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 3


def test_what_leaves_the_partition_is_listed_and_strict_makes_it_a_failure() -> None:
    context = "from cuda.bindings import driver as cu\ncu.cuInit(0)\nprint(int(cu.cuCtxCreate(None, 0, 0)[0]))"
    without = f"import os\nos.environ.pop('LD_AUDIT')\nos.execv('{sys.executable}', ['python', '-c', {LINGER!r}])"
    for code, escape in ((context, "cuCtxCreate by cydriver"), (without, "opened the driver without the library")):
        for strict in (False, True):
            options = ["--strict"] if strict else []
            done = child(*AS_DECODE, *options, "--", sys.executable, "-c", code)
            assert done.returncode == strict, done.stderr
            assert escape in done.stderr


def test_a_process_that_closes_descriptors_is_listed() -> None:
    closing = f"import os\nos.closerange(3, 1024)\n{IN_PART}"
    nested = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {closing!r}], close_fds=True)\n{IN_PART}"
    done = child(*AS_DECODE, "--", sys.executable, "-c", nested)
    assert done.stdout == "16\n16\n", done.stderr
    assert len(re.findall(r"^\d+ python\S* +decode +16 +0 +1 +0$", done.stderr, re.MULTILINE)) == 2, done.stderr


def test_the_driver_may_be_a_path() -> None:
    driver = {"CUDA_GCTX_DRIVER": str(library_path()), "CUDA_SOFTWARE_DRIVER_MACHINE": "b200@13.0"}
    code = f"{IN_PART}\nprint(cu.cuDeviceGetName(99, 0)[1].decode())"
    done = child(*AS_DECODE, "--", sys.executable, "-c", code, **driver)
    assert done.stdout.startswith("16\nNVIDIA B200 (simulated)"), done.stderr
    absent = child(*AS_DECODE, "--", "true", CUDA_GCTX_DRIVER="/no/driver.so")
    assert (absent.returncode, "does not exist: /no/driver.so" in absent.stderr) == (1, True)


@pytest.mark.parametrize(
    ("version", "proven"), [("13.0", False), ("12.4", True), ("12.9", True), ("13.1", True), ("13.5", True)]
)
def test_programs_are_verified_on_drivers_that_were_not_tried(version: str, proven: bool) -> None:
    driver = {"CUDA_GCTX_DRIVER": str(library_path()), "CUDA_SOFTWARE_DRIVER_MACHINE": f"h200@{version}"}
    code = f"{IN_PART}\ncu.cuCtxSetCurrent(context)\ncu.cuMemsetD8(cu.cuMemAlloc(64)[1], 1, 64)"
    done = child(*AS_DECODE, "--", sys.executable, "-c", code, **driver)
    assert ("1 streams, 16 SMs" in done.stderr) == proven, done.stderr
    without = child(*AS_DECODE, "--no-verify", "--", sys.executable, "-c", code, **driver)
    assert "1 streams" not in without.stderr


def test_a_layout_that_does_not_fit_fails_in_the_program() -> None:
    code = (
        "from cuda.bindings import driver as cu\ncu.cuInit(0)\n"
        "raise SystemExit(int(cu.cuDevicePrimaryCtxRetain(0)[0]) != 0)"
    )
    done = child("run", "--layout", "decode=200,rest", "--as", "decode", "--", sys.executable, "-c", code)
    assert (done.returncode, "partition decode of device 0 cannot be opened" in done.stderr) == (1, True), done.stderr


def test_children_that_a_program_leaves_do_not_stay_as_zombies() -> None:
    code = """
import os, pathlib, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(0.2)
        os._exit(0)
    os.wait()
def is_zombie(path):
    try: state, parent = path.read_text().rpartition(")")[2].split()[:2]
    except OSError: return False
    return state == "Z" and int(parent) == os.getppid()
def zombies(): return sum(map(is_zombie, pathlib.Path("/proc").glob("[0-9]*/stat")))
time.sleep(0.4)
end = time.monotonic() + 20
while zombies() > 0 and time.monotonic() < end: time.sleep(0.05)
print(zombies())
"""
    done = child(*AS_DECODE, "--", sys.executable, "-c", code)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_folders_for_temporary_files_may_be_long_or_absent(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    done = child(*AS_DECODE, "--", sys.executable, "-c", IN_PART, TMPDIR=str(long), XDG_RUNTIME_DIR="/no/such/folder")
    assert (done.stdout, "decode      16" in done.stderr) == ("16\n", True), done.stderr
    (tmp_path / f"cuda-gctx-{os.getuid()}").touch()
    refused = child(*AS_DECODE, "--", "true", XDG_RUNTIME_DIR=str(tmp_path))
    assert (refused.returncode, f"{tmp_path}/cuda-gctx-" in refused.stderr) == (1, True), refused.stderr


def test_no_escape_of_a_program_with_a_strange_name_is_lost(tmp_path: Path) -> None:
    escape = "from cuda.bindings import driver as cu\ncu.cuInit(0)\ncu.cuCtxCreate(None, 0, 0)"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.path[:] = {sys.path!r}")
    for name in (b'a"\\b', b"\xff"):
        program = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))
        os.symlink(sys.executable, program)
        command = [sys.executable, "-m", "cuda_gctx.cli", *AS_DECODE, "--strict", "--", program, "-c", escape]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
        assert (done.returncode, b"cuCtxCreate by cydriver" in done.stderr) == (1, True), done.stderr


def test_no_escape_of_many_is_lost() -> None:
    code = "from cuda.bindings import driver as cu\ncu.cuInit(0)\nfor _ in range(300): cu.cuCtxCreate(None, 0, 0)"
    done = child(*AS_DECODE, "--", sys.executable, "-c", code)
    assert re.search(r"^\d+ python\S* +decode +- +0 +300 +300$", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r": cuCtxCreate by cydriver\S+ \(300 times\)$", done.stderr.rstrip()), done.stderr


def test_the_server_of_mps_is_no_escape(tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "sleep", server)
    command = ["env", "-u", "LD_AUDIT", f"LD_PRELOAD={library_path()}", str(server), "1.5"]
    done = child(*AS_DECODE, "--strict", "--", *command)
    assert done.returncode == 0, done.stderr
    assert "no process of decode opened the driver" in done.stderr


def test_programs_with_a_static_cublas_can_read_the_count_of_the_card() -> None:
    assert child(*AS_DECODE, "--sm-count", "card", "--", sys.executable, "-c", IN_PART).stdout == "132\n"


def test_verify_proves_where_the_streams_run() -> None:
    code = (
        "from cuda.bindings import driver as cu\ncu.cuInit(0)\n"
        "cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])\n"
        "memory = cu.cuMemAlloc(64)[1]\n"
        "for stream in (cu.CUstream(0), cu.cuStreamCreate(0)[1], cu.cuStreamCreate(1)[1], cu.CUstream(2)):\n"
        "    print(int(cu.cuMemsetD8Async(memory, 1, 64, stream)[0]))"
    )
    done = child(*AS_DECODE, "--verify", "--strict", "--", sys.executable, "-c", code)
    assert (done.stdout, done.returncode) == ("0\n" * 4, 0), done.stderr
    assert "4 streams, 16 SMs" in done.stderr


def test_verify_proves_where_green_contexts_of_the_program_run() -> None:
    code = (
        "from cuda.bindings import driver as cu\ncu.cuInit(0)\n"
        "context = cu.cuDevicePrimaryCtxRetain(0)[1]\ncu.cuCtxSetCurrent(context)\n"
        "whole = cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)[1]\n"
        "group = cu.cuDevSmResourceSplitByCount(1, whole, 0, 8)[1][0]\n"
        "green = cu.cuGreenCtxCreate(cu.cuDevResourceGenerateDesc([group], 1)[1], 0, 1)[1]\n"
        "stream = cu.cuGreenCtxStreamCreate(green, 1, 0)[1]\n"
        "print(int(cu.cuMemsetD8Async(cu.cuMemAlloc(64)[1], 1, 64, stream)[0]))"
    )
    done = child(*AS_DECODE, "--verify", "--strict", "--", sys.executable, "-c", code)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
    assert re.search(r"decode +16 +1 +2 +1 streams, 8 SMs +0$", done.stderr, re.MULTILINE), done.stderr


def test_verify_finds_work_in_the_primary_context() -> None:
    # The program goes around the library, which then replaces cuCtxSetCurrent in vain.
    code = (
        "import ctypes, os\nfrom cuda.bindings import driver as cu\ncu.cuInit(0)\ncu.cuDevicePrimaryCtxRetain(0)\n"
        "real = ctypes.CDLL(os.path.dirname(os.environ['LD_AUDIT'].split(':')[0]) + '/libcuda-real.so.1')\n"
        "primary = ctypes.c_void_p()\n"
        "real.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0), real.cuCtxSetCurrent(primary)\n"
        "cu.cuMemsetD8(cu.cuMemAlloc(64)[1], 1, 64)"
    )
    for verify in (False, True):
        options = ["--verify"] if verify else []
        done = child(*AS_DECODE, "--strict", *options, "--", sys.executable, "-c", code)
        assert done.returncode == verify, done.stderr
        assert ("work in a context outside of the partition" in done.stderr) == verify


def test_options_of_programs_are_about_a_partition() -> None:
    for options in (["--strict"], ["--verify"], ["--sm-count", "card"]):
        done = run("run", "--layout", "decode=16", *options, "--", "true")
        assert (done.exit_code, "add --as NAME" in done.stderr) == (2, True)


def test_a_percentage_of_mps_is_refused_before_the_command_runs() -> None:
    done = child(*AS_DECODE, "--", "touch", "never", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert (done.returncode, done.stdout) == (1, "")
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 overrides partitions" in done.stderr
    assert not Path("never").exists()


def test_a_process_in_a_partition_has_no_layout() -> None:
    code = "from cuda_gctx import Device\ntry: Device().partition()\nexcept ValueError as error: print(error)"
    done = child(*AS_DECODE, "--", sys.executable, "-c", code)
    assert "this process runs in partition decode, which is its whole device and has no layout" in done.stdout


def test_a_command_in_a_partition_that_cannot_be_run_ends_with_127() -> None:
    done = child(*AS_DECODE, "--", "no-such-command")
    assert done.returncode == 127
    assert "Error: cannot run no-such-command: No such file or directory" in done.stderr


def test_mps_is_told_as_text_and_as_json() -> None:
    text = run("mps", "decode=16,prefill=rest")
    document = json.loads(run("mps", "decode=16", "prefill=rest", "--json").stdout)
    assert document["plan"]["v3"] in text.stdout
    assert [process["chunks"] for process in document["plan"]["processes"]] == [2, 14]
    refused = run("mps", "decode=128", "prefill=rest")
    assert (refused.exit_code, "needs 17 chunks" in refused.stderr) == (1, True)
