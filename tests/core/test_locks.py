"""Locks of the core that are held over a driver call: nobody waits for one with the GIL, or in a forked child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .fronts import Front

# The first thread is inside the slow call; the second one waits for a lock of the first; the main thread lets the first
# go on. It never gets to run if the second one waits with the GIL.
PROGRAM = """
import ctypes, os, sys, threading
from cuda_gctx import Device, system
from cuda_gctx._core.probe import probe_blocks_per_sm
front = ctypes.CDLL(sys.argv[1])
front.front_wait.restype = ctypes.c_char_p
system.driver_version
{setup}
front.front_arm(1)
first = threading.Thread(target=lambda: {first})
first.start()
while front.front_wait() != b"{slow}":
    front.front_go()
front.front_arm(0)
begun = threading.Event()
second = threading.Thread(target=lambda: (begun.set(), {second}))
second.start()
begun.wait()
for _ in range(2000):
    os.sched_yield()
front.front_go()
first.join()
second.join()
print("done")
"""

CASES = {
    "resources while the probe is loaded": (
        "cuLibraryLoadData",
        "dev = Device(0); context = dev.context",
        "probe_blocks_per_sm(context)",
        "Device(0).resources.sm",
    ),
    "resources while the primary context is made": (
        "cuDevicePrimaryCtxRetain",
        "dev = Device(0)",
        "dev.context",
        "Device(0).resources.sm",
    ),
    "set_current while the probe is loaded": (
        "cuLibraryLoadData",
        "dev = Device(0); context = dev.context",
        "probe_blocks_per_sm(context)",
        "dev.set_current()",
    ),
}


@pytest.mark.sim_only
@pytest.mark.parametrize("case", CASES)
def test_nobody_waits_for_a_driver_call_of_another_thread_with_the_gil(tmp_path: Path, case: str) -> None:
    front = Front(tmp_path)
    slow, setup, first, second = CASES[case]
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(slow=slow, setup=setup, first=first, second=second), front.library],
        env=front.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.stdout, child.stderr) == ("done\n", "")


# The thread is inside __enter__, which asks the driver whether the context is there; meanwhile the main thread enters
# the same block.
ENTERS = """
import ctypes, sys, threading
from cuda_gctx import Device
front = ctypes.CDLL(sys.argv[1])
front.front_wait.restype = ctypes.c_char_p
ctx = Device(0).context
block = ctx.current()
def enter():
    with block:
        print(ctx.is_current)
    print(ctx.is_current)
front.front_arm(1)
thread = threading.Thread(target=enter)
thread.start()
front.front_wait()
front.front_arm(0)
with block:
    front.front_go()
    thread.join()
    print(ctx.is_current)
print(ctx.is_current)
"""


@pytest.mark.sim_only
def test_a_block_that_two_threads_enter_at_once_is_entered_by_each(tmp_path: Path) -> None:
    front = Front(tmp_path)
    child = subprocess.run(
        [sys.executable, "-c", ENTERS, front.library],
        env=front.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.stdout, child.stderr) == ("True\nFalse\nTrue\nFalse\n", "")


FORKS = """
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
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=False, timeout=110
    )
    assert (child.stdout, child.stderr) == ("hung: 0\n", "")
