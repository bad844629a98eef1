"""Guarantees of the page "What a partition guarantees" that no test of a room covers."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import (
    ClosedError,
    CUDAError,
    CUDAWarning,
    Device,
    IsolationError,
    Layout,
    Partitions,
    Stream,
    Timeline,
    system,
    tune,
)
from cuda_gctx.partitions import verify
from cuda_software_driver import Session, session

from ..conftest import REPOSITORY
from ..raw import Raw

pytestmark = pytest.mark.sim_only

MS = 1_000_000


def test_the_table_of_exceptions_has_every_public_one() -> None:
    page = (REPOSITORY / "docs" / "guarantee.md").read_text()
    first_cells = re.findall(r"^\| ([^|]*)", page, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    public = (name for name in cuda_gctx.__all__ if isinstance(getattr(cuda_gctx, name), type))
    assert {name for name in public if issubclass(getattr(cuda_gctx, name), Exception)} <= listed


def test_partitions_are_closed_together_or_not_at_all(machine: Session, parts: Partitions) -> None:
    with parts.b.context.current():
        with pytest.raises(RuntimeError, match="current"):
            parts.close()
        assert not parts.is_closed
        parts.a.sync()  # nothing of it was closed
    parts.close()
    assert parts.is_closed
    assert not machine.ledger().misuse


def test_partitions_are_closed_also_where_destroying_fails() -> None:
    with warnings.catch_warnings(), session("h200", check=False) as machine:
        warnings.simplefilter("ignore", CUDAWarning)
        with Device(0).partition(a=16, b=16, c=16):
            made = machine.calls("cuGreenCtxCreate")
            machine.fail("cuGreenCtxDestroy", nth=1)
        system.release_contexts()
        assert machine.calls("cuGreenCtxDestroy") == made
        assert len(machine.ledger().live_of("green context")) == 1


# What a context answers after one of its kernels failed: every call that waits, enqueues or destroys.
AFTER_A_FAILED_KERNEL = [
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuCtxSynchronize",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuLaunchKernel",
    "cuStreamDestroy",
    "cuEventDestroy",
    "cuGreenCtxDestroy",
]


@pytest.fixture
def machine() -> Iterator[Session]:
    with session("h200", driver="13.0") as made:
        yield made


@pytest.fixture
def parts(machine: Session) -> Iterator[Partitions]:
    with Device(0).partition(a=16, b=16) as made:
        yield made


def test_objects_of_a_lost_context_raise_and_can_be_closed() -> None:
    def lose() -> None:
        parts = Device(0).partition(a=16)
        stream, event = parts.a.context.create_stream(), parts.a.context.create_event()
        for function in AFTER_A_FAILED_KERNEL:
            lost.fail(function, code="CUDA_ERROR_ILLEGAL_ADDRESS")
        for use in (stream.sync, parts.a.sync, stream.record, lambda: stream.is_done):
            with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
                use()
        for thing in (event, stream, parts):
            thing.close()
        assert (event.is_closed, stream.is_closed, parts.is_closed) == (True, True, True)
        with pytest.raises(ClosedError):
            stream.sync()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CUDAWarning)
        with session("h200", check=False) as lost:
            lose()


def test_a_failed_verification_leaves_partitions_open(parts: Partitions) -> None:
    with pytest.raises(IsolationError) as caught:
        verify({"a": parts.a.context, "again": parts.a.context})
    assert caught.value.report.problems
    assert not parts.is_closed
    parts.verify()


def test_a_waiter_sees_the_latest_record_of_an_event(parts: Partitions) -> None:
    writer, waiter = parts.a.stream, parts.b.stream
    event = writer.record()
    tune.spin(writer, blocks=16, spin_ns=5 * MS)
    writer.record(event)  # another stream was to wait for the first record
    waiter.wait(event)
    waiter.sync()
    assert writer.is_done  # it waited for the work between the records


def test_the_legacy_default_stream_waits_for_blocking_streams_and_not_for_partitions(
    machine: Session, parts: Partitions
) -> None:
    dev = Device(0)
    with dev.context.current(), dev.create_stream({"nonblocking": False}) as blocking:
        legacy = Stream.from_handle(1)
        tune.spin(parts.a.stream, blocks=16, spin_ns=20 * MS)
        tune.spin(blocking, blocks=16, spin_ns=5 * MS)
        tune.spin(legacy, blocks=1, spin_ns=MS // 100)
        machine.advance(MS)
        assert not legacy.is_done  # behind the blocking stream
        legacy.sync()
        assert blocking.is_done
        assert not parts.a.stream.is_done
        parts.a.sync()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize(
    "call",
    [
        "stream.wait",
        "other.sync",
        "elsewhere.sync",
        "other.is_done",
        "event.sync",
        "event.is_done",
        "graph",
        "timeline",
    ],
)
def test_what_does_not_fit_into_a_capture_is_an_error_and_ends_it(parts: Partitions, mode: Any, call: str) -> None:
    with parts.a.context.create_stream() as stream, parts.a.context.create_stream() as other:
        event = other.record()
        other.sync()
        with other.capture() as earlier:
            pass
        calls: dict[str, Callable[[], object]] = {
            "stream.wait": lambda: stream.wait(event),
            "other.sync": other.sync,
            "elsewhere.sync": parts.b.stream.sync,
            "other.is_done": lambda: other.is_done,
            "graph": lambda: earlier.graph.instantiate().close(),
            "timeline": lambda: Timeline(parts),
            "event.sync": event.sync,
            "event.is_done": lambda: event.is_done,
        }
        capture = stream.capture(mode)
        capture.__enter__()
        with pytest.raises(CUDAError, match="STREAM_CAPTURE"):
            calls[call]()
        with pytest.raises(CUDAError, match="CAPTURE_INVALIDATED"):
            capture.__exit__(None, None, None)
        calls[call]()  # afterwards


SMS_OF_A_LAYOUT = """
import json, sys
from cuda_gctx import Device, Layout
with Device(0).partition(Layout.from_json(sys.stdin.read())) as parts:
    parts.verify()
    print(json.dumps({part.name: list(part.sm_ids) for part in parts}))
"""


def test_a_layout_has_the_same_sms_in_every_process() -> None:
    layout = Layout(control=16, rest=96)
    with session("h200", driver="13.0"), Device(0).partition(layout) as parts:
        parts.verify()
        here = {part.name: list(part.sm_ids or ()) for part in parts}
    done = subprocess.run(
        [sys.executable, "-c", SMS_OF_A_LAYOUT],
        input=layout.to_json(),
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here


def test_a_partition_reaches_the_memory_of_another(parts: Partitions) -> None:
    raw = Raw()
    address = ctypes.c_uint64()
    with parts.a.context.current():
        raw.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
    with parts.b.context.current():
        raw.call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), ctypes.c_size_t(4096))
        raw.call("cuMemFree_v2", address)
