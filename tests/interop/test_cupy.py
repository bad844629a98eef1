"""What is asked of CuPy, played by a stand-in: which stream is current when, and that none is kept alive by that.

CuPy itself is tested on a GPU (see test_interop_gpu.py).
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from cuda_gctx import ContextOptions, Device, SMResourceOptions, Stream
from cuda_gctx.interop import torch as interop_torch
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop.cupy import fork, use

from ..common import on_another_thread, refusal

pytestmark = pytest.mark.sim_only


class StandInStream:
    """cupy.cuda.Stream: those that are current are in ``current``, the last one last."""

    current: ClassVar[list[Any]] = []
    made: ClassVar[int] = 0
    waits: ClassVar[list[tuple[int, int]]] = []

    @classmethod
    def from_external(cls, obj: Any) -> Any:
        self = cls.__new__(cls)
        version, self.ptr = obj.__cuda_stream__()  # type: ignore[attr-defined]
        assert version == 0  # as CuPy demands
        self.device_id = 0  # type: ignore[attr-defined]
        self.kept = obj  # type: ignore[attr-defined]
        StandInStream.made += 1
        return self

    def record(self, event: Any) -> int:
        return int(self.ptr)  # type: ignore[attr-defined]

    def wait_event(self, event: int) -> None:
        self.waits.append((self.ptr, event))  # type: ignore[attr-defined]

    def __enter__(self) -> StandInStream:
        self.current.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.current.pop() is self


class StandInDevice:
    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> StandInDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.fixture
def cupy(dev: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    outside = SimpleNamespace(ptr=0, record=lambda event: 0, wait_event=lambda event: None)
    monkeypatch.setattr(StandInStream, "current", [outside])
    monkeypatch.setattr(StandInStream, "waits", [])
    monkeypatch.setattr(StandInStream, "made", 0)
    module: Any = ModuleType("cupy")
    module.__version__ = "14.2.0"
    module.is_available = lambda: True
    module.cuda = SimpleNamespace(
        Stream=StandInStream,
        Device=StandInDevice,
        Event=lambda disable_timing: None,
        get_current_stream=lambda: StandInStream.current[-1],
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_a_stream_is_made_current_without_any_order(cupy: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        for _ in range(3):
            with current_stream_of_frameworks(parts[0].stream):
                assert cupy.cuda.get_current_stream().ptr == parts[0].stream.handle
            assert cupy.cuda.get_current_stream().ptr == 0
    assert (StandInStream.made, StandInStream.waits) == (1, [])


def test_a_stream_that_was_made_current_is_not_kept(cupy: Any, dev: Device) -> None:
    [group], _ = dev.resources.sm.split(SMResourceOptions([8]))
    with (
        dev.create_context(ContextOptions([group])) as ctx,
        ctx.create_stream() as stream,
        current_stream_of_frameworks(stream),
    ):
        pass
    del ctx, stream
    gc.collect()
    with dev.create_context(ContextOptions([group])) as other:  # its SMs are free: no warning
        assert not other.is_closed


def test_a_cupy_without_a_device_is_left_alone(cupy: Any, dev: Device) -> None:
    cupy.is_available = lambda: False
    with dev.create_stream() as stream, current_stream_of_frameworks(stream):
        assert cupy.cuda.get_current_stream().ptr == 0
    assert StandInStream.made == 0


def test_a_block_takes_partitions_contexts_and_streams(cupy: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        handle = parts[0].stream.handle
        for block in (parts[0].cupy(), use(parts[0].stream), use(parts[0])):
            with block as inside:
                assert cupy.cuda.get_current_stream() is inside
                assert inside.ptr == handle
                assert StandInStream.waits[-1] == (handle, 0)
            assert cupy.cuda.get_current_stream().ptr == 0
        with use(parts[0].context) as inside:
            assert cupy.cuda.get_current_stream() is inside
        del inside, block


def test_blocks_of_a_fork_wait_for_its_beginning_and_its_end_waits_for_them(cupy: Any, dev: Device) -> None:
    outside = StandInStream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, 7)))
    StandInStream.current[:] = [outside]
    with dev.partition(16, 16) as parts:
        first, second = (part.stream.handle for part in parts[:2])
        with fork() as start:
            for part in (*parts[:2], *parts[:2]):
                with part.cupy(after=start) as stream:
                    assert cupy.cuda.get_current_stream() is stream
            with use(parts[0].stream, after=start), use(parts[1].context, after=start):
                pass
            assert StandInStream.waits == [(first, 7), (second, 7)] * 3
            StandInStream.waits.clear()
        assert StandInStream.waits == [(7, first), (7, second)]
        del stream


def test_a_fork_is_for_its_own_framework(cupy: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        unfit: Any = (1, interop_torch.fork())
        for wrong in unfit:
            for target in (parts[0], parts[0].context, parts[0].stream):
                with pytest.raises(TypeError, match=r"after must be a fork\(\) of cuda_gctx\.interop\.cupy"):
                    use(target, after=wrong)
        with pytest.raises(TypeError, match=r"after must be a fork\(\) of cuda_gctx\.interop\.torch"):
            parts[0].torch(after=fork())
        with pytest.raises(RuntimeError, match=r"the fork is not open.*part\.cupy"), parts[0].cupy(after=fork()):
            pass


def test_a_block_never_waits_for_an_open_one_of_another_thread(cupy: Any, dev: Device) -> None:
    with dev.partition(16, 16) as parts:
        other, mine = (part.stream.handle for part in parts[:2])

        def work() -> None:
            with parts[1].cupy():
                pass

        with parts[0].cupy():
            StandInStream.waits.clear()
            StandInStream.current, before = [SimpleNamespace(ptr=0, record=lambda event: 0)], StandInStream.current
            StandInStream.current[0].wait_event = lambda event: None
            on_another_thread(work)  # whose current stream is its own
            StandInStream.current = before
            assert (mine, other) not in StandInStream.waits
            assert StandInStream.waits == [(mine, 0)]


def test_blocks_left_in_a_wrong_order_leave_cupy_where_it_was(cupy: Any, dev: Device) -> None:
    with dev.partition(16, 16) as parts:
        handles = [part.stream.handle for part in parts[:2]]
        first, second = (use(part) for part in parts[:2])
        first.__enter__()
        second.__enter__()
        assert "yield inside a block" in str(refusal(RuntimeError, lambda: first.__exit__(None, None, None)))
        assert cupy.cuda.get_current_stream().ptr == handles[1]
        second.__exit__(None, None, None)
        assert cupy.cuda.get_current_stream().ptr == 0
        with first, second, first as inside:  # to be used again
            assert cupy.cuda.get_current_stream() is inside
        del inside


def test_cupy_is_not_given_the_default_stream_of_a_green_context(cupy: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].context.current():
        stream = Stream.from_handle(1)
        for block in (current_stream_of_frameworks(stream), use(stream)):
            assert "another stream of the context" in str(refusal(ValueError, block.__enter__))
        stream.close()
