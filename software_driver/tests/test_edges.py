"""Edges of a process: it ends inside a host function, forks, polls, or destroys what another thread waits for."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

from cuda_software_driver import library_path, session

from .hardware.recorder.contract import World

NOT_INITIALIZED, NOT_READY, INVALID_HANDLE = 3, 600, 400
START = """
import ctypes, os, sys, threading
driver = ctypes.CDLL(sys.argv[1])
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuStreamCreate(ctypes.byref(stream), 1)
"""


def process(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + program, library_path()]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_process_may_end_while_a_host_function_waits() -> None:
    done = process(
        """
entered = threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wait(_):
    entered.set()
    threading.Event().wait()
driver.cuLaunchHostFunc(stream, wait, None)
assert entered.wait(30)  # without a call: it is due by itself
print("leaving", flush=True)
sys.exit(0)
"""
    )
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr


def test_the_child_of_a_fork_has_no_driver_and_the_parent_keeps_it() -> None:
    done = process(
        """
child = os.fork()
if child == 0:
    os._exit(driver.cuInit(0))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), driver.cuCtxSynchronize())
"""
    )
    assert done.stdout == f"{NOT_INITIALIZED} 0\n", done.stderr


def test_polling_an_event_ends() -> None:
    with session("h200", check=False):
        world = World(ctypes.CDLL(library_path()))
        event = world.out("cuEventCreate", 0)
        world.must("cuMemsetD8Async", world["CUdeviceptr"], 1, ctypes.c_size_t(64), world["CUstream"])
        world.must("cuEventRecord", event, world["CUstream"])
        answers = iter(lambda: world.code("cuEventQuery", event), 0)
        assert set(answers) <= {NOT_READY}


def test_a_stream_goes_while_another_thread_waits_for_it() -> None:
    with session("h200", check=False):
        world = World(ctypes.CDLL(library_path()))
        codes = set()

        def wait(stream: ctypes.c_void_p) -> None:
            world.must("cuCtxSetCurrent", world["CUcontext"])
            codes.add(world.code("cuStreamSynchronize", stream))

        for _ in range(100):
            stream = world.out("cuStreamCreate", 1)
            world.must("cuMemsetD8Async", world["CUdeviceptr"], 0, ctypes.c_size_t(64), stream)
            waiting = threading.Thread(target=wait, args=(stream,))
            waiting.start()
            world.must("cuStreamDestroy_v2", stream)
            waiting.join()
        assert codes <= {0, INVALID_HANDLE}


def test_what_a_graph_keeps_goes_without_a_call_when_it_is_destroyed_in_flight() -> None:
    with session("h200", check=False):
        world = World(ctypes.CDLL(library_path()))
        entered, leave, gone = threading.Event(), threading.Event(), threading.Event()
        kinds = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        wait = kinds(lambda _: (entered.set(), leave.wait(30))[0])
        destroy = kinds(lambda _: gone.set())
        kept = world.out("cuUserObjectCreate", None, destroy, 1, 1)
        graph = world.out("cuGraphCreate", 0)
        world.must("cuGraphRetainUserObject", graph, kept, 1, 1)
        host = (ctypes.c_void_p * 2)(ctypes.cast(wait, ctypes.c_void_p).value, None)
        world.out("cuGraphAddHostNode", graph, None, ctypes.c_size_t(0), host)
        executable = world.out("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))
        world.must("cuGraphDestroy", graph)
        world.must("cuGraphLaunch", executable, world["CUstream"])
        assert entered.wait(30)
        world.must("cuGraphExecDestroy", executable)
        assert not gone.is_set()
        leave.set()
        world.must("cuStreamSynchronize", world["CUstream"])
        assert gone.wait(30)
