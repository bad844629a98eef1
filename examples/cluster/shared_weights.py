"""One model in two processes, which share the weights and a cache by CUDA IPC, each in a partition.

    cuda-gctx run --layout control=16,rest -- python examples/cluster/shared_weights.py

The processes exchange handles through a pipe. The first one fills the cache and records an event; the second one waits
for it on the device. Without MPS, processes take turns on a card: partitions of two processes do not run at the same
time. Fills of memory stand for the kernels of the model.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from cuda.bindings import driver

from cuda_gctx import Device

WEIGHTS, ENTRIES = 1 << 20, 4096  # of four bytes each
SEED, CACHED = 7, 42
HANDLE_BYTES = 64


def checked(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA error {error}")
    return values[0] if values else None


def raw(handle: Any) -> bytes:
    """The bytes of an IPC handle, which another process can use."""
    return ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


def of_raw(kind: type, data: bytes) -> Any:
    handle = kind()
    ctypes.memmove(handle.getPtr(), data, HANDLE_BYTES)
    return handle


def opened(data: bytes) -> Any:
    """The address in this process of memory that another one allocated."""
    flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    return checked(driver.cuIpcOpenMemHandle(of_raw(driver.CUipcMemHandle, data), flags))


def first(pointer: Any, number: int, stream: int) -> list[int]:
    """The first integers behind a device pointer."""
    host = (ctypes.c_uint32 * number)()
    checked(driver.cuMemcpyDtoHAsync(ctypes.addressof(host), pointer, ctypes.sizeof(host), stream))
    checked(driver.cuStreamSynchronize(stream))
    return list(host)


def reader(pipe: Connection) -> None:
    """The second process: opens what the first one allocated, and reads it when it is filled."""
    dev = Device()
    with dev.partition() as parts, parts.control.context.current():
        stream = parts.control.stream.handle
        weights, cache, filled = pipe.recv()
        weights, cache = opened(weights), opened(cache)
        filled = checked(driver.cuIpcOpenEventHandle(of_raw(driver.CUipcEventHandle, filled)))
        checked(driver.cuStreamWaitEvent(stream, filled, 0))  # on the device
        entries = first(cache, ENTRIES, stream)
        print(
            f"control on {parts.control.sm_count} SMs of {dev.name}: weights {first(weights, 1, stream)[0]}, "
            f"{entries.count(CACHED)} of {ENTRIES} entries are in the cache"
        )
        for pointer in (weights, cache):
            checked(driver.cuIpcCloseMemHandle(pointer))
        checked(driver.cuEventDestroy(filled))
    pipe.send("done")


def main() -> None:
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=reader, args=(there,), daemon=True)
    other.start()
    there.close()
    dev = Device()
    with dev.partition() as parts, parts.rest.context.current():
        stream = parts.rest.stream.handle
        weights, cache = (checked(driver.cuMemAlloc(4 * number)) for number in (WEIGHTS, ENTRIES))
        flags = driver.CUevent_flags
        filled = checked(driver.cuEventCreate(flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_INTERPROCESS))
        checked(driver.cuMemsetD32Async(weights, SEED, WEIGHTS, stream))
        checked(driver.cuMemsetD32Async(cache, CACHED, ENTRIES, stream))
        checked(driver.cuEventRecord(filled, stream))
        memory = [raw(checked(driver.cuIpcGetMemHandle(pointer))) for pointer in (weights, cache)]
        here.send([*memory, raw(checked(driver.cuIpcGetEventHandle(filled)))])
        print(f"rest on {parts.rest.sm_count} SMs of {dev.name} filled the cache", flush=True)
        here.recv()  # the reader has closed what it opened
        other.join()
        for pointer in (weights, cache):
            checked(driver.cuMemFree(pointer))
        checked(driver.cuEventDestroy(filled))


if __name__ == "__main__":
    main()
