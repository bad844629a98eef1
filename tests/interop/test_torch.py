"""torch in partitions: which stream is current when, who waits for whom, and how long streams live.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    Event,
    EventOptions,
    Partition,
    SMResourceOptions,
    Stream,
    system,
)
from cuda_gctx._core.extension import context_stream, run_probe
from cuda_gctx.compat.torch_green import GreenContext
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop._frameworks import own_stream
from cuda_gctx.interop.torch import fork, torch_stream, use
from cuda_gctx.tune import spin

from ..common import on_another_thread, refusal, run_python
from ..stand_in_torch import StandInTorch


def sm_ids(stream: Any) -> set[int]:
    """Where the blocks of a probe kernel run that is launched on a stream of torch's."""
    adopted = Stream(stream)
    [blocks] = run_probe([adopted], [4 * adopted.resources.sm.sm_count], 100_000, 10_000_000_000)
    return {sm for sm, _, _ in blocks}


def small_context(dev: Device) -> Context:
    [group], _ = dev.resources.sm.split(SMResourceOptions([8]))
    return dev.create_context(ContextOptions([group]))


def test_inside_the_block_the_partitions_stream_is_current(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        before = torch.cuda.current_stream()
        with use(parts[0]) as stream:
            assert torch.cuda.current_stream() == stream
            assert stream.cuda_stream == parts[0].stream.handle
            assert stream.device.index == 0
            assert isinstance(stream, torch.cuda.Stream)
        assert torch.cuda.current_stream() == before


def test_what_torch_launches_runs_on_the_sms_of_the_partition(torch: Any, dev: Device) -> None:
    with dev.partition(16, 32) as parts:
        parts.verify()
        for part in parts:
            with use(part):
                seen = sm_ids(torch.cuda.current_stream())
            assert part.sm_ids is not None
            assert seen
            assert seen <= set(part.sm_ids)
            assert len(part.sm_ids) == part.sm_count


def test_a_partition_has_the_same_as_a_method(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch() as stream:
        assert torch.cuda.current_stream() == stream == torch_stream(parts[0])


@pytest.mark.sim_only
def test_flashinfer_plans_by_the_sms_of_the_stream_in_a_block(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = [False]  # as with FLASHINFER_CAKE_FMHA_SM_PARTITIONS=0
    parts = dev.partition(a=32, b=None)
    with parts.a.torch():
        assert "flashinfer" not in sys.modules
    switch = types.SimpleNamespace(enable_cake_fmha_sm_partitions=lambda: planning.append(True))
    monkeypatch.setitem(sys.modules, "flashinfer.cake_fmha", switch)
    with parts.a.torch():
        assert planning == [False, True]


@pytest.mark.sim_only  # on a GPU, torch does not say what it waits for
def test_the_block_waits_for_what_was_before_and_what_follows_waits_for_the_block(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        outside = torch.cuda.current_stream().cuda_stream
        with use(parts[0]) as stream:
            inside = stream.cuda_stream
            assert torch.waits == [(inside, outside)]
        assert torch.waits == [(inside, outside), (outside, inside)]


@pytest.mark.sim_only
def test_blocks_of_a_fork_wait_for_its_beginning_and_its_end_waits_for_them(torch: Any, dev: Device) -> None:
    with dev.partition(16, 16) as parts:
        outside = torch.cuda.current_stream().cuda_stream
        first, second = (part.stream.handle for part in parts)
        with fork() as start:
            for part in (*parts, *parts):
                with part.torch(after=start) as stream:
                    assert torch.cuda.current_stream() == stream
            # Nobody waits for the other partition, nor anything outside for either of them.
            assert torch.waits == [(first, outside), (second, outside)] * 2
            torch.waits.clear()
        assert torch.waits == [(outside, first), (outside, second)]


@pytest.mark.alone
def test_blocks_of_a_fork_run_at_the_same_time(torch: Any, dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(8, 8) as parts:
        for part in parts:
            spin(part.stream, 8, 10_000)
        dev.sync()
        begin = parts[0].stream.record(parts[0].context.create_event(timed))
        parts[1].stream.wait(begin)
        with fork() as start:
            for part in parts:
                with part.torch(after=start):
                    spin(part.stream, 8, 5_000_000)
        ends = [part.stream.record(part.context.create_event(timed)) for part in parts]
        dev.sync()
        assert max(end - begin for end in ends) < 9


def test_the_end_of_a_fork_waits_for_the_last_block_on_each_stream(torch: Any, dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(8, 8) as parts, parts[1].torch():
        begin = parts[1].stream.record(parts[1].context.create_event(timed))
        with fork() as start:
            for _ in range(3):
                with parts[0].torch(after=start):
                    spin(parts[0].stream, 8, 5_000_000)
        end = parts[1].stream.record(parts[1].context.create_event(timed))
        dev.sync()
        assert end - begin > 14


def begin_behind_all_that_is_enqueued(torch: Any, part: Partition) -> Event:
    """Returns when the stream of a partition begins. What is enqueued meanwhile waits: no host is too slow for it."""
    outside = Stream(torch.cuda.current_stream())
    spin(outside, 1, 100_000_000)
    part.stream.wait(outside.record())
    return part.stream.record(part.context.create_event(EventOptions(timing_enabled=True)))


@pytest.mark.alone
def test_a_block_of_a_fork_waits_for_nothing_that_comes_after_its_beginning(torch: Any, dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(8) as parts:
        part = parts[0]
        outside = Stream(torch.cuda.current_stream())
        for stream in (part.stream, outside):
            spin(stream, 1, 10_000)
        dev.sync()
        begin = begin_behind_all_that_is_enqueued(torch, part)
        with fork() as start:
            spin(outside, 1, 5_000_000)
            with part.torch(after=start):
                spin(part.stream, 1, 10_000)
            end = part.stream.record(part.context.create_event(timed))
        dev.sync()
        assert end - begin < 4


@pytest.mark.alone
def test_a_block_of_a_fork_never_waits_for_that_of_another_thread(torch: Any, dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(8, 8) as parts:
        for part in parts:
            spin(part.stream, 8, 10_000)
        dev.sync()

        def work(part: Partition, ns: int) -> None:
            for _ in range(3):
                with part.torch(after=start):
                    spin(part.stream, 8, ns)

        begin = begin_behind_all_that_is_enqueued(torch, parts[1])
        with fork() as start:
            on_another_thread(lambda: work(parts[0], 5_000_000))
            on_another_thread(lambda: work(parts[1], 100_000))
            end = parts[1].stream.record(parts[1].context.create_event(timed))
        dev.sync()
        assert end - begin < 5


@pytest.fixture(params=["partition", "context", "stream", "drop-in"])
def two(request: pytest.FixtureRequest, torch: Any, dev: Device) -> Iterator[list[tuple[Any, Context]]]:
    """Two blocks of torch, and the contexts in which it then works."""
    if request.param == "drop-in":
        green = [GreenContext.create(num_sms=8) for _ in range(2)]
        yield [(one, one.context) for one in green]
        for one in green:
            one.close()
        return
    with dev.partition(8, 8) as parts:
        targets = [part if request.param == "partition" else getattr(part, request.param) for part in parts[:2]]
        yield [(use(target), part.context) for target, part in zip(targets, parts, strict=False)]


@pytest.mark.filterwarnings("ignore:.*set_context.*:FutureWarning")
@pytest.mark.alone
def test_a_block_never_waits_for_an_open_one_of_another_thread(
    torch: Any, dev: Device, two: list[tuple[Any, Context]]
) -> None:
    (open_block, other), (block, mine) = two
    timed = EventOptions(timing_enabled=True)
    for context in (other, mine):
        spin(context_stream(context), 1, 10_000)
    dev.sync()

    def work() -> float:
        stream = context_stream(mine)
        begin = stream.record(mine.create_event(timed))
        for _ in range(3):
            with block:
                spin(stream, 1, 10_000)
        end = stream.record(mine.create_event(timed))
        end.sync()
        return end - begin

    with open_block:
        spin(context_stream(other), 1, 50_000_000)
        assert on_another_thread(work) < 25
    dev.sync()


@pytest.mark.alone
def test_blocks_of_contexts_and_streams_take_a_fork_too(torch: Any, dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(8, 8) as parts:
        first, second = parts[:2]
        for part in (first, second):
            spin(part.stream, 8, 10_000)
        dev.sync()
        begin = first.stream.record(first.context.create_event(timed))
        second.stream.wait(begin)
        with fork() as start:
            with use(first.context, after=start):
                spin(first.stream, 8, 5_000_000)
            with use(second.stream, after=start):
                spin(second.stream, 8, 5_000_000)
                end = second.stream.record(second.context.create_event(timed))
        dev.sync()
        assert end - begin < 9


def test_a_fork_that_is_not_open_is_refused(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        start = fork()
        with pytest.raises(RuntimeError, match="the fork is not open"), parts[0].torch(after=start):
            pass
        with start:
            pass
        with pytest.raises(RuntimeError, match="the fork is not open"), parts[0].torch(after=start):
            pass
        with pytest.raises(RuntimeError, match="create another one"):
            start.__enter__()
        with pytest.raises(TypeError, match="after must be a fork"):
            parts[0].torch(after=1)
        left = parts[0].torch(after=(late := fork().__enter__()))
        left.__enter__()
        with pytest.raises(RuntimeError, match="1 blocks of the fork are still open"):
            late.__exit__(None, None, None)
        left.__exit__(None, None, None)


@pytest.mark.sim_only
def test_nested_blocks_wait_for_the_block_around_them(torch: Any, dev: Device) -> None:
    with dev.partition(16, 16) as parts, use(parts[0]) as first:
        torch.waits.clear()
        with use(parts[1]) as second:
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
        assert torch.waits == [
            (second.cuda_stream, first.cuda_stream),
            (first.cuda_stream, second.cuda_stream),
        ]


@pytest.mark.sim_only
def test_an_exception_leaves_the_block_in_order_too(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()

    def fail(part: Partition) -> None:
        with use(part):
            raise KeyError("x")

    with dev.partition(16) as parts:
        refusal(KeyError, lambda: fail(parts[0]))
        assert torch.cuda.current_stream() == before
        assert torch.waits[-1] == (before.cuda_stream, parts[0].stream.handle)


def test_a_block_can_be_used_again_inside_itself_and_on_other_threads(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(16) as parts:
        block = use(parts[0])

        def inside() -> bool:
            with block as stream:
                return bool(torch.cuda.current_stream() == stream == torch_stream(parts[0]))

        assert inside()
        with block as stream:
            assert inside()
            assert torch.cuda.current_stream() == stream
            assert on_another_thread(inside)
        assert torch.cuda.current_stream() == before
        del stream


def test_a_function_runs_in_the_partition_that_it_is_decorated_with(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:

        @use(parts[0])
        def handles(depth: int) -> list[int]:
            return [torch.cuda.current_stream().cuda_stream, *(handles(depth - 1) if depth else ())]

        assert handles(2) == handles(2) == [parts[0].stream.handle] * 3
        assert torch.cuda.current_stream().cuda_stream != parts[0].stream.handle


def test_a_stream_that_was_set_in_a_block_goes_with_it(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(16, 16) as parts:
        side = torch_stream(parts[1])
        with use(parts[0]):
            torch.cuda.set_stream(side)
        assert torch.cuda.current_stream() == before
        del side


def test_tasks_that_wait_inside_their_blocks_are_refused_and_leave_torch_where_it_was(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(a=16, b=16) as parts:

        async def task(part: Partition) -> int:
            with use(part):
                await asyncio.sleep(0)  # both get here before the first goes on
            return part.sm_count

        async def both() -> list[Any]:
            return await asyncio.gather(task(parts.a), task(parts.b), return_exceptions=True)

        first, second = asyncio.run(both())
        assert str(first) == (
            f"the block of {parts.a!r} was left before that of {parts.b!r}, which was entered inside it: blocks cannot "
            "be interleaved on a thread; do not await or yield inside a block"
        )
        assert isinstance(first, RuntimeError)
        assert second == 16
        assert torch.cuda.current_stream() == before
    system.release_contexts()  # the machine of the test is checked for what is alive when it ends


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_others_go_on_when_a_block_is_left_too_early(torch: Any, dev: Device, wrong: int) -> None:
    outside = torch.cuda.current_stream().cuda_stream
    with dev.partition(16, 16, 16) as parts:
        handles = [part.stream.handle for part in parts[:3]]
        blocks = [use(part) for part in parts[:3]]
        for block in blocks:
            block.__enter__()
        early = blocks.pop(wrong)
        refusal(RuntimeError, lambda: early.__exit__(None, None, None))
        around = [outside, *handles[:wrong]]
        if hasattr(torch, "waits"):  # its own work is waited for, and the next one has its place
            assert (around[-1], handles[wrong]) in torch.waits
            assert (handles[wrong + 1], around[-1]) in torch.waits
        del handles[wrong]
        for block in reversed(blocks):
            assert torch.cuda.current_stream().cuda_stream == handles.pop()
            block.__exit__(None, None, None)
        assert torch.cuda.current_stream().cuda_stream == outside


@pytest.fixture
def failing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The handles of streams that can wait for nobody any more."""
    wait = torch.cuda.Stream.wait_stream
    handles: set[int] = set()

    def fail(self: Any, other: Any) -> None:
        if self.cuda_stream in handles:
            raise RuntimeError("the device has failed")
        wait(self, other)

    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", fail)
    return handles


@pytest.mark.sim_only
def test_an_error_on_leaving_comes_behind_that_of_the_block(torch: Any, dev: Device, failing: set[int]) -> None:
    before = torch.cuda.current_stream()

    def fail(part: Partition) -> None:
        with use(part):
            failing.add(before.cuda_stream)
            raise KeyError("mine")

    with dev.partition(16) as parts:
        error = refusal(RuntimeError, lambda: fail(parts[0]))
        assert str(error) == "the device has failed"
        assert isinstance(error.__context__, KeyError)
        assert torch.cuda.current_stream() == before


@pytest.mark.sim_only
def test_blocks_that_fail_to_wait_are_left_all_the_same(torch: Any, dev: Device, failing: set[int]) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(16, 16) as parts:
        outer, inner = use(parts[0]), use(parts[1])
        outer.__enter__()
        inner.__enter__()
        failing.add(parts[0].stream.handle)
        error = refusal(RuntimeError, lambda: outer.__exit__(None, None, None))
        assert str(error) == "the device has failed"
        assert torch.cuda.current_stream().cuda_stream == parts[1].stream.handle
        inner.__exit__(None, None, None)
        assert torch.cuda.current_stream() == before


def test_what_runs_after_its_call_is_not_decorated(torch: Any, dev: Device) -> None:
    async def task() -> None: ...

    def generator() -> Iterator[None]:
        yield

    with dev.partition(16) as parts:
        for function in (task, generator):
            with pytest.raises(TypeError, match="decorate functions without await and yield"):
                use(parts[0])(function)


def test_a_result_that_would_run_after_the_call_is_refused(torch: Any, dev: Device) -> None:
    ran = []

    async def task() -> None:
        ran.append(torch.cuda.current_stream())

    class Callable:
        async def __call__(self) -> None:
            await task()

    def generator() -> Iterator[None]:
        ran.append(torch.cuda.current_stream())
        yield

    with dev.partition(16) as parts:
        with pytest.raises(TypeError, match=r"partial.* is a coroutine function or a generator"):
            use(parts[0])(partial(task))
        for function in (Callable(), lambda: task(), lambda: generator()):
            with pytest.raises(TypeError, match="decorate functions without await and yield"):
                use(parts[0])(function)()
        assert use(parts[0])(partial(max, 1, 2))() == 2
    assert not ran


def test_the_error_of_a_block_is_not_hidden_by_a_wrong_order(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()

    def generator(part: Partition) -> Iterator[None]:
        with use(part):
            yield
            raise KeyError("mine")

    with dev.partition(16, 16) as parts:
        first, second = map(generator, parts[:2])
        next(first)
        next(second)
        refusal(KeyError, lambda: next(first))
        second.close()  # type: ignore[attr-defined]
        assert torch.cuda.current_stream() == before


def test_a_block_that_is_left_on_another_thread_is_refused_and_ends_with_the_next_one(torch: Any, dev: Device) -> None:
    outside = torch.cuda.current_stream().cuda_stream
    with dev.partition(a=16, b=16) as parts:
        block = use(parts.a)
        block.__enter__()
        leave = lambda: block.__exit__(None, None, None)  # noqa: E731
        error = refusal(RuntimeError, lambda: on_another_thread(leave))
        assert f"the block of {parts.a!r} was left on a thread on which it was not entered" in str(error)
        if hasattr(torch, "waits"):
            assert torch.waits[-1] == (outside, parts.a.stream.handle)
        with use(parts.b) as stream:
            assert torch.cuda.current_stream() == stream
            assert "not entered" in str(refusal(RuntimeError, leave))
            assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream().cuda_stream == outside
        del stream


def test_another_thread_keeps_its_own_stream(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts, use(parts[0]) as stream:
        assert on_another_thread(lambda: torch.cuda.current_stream() != stream)


def test_a_context_always_gets_the_same_stream(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx:
        with use(ctx) as first:
            assert Stream(first).context == ctx
        with use(ctx) as second:
            assert first == second
        del first, second
    del ctx


@pytest.mark.sim_only
def test_a_context_that_is_asked_for_each_time_has_one_stream(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = sim("h200", driver="13.0")
    torch = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    dev = Device(0)
    before = machine.calls("cuStreamCreateWithPriority")
    for _ in range(10):
        with use(dev.context) as stream:
            pass
    assert machine.calls("cuStreamCreateWithPriority") == before + 1
    del stream
    torch.close()


def test_a_closed_context_that_torch_worked_in_leaves_its_sms(torch: Any, dev: Device) -> None:
    [group], _ = dev.resources.sm.split(SMResourceOptions([8]))
    for _ in range(2):
        with dev.create_context(ContextOptions([group], exclusive=True)) as ctx, use(ctx):
            pass
    assert ctx.is_closed  # and is in scope


def test_a_stream_of_torch_keeps_the_context_that_it_was_given(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx:
        stream = torch_stream(ctx)
    with Stream(stream) as adopted:
        assert adopted.resources.sm.sm_count == 8
        adopted.sync()
    del stream


def test_a_block_in_the_context_of_a_partition_leaves_nothing_behind(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        context = parts[0].context
        with use(context):
            pass
    system.release_contexts()
    with dev.partition(16, exclusive=True) as again:
        assert again[0].sm_count == 16
    assert context.is_closed


def test_the_stream_of_a_context_goes_with_it(torch: Any, dev: Device) -> None:
    ctx = small_context(dev)
    with use(ctx):
        pass
    ctx.close()
    del ctx
    gc.collect()  # the machine of the test is checked for leaks when it ends


def test_a_closed_context_is_refused_and_does_not_keep_its_stream(torch: Any, dev: Device) -> None:
    closed = small_context(dev)
    with use(closed):
        pass
    closed.close()
    assert "has been closed" in str(refusal(RuntimeError, lambda: torch_stream(closed)))
    # Its stream was the last that held the context: the SMs are free, so this is not an overlap.
    with small_context(dev) as other, use(other) as stream:
        assert Stream(stream).context == other
    del stream


def test_streams_and_what_has_a_cuda_stream_can_be_used(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.create_stream() as stream:
        with use(stream) as inside:
            assert inside.cuda_stream == stream.handle
        assert torch_stream(torch_stream(stream)) == inside
        del inside


def test_what_is_not_a_stream_is_refused(torch: Any) -> None:
    with pytest.raises(TypeError, match="no __cuda_stream__"):
        torch_stream(object())


def test_a_stream_of_torch_outlives_the_partition_that_lent_it(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        stream = torch_stream(parts[0])
    # Closed is the partition; a framework that still holds the handle finds a live stream on the same SMs.
    adopted = Stream(stream)
    assert adopted.resources.sm.sm_count == 16
    adopted.sync()
    del stream, adopted


def test_a_closed_partition_is_refused(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        part = parts[0]
    with pytest.raises(RuntimeError, match="partition 0 has been closed"):
        torch_stream(part)


def test_partitions_that_only_a_torch_stream_refers_to_stay_in_use(torch: Any, dev: Device) -> None:
    stream = torch_stream(dev.partition(16)[0])
    gc.collect()
    kept = system.idle_contexts
    del stream
    gc.collect()
    assert system.idle_contexts == kept + 2


@pytest.mark.sim_only
def test_the_device_of_the_partition_is_current_inside_alone(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", devices=2)
    torch = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Device(1).partition(16) as parts:
        second = torch.cuda.current_stream(torch.device("cuda:1"))
        with use(parts[0]) as stream:
            assert (torch.cuda.current_device(), stream.device.index) == (1, 1)
            assert torch.waits == [(stream.cuda_stream, second.cuda_stream)]
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(torch.device("cuda:1")) == second
        del stream
    torch.close()


def test_a_stream_is_made_current_without_any_order(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(16) as parts:
        for _ in range(2):
            with current_stream_of_frameworks(parts[0].stream):
                assert torch.cuda.current_stream().cuda_stream == parts[0].stream.handle
            assert torch.cuda.current_stream() == before
    assert getattr(torch, "waits", []) == []


def test_a_stream_that_was_made_current_is_not_kept(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.create_stream() as stream, current_stream_of_frameworks(stream):
        pass
    del ctx, stream
    gc.collect()
    with small_context(dev) as other:  # its SMs are free: no warning
        assert not other.is_closed


def test_the_default_stream_is_torchs_own(torch: Any, dev: Device) -> None:
    with dev.context.current(), dev.create_stream() as other:
        for stream in (Stream.from_handle(1), Stream(torch.cuda.default_stream(0))):
            with use(other):
                with current_stream_of_frameworks(stream):
                    assert torch.cuda.current_stream(0).cuda_stream == 0
                with use(stream) as inner:
                    assert inner.cuda_stream == 0
                    assert torch.cuda.current_stream(0).cuda_stream == 0
                assert torch.cuda.current_stream(0).cuda_stream == other.handle


def test_the_default_stream_of_a_green_context_is_refused(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.current():
        stream = Stream.from_handle(1)
        assert "another stream of the context" in str(refusal(ValueError, lambda: torch_stream(stream)))
        stream.close()


def test_no_framework_is_given_the_default_stream_of_a_green_context(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.current():
        stream = Stream.from_handle(1)
        for action in (lambda: own_stream(stream), lambda: current_stream_of_frameworks(stream).__enter__()):
            assert "another stream of the context" in str(refusal(ValueError, action))
        stream.close()


def test_the_default_stream_of_a_device_stays_that_while_a_partition_is_current(torch: Any, dev: Device) -> None:
    with dev.context.current():
        stream = Stream.from_handle(1)
    with dev.partition(16) as parts, parts[0].context.current():
        assert own_stream(stream).context == dev.context


@pytest.mark.sim_only
def test_without_frameworks_or_their_device_a_stream_is_made_current_nowhere(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.is_available = lambda: False
    before = torch.cuda.current_stream()
    with dev.create_stream() as stream:
        with current_stream_of_frameworks(stream):
            assert torch.cuda.current_stream() == before
        monkeypatch.delitem(sys.modules, "torch")
        with current_stream_of_frameworks(stream):
            assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (None, r"needs torch 2\.4 or newer, which cannot be imported"),
        ({"__version__": "2.3.1+cu121"}, r"needs torch 2\.4 or newer, but found 2\.3\.1\+cu121"),
        (
            {"__version__": "2.11.0+cpu", "version": types.SimpleNamespace(cuda=None)},
            r"needs torch 2\.4 or newer built for CUDA; 2\.11\.0\+cpu is built without it",
        ),
        ({}, r"needs torch 2\.4 or newer, but <module 'torch'> has no version"),
    ],
    ids=["missing", "too old", "without CUDA", "a stray folder"],
)
def test_a_torch_that_does_not_do_is_named(
    attributes: dict[str, Any] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = None
    if attributes is not None:
        module = types.ModuleType("torch")
        vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, "torch", module)
    with pytest.raises(ImportError, match=said):
        torch_stream(None)


def test_a_torch_whose_libraries_do_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ImportError, match=r"needs torch 2\.4 or newer, which cannot be imported: libcudart\.so\.13"):
        torch_stream(None)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_work_without_frameworks_goes_on_next_to_one_that_is_unusable(
    dev: Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    with dev.create_stream() as stream:
        with current_stream_of_frameworks(stream):  # a stray folder, or half imported: no warning, which were an error
            pass
        module.__version__ = "0.9"
        module.cuda = types.SimpleNamespace(is_available=lambda: True, Device=None)
        module.is_available = lambda: True
        said = rf"work of {name} does not go to the stream: this needs {name} .*but found 0\.9"
        with pytest.warns(UserWarning, match=said), current_stream_of_frameworks(stream):
            pass


@pytest.mark.parametrize(
    "module",
    [
        *("interop.torch", "interop.cupy", "interop.numba", "interop.cuda_core", "interop.nccl", "interop.library_sms"),
        "compat.flashinfer",
    ],
)
def test_a_module_for_a_framework_does_not_import_it(module: str) -> None:
    done = run_python(
        f"import sys, cuda_gctx.{module}; print({{'torch', 'cupy', 'numba', 'numba_cuda', 'cuda'}} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.parametrize(
    ("module", "function", "needs"),
    [
        ("cupy", "cupy_stream", "cupy 14.0"),
        ("numba", "numba_stream", "numba-cuda 0.30"),
        ("cuda_core", "core_stream", "cuda-core 1.0"),
    ],
)
def test_a_framework_that_is_missing_or_too_old_is_named(module: str, function: str, needs: str) -> None:
    name = {"cuda_core": "cuda.core"}.get(module, module)
    missing = f"sys.modules[{name!r}] = sys.modules['numba_cuda'] = None"
    old = (
        f"m = types.ModuleType({name!r}); m.__version__ = '0.9'; sys.modules[{name!r}] = m\n"
        "for name, version in [('numba.cuda', '-'), ('numba_cuda', '0.9')]:\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__version__ = version"
    )
    for setup, said in [(missing, f"this needs {needs} or newer, which cannot be imported"), (old, "but found 0.9")]:
        done = run_python(
            f"import sys, types\n{setup}\nfrom cuda_gctx.interop.{module} import {function}\n"
            f"try:\n    {function}(None)\nexcept ImportError as error:\n    print(error)"
        )
        assert needs in done.stdout, done.stderr
        assert said in done.stdout
