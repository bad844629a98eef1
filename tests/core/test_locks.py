"""Locks of the core that are held over a driver call: nobody waits for one with the GIL, or in a forked child."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_gctx

# A driver in front of the software driver, in which one function waits until a byte comes through a pipe.
SLOW_DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void* real(const char* name) {
  static void* library;
  if (!library) library = dlopen(getenv("SIMULATED"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}
typedef long (*any)(long, long, long, long, long, long, long, long);
static any waited_for;
static long wait_then_call(long a, long b, long c, long d, long e, long f, long g, long h) {
  char byte = 'w';
  if (write(atoi(getenv("WAITING")), &byte, 1) != 1 || read(atoi(getenv("GO_ON")), &byte, 1) != 1) abort();
  return waited_for(a, b, c, d, e, f, g, h);
}
int cuDriverGetVersion(int* version) { return ((int (*)(int*))real("cuDriverGetVersion"))(version); }
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* status) {
  int answer = ((int (*)(const char*, void**, int, unsigned long long, int*))real("cuGetProcAddress_v2"))(
      name, function, version, flags, status);
  if (answer == 0 && function && *function && strcmp(name, getenv("SLOW")) == 0) {
    waited_for = (any)*function;
    *function = (void*)wait_then_call;
  }
  return answer;
}
"""

# The first thread is inside the slow call; the second one waits for a lock of the first; the main thread lets the first
# go on. It never gets to run if the second one waits with the GIL.
PROGRAM = """
import os, sys, threading
waiting, was_waiting = os.pipe()
go_on, let_go_on = os.pipe()
os.environ["WAITING"], os.environ["GO_ON"] = str(was_waiting), str(go_on)
from cuda_gctx import Device, system
from cuda_gctx._core.probe import probe_blocks_per_sm
system.driver_version
{setup}
first = threading.Thread(target=lambda: {first})
first.start()
os.read(waiting, 1)
begun = threading.Event()
second = threading.Thread(target=lambda: (begun.set(), {second}))
second.start()
begun.wait()
for _ in range(2000):
    os.sched_yield()
os.write(let_go_on, b"g")
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
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which builds the slow driver of this test")
    source = tmp_path / "slow.c"
    source.write_text(SLOW_DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", source, "-o", tmp_path / "libslow.so", "-ldl"], check=True)
    slow, setup, first, second = CASES[case]
    simulated = Path(cuda_gctx.__file__).parent / "sim" / "lib" / "libcuda.so.1"
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup, first=first, second=second)],
        env={**os.environ, "CUDA_GCTX_DRIVER": str(tmp_path / "libslow.so"), "SIMULATED": str(simulated), "SLOW": slow},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.stdout, child.stderr) == ("done\n", "")


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
