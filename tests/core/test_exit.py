"""The interpreter ends while contexts and streams are alive: no crash, no message.

CUDA_GCTX_EXIT_RUNS sets how many runs of each kind there are (100 take a minute and a half).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .fronts import Front

pytestmark = pytest.mark.any_driver

RUNS = int(os.environ.get("CUDA_GCTX_EXIT_RUNS", "4"))
AT_ONCE = 2

MAKE = """
import gc, threading
from cuda_gctx import Context, ContextOptions, Device, SMResourceOptions, Stream
dev = Device(0)
groups, rest = dev.resources.sm.split(SMResourceOptions([8, 16]))
contexts = [dev.create_context(ContextOptions([group])) for group in groups]
streams = [context.create_stream() for context in contexts]
event = streams[0].record()
"""

ENDINGS = {
    "module globals": "",
    "current at the end": """
dev.set_current(contexts[0])
block = contexts[1].current()
block.__enter__()
""",
    "closed contexts": """
for context in contexts:
    context.close()
inner = rest.split(SMResourceOptions(8))
""",
    "cycles": """
gc.disable()
class Holder: pass
holder = Holder()
holder.itself, holder.all = holder, [contexts, streams, event, holder]
del contexts, streams, event, holder
""",
    "streams that their contexts keep": """
import warnings
from cuda_gctx._core.extension import context_stream
warnings.simplefilter("ignore")
kept = [context_stream(context, 1) for context in [dev.context, *contexts]]
parts = dev.partition(8, 16)
streams += [part.stream for part in parts]
""",
    "threads": """
local = threading.local()
def work(context):
    local.stream = context.create_stream()
    local.context = context
    dev.set_current(context)
    contexts.append(local.stream.record())
threads = [threading.Thread(target=work, args=(context,)) for context in list(contexts)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    "daemon threads at work": """
started = threading.Semaphore(0)
def work(context):
    with context.current():
        started.release()
        while True:
            with context.create_stream() as stream:
                stream.record().sync()
for context in contexts:
    threading.Thread(target=work, args=(context,), daemon=True).start()
    started.acquire()
""",
    "daemon threads that drop what they made": """
started = threading.Semaphore(0)
def work(context):
    stream = context.create_stream()
    started.release()
    while True:
        stream.record()
for context in contexts:
    threading.Thread(target=work, args=(context,), daemon=True).start()
    started.acquire()
""",
    "used while the interpreter is torn down": """
class Late:
    def __del__(self):
        try:
            self.stream.sync()
            self.stream.close()
            self.context.close()
        except RuntimeError:
            pass
late = Late()
late.stream, late.context = streams.pop(), contexts[0]
import sys
sys.modules["late"] = late
""",
    "an exception that holds everything": """
import sys
def fail(*everything):
    raise ValueError
try:
    fail(dev, contexts, streams, event)
except ValueError as error:
    kept = error
sys.last_value = kept
""",
    "exit from inside a block": """
import sys
with contexts[0].current(), streams[0], contexts[1]:
    sys.exit(0)
""",
}


def run_once(code: str) -> tuple[int, str, str]:
    child = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return child.returncode, child.stdout, child.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_quietly(ending: str) -> None:
    code = MAKE + ENDINGS[ending]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = set(pool.map(run_once, [code] * RUNS))
    assert outcomes == {(0, "", "")}


def test_a_message_at_exit_would_be_seen() -> None:
    assert run_once("import atexit; atexit.register(print, 'late')") == (0, "late\n", "")


# Daemon threads are inside driver calls when the program ends, which may fail while the interpreter is gone and the
# exit handler of another library still runs.
FAILS_AT_EXIT = """
import ctypes, random, sys, threading, time
from cuda_gctx import CUDAError, Device
chance = random.Random(int(sys.argv[2]))
dev = Device(0)
streams = [dev.create_stream() for _ in range(chance.randint(1, 4))]
front = ctypes.CDLL(sys.argv[1])
front.front_slow_exit()
begun = threading.Semaphore(0)
def work(stream):
    begun.release()
    while True:
        try:
            stream.sync()
        except CUDAError:
            pass
for stream in streams:
    threading.Thread(target=work, args=(stream,), daemon=True).start()
    begun.acquire()
time.sleep(chance.random() * 0.05)  # any moment will do
"""


@pytest.mark.sim_only
def test_calls_that_fail_after_the_interpreter_end_nothing_else(tmp_path: Path) -> None:
    front = Front(tmp_path)

    def run(seed: int) -> tuple[int, str]:
        chance = random.Random(seed)
        code = chance.choice(["4", "4", "0"])
        environment = front.environment(FAIL=f"cuStreamSynchronize:{code}", MS=str(chance.randint(5, 400)))
        command = [sys.executable, "-c", FAILS_AT_EXIT, front.library, str(seed)]
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return child.returncode, child.stderr

    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = enumerate(pool.map(run, range(RUNS)))
        assert [(seed, outcome) for seed, outcome in outcomes if outcome != (0, "")] == []
