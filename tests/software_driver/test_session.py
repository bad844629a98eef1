"""Sessions of the software driver as this package sees them: one object per opening, and no memory left behind."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

from cuda_gctx import ClosedError, Context, Device, system
from cuda_software_driver import library_path, session

from ..common import green, refusal, split
from ..trust.soak import malloc_bytes

pytestmark = pytest.mark.sim_only

MIB = 1 << 20


def group(dev: Device) -> Any:
    (made,), _ = split(dev.resources.sm, [8])
    return made


def test_a_machine_visits_no_context_of_another_one() -> None:
    with session("h200"), green(dev := Device(0), group(dev)) as outer, outer.create_stream():
        with session("h200"):
            dev = Device(0)
            with green(dev, group(dev)):
                dev.sync()
        outer.sync()


def test_a_handle_has_one_object_for_each_opening_of_its_driver() -> None:
    with session("h200", check=False):  # what `other` holds is not released after its driver has been closed
        dev = Device(0)
        handle = dev.context.handle
        with system.use_driver(library_path()):
            other = Device(0).context
            assert other.handle == handle
        refusal(ClosedError, other.create_stream)
        Context.from_handle(handle).create_stream().close()


def allocated_bytes() -> int:
    gc.collect()
    return malloc_bytes()


def malloc_counts() -> bool:
    """Whether the C library counts what is allocated. That of a sanitizer does not."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return False
    before = allocated_bytes()
    kept = bytes(MIB)
    return allocated_bytes() - before >= len(kept)


def test_a_closed_session_leaves_less_than_four_kilobytes() -> None:
    if not malloc_counts():
        pytest.skip("mallinfo2 of this C library counts nothing")

    def use() -> None:
        with session("h200"), Device(0).partition(a=16, b=32) as parts:
            parts.a.stream.record()
            Device(0).create_stream().close()

    def left_by(sessions: int) -> float:
        before = allocated_bytes()
        for _ in range(sessions):
            use()
        return (allocated_bytes() - before) / sessions

    left_by(5)
    # What grows in steps, such as a table of Python, grows in one of the rounds.
    assert min(left_by(15) for _ in range(3)) < 4096
