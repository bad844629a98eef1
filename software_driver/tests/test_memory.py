"""Device memory: the host cannot read it, zeros take no room, and large copies stop nobody else."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cuda_software_driver import Session, session

from .raw import Raw, RawError

MIB = 1 << 20
OUT_OF_MEMORY = 2


@pytest.fixture
def machine() -> Iterator[Session]:
    with session("h200", resident=64 * MIB) as made, Raw().primary():
        yield made


class Memory:
    """An allocation of device memory."""

    def __init__(self, size: int) -> None:
        self.raw = Raw()
        self.size = size
        self.address = self.raw.handle("cuMemAlloc_v2", ctypes.c_size_t(size))

    def fill(self, value: int, size: int | None = None) -> None:
        count = self.size if size is None else size
        self.raw.call("cuMemsetD8_v2", ctypes.c_uint64(self.address), ctypes.c_ubyte(value), ctypes.c_size_t(count))

    def write(self, content: bytes | ctypes.Array[Any], at: int = 0) -> None:
        self.raw.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address + at), content, ctypes.c_size_t(len(content)))

    def read(self, at: int, size: int) -> bytes:
        found = ctypes.create_string_buffer(size)
        self.raw.call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(self.address + at), ctypes.c_size_t(size))
        return found.raw

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.raw.call("cuMemFree_v2", ctypes.c_uint64(self.address))


@pytest.mark.parametrize("size", [512, 4 * MIB])
def test_the_host_cannot_read_device_memory_and_copies_can(machine: Session, size: int) -> None:
    reader, writer = os.pipe()
    with Memory(size) as memory:
        memory.write(bytes(range(256)), at=size - 256)
        with pytest.raises(OSError, match="Bad address"):
            os.write(writer, (ctypes.c_char * 16).from_address(memory.address))
        assert memory.read(size - 256, 256) == bytes(range(256))
        assert bytes(machine.view(memory.address + size - 256, 3)) == b"\0\1\2"
        with pytest.raises(ValueError, match="does not have 2 bytes"):
            machine.view(memory.address + size - 1, 2)
    os.close(reader)
    os.close(writer)


def test_a_freed_address_is_refused_wherever_it_points_into_what_was_there(machine: Session) -> None:
    with Memory(4 * MIB) as memory:
        inside = ctypes.c_uint64(memory.address + 8)
    with pytest.raises(RawError, match=r"cuMemcpy answered 1$"):
        memory.raw.call("cuMemcpy", inside, ctypes.create_string_buffer(16), ctypes.c_size_t(16))


def test_registered_memory_of_the_host_is_copied_as_well(machine: Session) -> None:
    own = (ctypes.c_ubyte * 4096)(*range(200))
    with Memory(4096) as memory:
        memory.raw.call("cuMemHostRegister_v2", own, ctypes.c_size_t(4096), 0)
        memory.write(own)
        memory.fill(9, 2)
        memory.raw.call("cuMemcpyDtoH_v2", own, ctypes.c_uint64(memory.address), ctypes.c_size_t(4096))
        assert bytes(own[:4]) == b"\t\t\2\3"
        memory.raw.call("cuMemHostUnregister", own)


def test_zeros_take_no_memory_however_they_come(machine: Session) -> None:
    with Memory(100 << 30) as memory, Memory(8 * MIB) as other:
        memory.fill(0)
        other.write(bytes(8 * MIB))
        copied = ctypes.c_size_t(8 * MIB)
        memory.raw.call("cuMemcpyDtoD_v2", ctypes.c_uint64(memory.address), ctypes.c_uint64(other.address), copied)
        assert memory.read(99 << 30, 64) == bytes(64)
        assert machine.memory()["resident"] <= MIB
        other.fill(7)
        assert machine.memory()["resident"] >= 8 * MIB
        other.fill(0)
        assert other.read(8 * MIB - 2, 2) == bytes(2)
        assert machine.memory()["resident"] <= MIB


def test_contents_beyond_the_limit_are_out_of_memory(machine: Session) -> None:
    with Memory(1 << 30) as memory:
        memory.fill(1, 48 * MIB)
        memory.fill(2, 48 * MIB)  # what is there already takes no more
        for more in (memory.fill, lambda value: memory.write(ctypes.create_string_buffer(65 * MIB))):
            with pytest.raises(RawError) as refused:
                more(3)
            assert refused.value.code == OUT_OF_MEMORY
        assert memory.read(48 * MIB - 1, 2) == b"\2\0"
        memory.fill(0)
        memory.fill(3, 48 * MIB)
    assert machine.memory()["resident"] == 0
    with pytest.raises(ValueError, match="resident must be"), session("h200", resident=1):
        pass


def test_queued_work_counts_towards_the_limit(machine: Session) -> None:
    with Memory(256 * MIB) as memory:
        stream = memory.raw.create_stream(memory.raw.current())

        def fill(part: int) -> None:
            where = ctypes.c_uint64(memory.address + part * 24 * MIB)
            size = ctypes.c_size_t(24 * MIB)
            memory.raw.call("cuMemsetD8Async", where, ctypes.c_ubyte(1), size, ctypes.c_void_p(stream))

        fill(0)
        fill(1)
        with pytest.raises(RawError) as refused:
            fill(2)
        assert refused.value.code == OUT_OF_MEMORY
        memory.raw.destroy_stream(stream)


def test_a_large_copy_lets_other_threads_call(machine: Session) -> None:
    """A question that is asked when the first byte has arrived is answered before the last one has."""
    size, tries, seen = 32 * MIB, 50, []
    found = (ctypes.c_char * size)()

    def ask() -> None:
        raw, count = Raw(), ctypes.c_int()
        while found[0] == b"\0":
            pass
        raw.call("cuDeviceGetCount", ctypes.byref(count))
        seen.append(found[size - 1] == b"\0")

    with Memory(size) as memory:
        memory.fill(1)
        while True not in seen and len(seen) < tries:
            ctypes.memset(found, 0, size)
            asking = threading.Thread(target=ask)
            asking.start()
            memory.raw.call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(memory.address), ctypes.c_size_t(size))
            asking.join()
    assert True in seen
