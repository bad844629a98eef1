"""After os.fork(), calls in the child raise a clear error that it cannot use CUDA, and the child ends cleanly.

CUDA_GCTX_FORKS sets how many forks at random moments there are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..common import run_python
from .fronts import Front

pytestmark = pytest.mark.any_driver

FORKS = int(os.environ.get("CUDA_GCTX_FORKS", "20"))
FORKS_OF_ONE = 10  # of one process, the first of which may come before the driver is open

# Everything is made in the parent and tried in the child, which prints as JSON what each try raised.
PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking: that is what is tested
from cuda_gctx import (
    Context, ContextOptions, Device, EventOptions, PartitionPool, ResourceOverlapWarning, SMResourceOptions, Stream,
    StreamOptions, system)
dev = Device(0)
groups, rest = dev.resources.sm.split(SMResourceOptions([8, 16]))
ctx = dev.create_context(ContextOptions([groups[0]]))
stream, event = ctx.create_stream(), ctx.create_event()
handles = (ctx.handle, stream.handle)
warnings.simplefilter("ignore", ResourceOverlapWarning)
pool = PartitionPool(dev)
parts = pool.prepare(a=16, b=None)
part = parts.a
lent = (part.stream, *part.stream_pool(2))
tries = {
    "Device()": lambda: Device(),
    "Device(0)": lambda: Device(0),
    "Device.count": lambda: Device.count(),
    "dev.name": lambda: dev.name,
    "dev.sm_count": lambda: dev.sm_count,
    "dev.context": lambda: dev.context,
    "dev.resources": lambda: dev.resources.sm,
    "dev.create_context": lambda: dev.create_context(ContextOptions([groups[1]])),
    "dev.create_stream": lambda: dev.create_stream(),
    "dev.create_event": lambda: dev.create_event(),
    "dev.set_current": lambda: dev.set_current(),
    "dev.sync": lambda: dev.sync(),
    "split": lambda: rest.split(SMResourceOptions(8)),
    "dry run": lambda: rest.split(SMResourceOptions(8), dry_run=True),
    "ctx.handle": lambda: ctx.handle,
    "ctx.is_green": lambda: ctx.is_green,
    "ctx.is_current": lambda: ctx.is_current,
    "ctx.resources": lambda: ctx.resources.sm,
    "ctx.create_stream": lambda: ctx.create_stream(),
    "ctx.create_event": lambda: ctx.create_event(),
    "ctx.record_event": lambda: ctx.record_event(),
    "ctx.wait_event": lambda: ctx.wait_event(event),
    "ctx.wait_context": lambda: ctx.wait_context(ctx),
    "ctx.sync": lambda: ctx.sync(),
    "ctx.current": lambda: ctx.current().__enter__(),
    "stream.handle": lambda: stream.handle,
    "stream.record": lambda: stream.record(),
    "stream.wait": lambda: stream.wait(event),
    "stream.sync": lambda: stream.sync(),
    "stream.is_done": lambda: stream.is_done,
    "stream.priority": lambda: stream.priority,
    "stream.__cuda_stream__": lambda: stream.__cuda_stream__(),
    "event.sync": lambda: event.sync(),
    "event.is_done": lambda: event.is_done,
    "event.handle": lambda: event.handle,
    "part.context": lambda: part.context,
    "part.stream": lambda: part.stream,
    "part.stream_pool": lambda: part.stream_pool(1),
    "part.create_stream": lambda: part.create_stream(),
    "parts.verify": lambda: parts.verify(),
    "pool.prepare": lambda: pool.prepare(a=16, b=None),
    "pool.switch": lambda: pool.switch(a=16, b=None),
    "system": lambda: system.driver_version,
    "Context.from_handle": lambda: Context.from_handle(handles[0]),
    "Stream.from_handle": lambda: Stream.from_handle(handles[1]),
}
outcomes = {}
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    for name, action in tries.items():
        try:
            outcomes[name] = ["nothing", repr(action())]
        except Exception as error:
            outcomes[name] = [type(error).__name__, str(error)]
    print(json.dumps(outcomes), flush=True)
    ENDING
else:
    _, status = os.waitpid(pid, 0)
    stream.sync()
    with ctx.create_stream() as another:
        another.record().sync()
    print(status)
"""

ENDINGS = {
    "leaving things to the interpreter": "pass",
    "closing everything": """
    for thing in (event, stream, ctx, pool):
        try:
            thing.close()
        except RuntimeError:
            pass
    del event, stream, ctx, dev, groups, rest, pool, parts, part, lent""",
    "sys.exit": "sys.exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forked_child_gets_an_error_and_ends_cleanly(ending: str) -> None:
    run = run_python(PROGRAM.replace("ENDING", ENDINGS[ending]))
    assert (run.returncode, run.stderr) == (0, "")
    reported_in_child, status = run.stdout.splitlines()
    assert status == "0"
    for name, (kind, message) in json.loads(reported_in_child).items():
        assert kind == "ForkedError", (name, kind, message)
        assert "forked" in message, name
        assert "spawn" in message, name


def test_a_fork_before_the_first_use_is_not_a_fork_for_the_driver() -> None:
    run = run_python(
        """
import os, cuda_gctx
pid = os.fork()
status = os.waitpid(pid, 0)[1] if pid else None
print(cuda_gctx.Device(0).resources.sm.sm_count > 0, status)
"""
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["True None", "True 0"]


def test_a_child_of_a_child_gets_an_error_too() -> None:
    run = run_python(
        """
import os, warnings, cuda_gctx
warnings.simplefilter("ignore", DeprecationWarning)  # forking while the driver has threads is what is tested
dev = cuda_gctx.Device(0)
context = dev.context
if os.fork() == 0:
    if os.fork() == 0:
        try:
            dev.create_stream()
        except RuntimeError as error:
            print("forked" in str(error), flush=True)
    else:
        print(os.wait()[1], flush=True)
else:
    print(os.wait()[1])
"""
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split() == ["True", "0", "0"]


def test_multiprocessing_by_spawn_works_next_to_a_driver_in_use(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(
        """
import multiprocessing
import cuda_gctx

def ask(device):
    return device.resources.sm.sm_count

if __name__ == "__main__":
    dev = cuda_gctx.Device(0)
    stream = dev.create_stream()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(ask, (dev,)) == dev.sm_count)
"""
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True"]


FORK_WHILE_OPENING = """
import ctypes, os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking: that is what is tested
from cuda_gctx import Device
front = ctypes.CDLL(sys.argv[1])
front.front_wait.restype = ctypes.c_char_p
front.front_arm(1)
opening = threading.Thread(target=lambda: Device(0))
opening.start()
assert front.front_wait() == b"cuInit"
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # ends a child that hangs
    front.front_arm(0)
    try:
        Device(0)
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
front.front_arm(0)
front.front_go()
opening.join()
print(status, Device.count())
"""


@pytest.mark.sim_only
def test_a_child_of_a_process_that_was_opening_the_driver_gets_the_error(tmp_path: Path) -> None:
    front = Front(tmp_path)
    command = [sys.executable, "-c", FORK_WHILE_OPENING, front.library]
    run = subprocess.run(command, env=front.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["ForkedError", "0 1"]


# Forks of a process whose threads open the driver, and then work with it. A child that was forked before the opening
# may use the driver itself.
FORK_AT_ANY_MOMENT = """
import os, random, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")  # of forking, and of SMs that are shared
from cuda_gctx import ContextOptions, Device, ForkedError, SMResourceOptions
chance = random.Random(int(sys.argv[1]))
is_over, opened = threading.Event(), threading.Event()
def work(size):
    dev = Device(0)
    opened.set()
    groups, _ = dev.resources.sm.split(SMResourceOptions(size))
    while not is_over.is_set():
        with dev.create_context(ContextOptions([groups[0]])) as ctx, ctx.create_stream() as stream:
            with ctx.current():
                stream.record().sync()
threads = [threading.Thread(target=work, args=(size,)) for size in (8, 16, 24)]
for thread in threads:
    thread.start()
wrong = []
for number in range(int(sys.argv[2])):
    time.sleep(chance.random() * 0.003 if number else chance.random() * 0.0005)
    was_opened = opened.is_set()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # ends a child that hangs
        answer = 1
        try:
            Device(0).create_stream()
            answer = 2 if was_opened else 0
        except ForkedError:
            answer = 0
        os._exit(answer)
    status = os.waitpid(pid, 0)[1]
    if status:
        wrong.append((number, status))
is_over.set()
for thread in threads:
    thread.join()
print(wrong)
"""


@pytest.mark.sim_only
def test_a_child_of_any_moment_gets_the_error_and_does_not_hang() -> None:
    for seed in range(FORKS // FORKS_OF_ONE):
        command = [sys.executable, "-c", FORK_AT_ANY_MOMENT, str(seed), str(FORKS_OF_ONE)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert (seed, run.returncode, run.stdout, run.stderr) == (seed, 0, "[]\n", "")


def test_a_driver_that_could_not_be_opened_is_not_in_use() -> None:
    run = run_python(
        """
import os
os.environ["CUDA_GCTX_DRIVER"] = "/nonexistent/libcuda.so"
from cuda_gctx import Device, DriverNotFound
def kind():
    try:
        Device(0)
    except RuntimeError as error:
        return type(error).__name__
before = kind()
pid = os.fork()
if pid: os.waitpid(pid, 0)
print(before, kind(), flush=True)
"""
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["DriverNotFound DriverNotFound"] * 2


CHURN = """
import os, signal, threading
from cuda_gctx import ContextOptions, Device, SMResourceOptions
dev = Device(0)
(group,), _ = dev.resources.sm.split(SMResourceOptions([8]))
ctx = dev.create_context(ContextOptions([group]))
is_over = False
def churn():
    while not is_over:
        streams = [ctx.create_stream() for _ in range(4)]
        streams.clear()
threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads: thread.start()
victims = [ctx.create_stream(), ctx.create_stream().record(), ctx.current()]
hung = 0
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        del victims
        del ctx
        os._exit(0)
    hung += os.waitpid(child, 0)[1] != 0
is_over = True
for thread in threads: thread.join()
print("hung:", hung)
"""


@pytest.mark.sim_only
def test_destructors_in_a_forked_child_wait_for_no_lock() -> None:
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHURN], capture_output=True, text=True, check=False, timeout=110
    )
    assert (child.stdout, child.stderr) == ("hung: 0\n", "")
