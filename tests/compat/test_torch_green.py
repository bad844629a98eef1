"""GreenContext with torch's methods: what becomes current when, who waits for whom, which SMs, and what is kept.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import (
    Context,
    CUDAError,
    Device,
    FeatureNotSupported,
    ResourceOverlapError,
    ResourceOverlapWarning,
    Stream,
    system,
)
from cuda_gctx._core.extension import run_probe
from cuda_gctx.compat.torch_green import (
    GreenContext,
    SMPartition,
    execute_on_streams,
    get_num_locality_domains,
    is_localization_supported,
)

from ..common import DRIVERS, NEW_DRIVERS, OLD_DRIVERS, on_another_thread, refusal, run_python
from ..raw import Raw
from ..stand_in_torch import StandInTorch

LONG = 100_000_000  # cycles: tens of milliseconds
SIZE = 1 << 20


@pytest.fixture
def torch(torch: Any) -> Iterator[Any]:
    """The stand-in also knows primary contexts; with torch itself, the device has been used already."""
    if isinstance(torch, StandInTorch):
        torch._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: True)
    else:
        torch.zeros(1, device="cuda:0")
    yield torch
    gc.collect()


@pytest.fixture
def fresh(dev: Device) -> Iterator[Device]:
    """The device without contexts that other tests left in the store."""
    gc.collect()
    system.release_contexts()
    yield dev
    gc.collect()


@pytest.fixture
def machine(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A simulated machine whose ledger can be read, with what plays torch there."""
    made = sim("h200")
    stand_in = StandInTorch()
    stand_in._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: True)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    yield SimpleNamespace(ledger=made.ledger, fail=made.fail, torch=stand_in)
    stand_in.close()
    gc.collect()


def streams_alive(machine: Any) -> int:
    """But for the default stream of the stand-in."""
    return len(machine.ledger().live_of("stream")) - 1


def sm_ids(stream: Any) -> set[int]:
    """Where the blocks of a probe kernel run that is launched on a stream of torch's."""
    adopted = Stream(stream)
    [blocks] = run_probe([adopted], [4 * adopted.resources.sm.sm_count], 100_000, 10_000_000_000)
    return {sm for sm, _, _ in blocks}


def current_context(dev: Device) -> Context | None:
    """The context that is current on the thread; asked by setting another one for a moment."""
    before = dev.set_current()
    if before is not None:
        dev.set_current(before)
    return before


# ---- what is made


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("asked", "given"), [(1, 8), (7, 8), (10, 16), (16, 16), (17, 24), (120, 120), (132, 132)])
def test_the_number_of_sms_is_rounded_up(torch: Any, sim: Any, driver: str, asked: int, given: int) -> None:
    sim("h200", driver=driver)
    ctx = GreenContext.create(num_sms=asked)
    assert ctx.sm_count == given
    assert ctx.context.sm_count == given
    assert Stream(ctx.Stream()).resources.sm.sm_count == given
    assert ctx.device_id == 0
    assert str(given) in repr(ctx)


def test_other_cards_have_other_sizes(torch: Any, sim: Any) -> None:
    sim("a100")
    assert GreenContext.create(num_sms=5).sm_count == 8
    assert GreenContext.create(num_sms=5, exclusive=True).sm_count == 8


@pytest.mark.parametrize("asked", [0, -1, 1000])
def test_a_number_of_sms_that_cannot_be_is_a_runtime_error(torch: Any, dev: Device, asked: int) -> None:
    assert f"request 1 to {dev.sm_count}" in str(refusal(RuntimeError, lambda: GreenContext.create(num_sms=asked)))


def test_arguments_are_taken_as_all_versions_of_torch_take_them(torch: Any, fresh: Device) -> None:
    for make in (
        lambda: GreenContext.create(16, 0),
        lambda: GreenContext.create(num_sms=16, device_id=0),
        lambda: GreenContext.create(num_sms=16, device_id=None, workqueue_scope=None, workqueue_concurrency_limit=None),
        lambda: GreenContext(num_sms=16, device_id=0),
    ):
        ctx = make()
        assert (ctx.sm_count, ctx.context.device) == (16, fresh)
        del ctx


def test_a_device_that_is_not_there_is_a_runtime_error(torch: Any) -> None:
    with pytest.raises(RuntimeError, match="there is no device 99"):
        GreenContext.create(num_sms=16, device_id=99)


@pytest.mark.sim_only
def test_without_a_number_the_device_is_torchs_current_one(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", devices=2)
    stand_in = StandInTorch()
    stand_in._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: True)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    stand_in.cuda.current_device = lambda: 1
    ctx = GreenContext.create(num_sms=16)
    assert ctx.context.device == Device(1)
    assert ctx.device_id == 1
    stand_in.close()


def test_nothing_to_make_it_of_is_a_runtime_error(torch: Any) -> None:
    with pytest.raises(RuntimeError, match="workqueue_scope, or both"):
        GreenContext.create()


@pytest.mark.sim_only
def test_a_device_without_a_primary_context_is_a_warning(torch: Any, dev: Device) -> None:
    torch._C._cuda_hasPrimaryContext = lambda device: False
    with pytest.warns(UserWarning, match="device 0 has no primary context"):
        assert GreenContext.create(num_sms=16).sm_count == 16
    with pytest.warns(UserWarning, match="device 0 has no primary context") as caught:
        GreenContext(num_sms=16)
    assert caught[0].filename == __file__


@pytest.mark.gpu_only
def test_a_device_that_torch_has_not_used_is_a_warning() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    done = run_python(
        "import warnings; from cuda_gctx.compat.torch_green import GreenContext\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    GreenContext.create(num_sms=16).close()\n"
        "    ctx = GreenContext.create(num_sms=16)\n"
        "print([str(warning.message)[:33] for warning in caught])\n"
        "import torch\n"
        "with ctx: print(torch.ones(8, device='cuda').sum().item())\n"
    )
    assert done.stdout == "['device 0 has no primary context, ']\n8.0\n", done.stderr


# ---- SM partitions


@pytest.mark.parametrize("driver", DRIVERS)
def test_partitions_are_split_and_become_contexts(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    whole = SMPartition.from_device(0)
    assert (whole.sm_count, whole.device_id, whole.coscheduled_sm_count) == (132, 0, 8)
    (first, second), rest = whole.split(num_sms=(16, 24))
    assert rest is not None
    assert [part.sm_count for part in (first, second, rest)] == [16, 24, 92]
    contexts = [GreenContext(sm_partition=part) for part in (first, second, rest)]  # warnings are errors in the tests
    seen = [sm_ids(ctx.Stream()) for ctx in contexts]
    assert sum(map(len, seen)) == len(set.union(*map(set, seen))) == 132
    assert [ctx.sm_partition.sm_count for ctx in contexts] == [16, 24, 92]
    # What a context has is split again; on every driver, so is a group.
    for part in (contexts[1].sm_partition, second):
        (inner,), outer = part.split(num_sms=8)
        assert outer is not None
        assert (inner.sm_count, outer.sm_count) == (8, 16)
    with pytest.warns(ResourceOverlapWarning):
        GreenContext.create(sm_partition=first).close()
    for ctx in contexts:
        ctx.close()


def test_a_split_without_a_number_takes_all(torch: Any, dev: Device) -> None:
    (whole,), rest = SMPartition.from_device().split()
    assert whole.sm_count + (rest.sm_count if rest is not None else 0) == dev.sm_count
    assert str(whole.sm_count) in repr(whole)


def test_nothing_is_left_of_a_split_of_all(torch: Any, dev: Device) -> None:
    whole = SMPartition.from_device()
    _, rest = whole.split(num_sms=(8, whole.sm_count - 8), backfill=(False, True))
    assert rest is None


def test_contexts_come_out_of_one_split(torch: Any, fresh: Device) -> None:
    first, second = GreenContext.split(num_sms=(8, 16), device_id=0)
    assert (first.sm_count, second.sm_count) == (8, 16)
    assert not set(sm_ids(first.Stream())) & set(sm_ids(second.Stream()))
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_sms": (8, 8), "backfill": (True,)}, "the same length"),
        ({"num_sms": ()}, "at least one group"),
        ({"num_sms": -8}, "num_sms must be an int of at least 0, not -8"),
        ({"num_sms": 10_000}, "10000"),
        ({"num_sms": (0, 8), "backfill": True}, "group 0 has num_sms=0 and backfill=True"),
        ({"num_sms": (0, 0)}, "only one group can have all remaining SMs"),
        ({"locality_domain_ids": -1}, "locality_domain_ids must be an int of at least 0, not -1"),
    ],
)
def test_a_split_that_cannot_be_is_a_value_error(torch: Any, dev: Device, options: Any, message: str) -> None:
    assert message in str(refusal(ValueError, lambda: SMPartition.from_device(0).split(**options)))


def test_arguments_that_exclude_each_other_are_refused(torch: Any, dev: Device) -> None:
    part = SMPartition.from_device(0)
    assert "mutually exclusive" in str(refusal(ValueError, lambda: GreenContext(num_sms=8, sm_partition=part)))
    assert "device 0" in str(refusal(ValueError, lambda: GreenContext(sm_partition=part, device_id=1)))
    refusal(TypeError, lambda: GreenContext(sm_partition=part.resource))  # type: ignore[arg-type]
    refusal(TypeError, lambda: SMPartition(8))  # type: ignore[arg-type]


# ---- locality domains


def test_locality_domains_are_split_and_reported(torch: Any, sim: Any) -> None:
    sim("b200", driver="13.4")
    assert get_num_locality_domains() == get_num_locality_domains(0) == 2
    assert is_localization_supported()
    whole = SMPartition.from_device()
    assert whole.locality_domain_id is None
    # Discovery: how many SMs each domain has.
    groups, rest = whole.split(coscheduled_sm_count=2, locality_domain_ids=(0, 1))
    assert [(part.sm_count, part.locality_domain_id) for part in groups] == [(72, 0), (72, 1)]
    assert rest is not None
    assert (rest.sm_count, rest.locality_domain_id) == (4, None)
    mixed, _ = whole.split(num_sms=16, locality_domain_ids=(1, None))
    assert [part.locality_domain_id for part in mixed] == [1, None]
    contexts = GreenContext.split(num_sms=(16, 24), locality_domain_ids=(1, 0))
    assert [(ctx.sm_count, ctx.locality_domain_id) for ctx in contexts] == [(16, 1), (24, 0)]
    for ctx in contexts:
        ctx.close()
    assert GreenContext.create(num_sms=16).locality_domain_id is None
    message = str(refusal(ValueError, lambda: whole.split(num_sms=8, locality_domain_ids=(0, 2))))
    assert message == "locality_domain_ids has 2: the domains of device 0 are 0 to 1"


@pytest.mark.parametrize("driver", [driver for driver in DRIVERS if driver != "13.4"])
def test_locality_domains_that_the_driver_lacks_are_refused(torch: Any, sim: Any, driver: str) -> None:
    sim("b200", driver=driver)
    assert get_num_locality_domains(0) == 1
    assert not is_localization_supported(0)
    part = SMPartition.from_device(0)
    for ask in (
        lambda: part.split(num_sms=8, locality_domain_ids=1),
        lambda: part.locality_domain_id,
        lambda: GreenContext.split(num_sms=8, locality_domain_ids=0),
        lambda: GreenContext.create(num_sms=8).locality_domain_id,
    ):
        error = refusal(FeatureNotSupported, ask)
        assert isinstance(error, RuntimeError)
        assert (error.needs, error.found) == ("13.4", driver)
    part.split(num_sms=8, locality_domain_ids=(None,))


def test_a_device_that_is_not_there_has_one_domain_on_a_driver_without_domains(torch: Any, sim: Any) -> None:
    sim("b200", driver="13.1")
    assert get_num_locality_domains(9) == 1
    assert not is_localization_supported(9)
    sim("b200", driver="13.4")
    assert "there is no device 9" in str(refusal(RuntimeError, lambda: is_localization_supported(9)))


# ---- a torch that is not built for CUDA


def test_without_cuda_in_torch_nothing_is_localized_and_nothing_is_made(
    torch: Any, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim("b200", driver="13.4")
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None))
    assert is_localization_supported() is is_localization_supported(0) is False
    assert get_num_locality_domains() == get_num_locality_domains(0) == 1
    for make in (
        lambda: GreenContext(num_sms=8),
        lambda: GreenContext.create(8),
        lambda: GreenContext(),
        lambda: GreenContext.split(num_sms=8),
        SMPartition.from_device,
        GreenContext.max_workqueue_concurrency,
    ):
        assert "Green contexts need torch built for CUDA" in str(refusal(RuntimeError, make))


# ---- one function on several streams


def test_streams_run_a_function_side_by_side_and_the_current_stream_waits_for_all(torch: Any, dev: Device) -> None:
    contexts = GreenContext.split(num_sms=(16, 24))
    streams = [ctx.Stream() for ctx in contexts]
    outside = torch.cuda.current_stream()
    before = len(torch.waits) if isinstance(torch, StandInTorch) else 0

    def work(shard: str) -> tuple[str, int]:
        return shard, torch.cuda.current_stream().cuda_stream

    results = execute_on_streams(streams, work, ["left", "right"])
    first, second = (stream.cuda_stream for stream in streams)
    assert results == [("left", first), ("right", second)]
    assert torch.cuda.current_stream() == outside
    if isinstance(torch, StandInTorch):
        outer = outside.cuda_stream
        assert torch.waits[before:] == [(first, outer), (second, outer), (outer, first), (outer, second)]


def test_the_current_stream_waits_for_streams_whose_function_raised(torch: Any, dev: Device) -> None:
    streams = [ctx.Stream() for ctx in GreenContext.split(num_sms=(16, 24))]
    outside = torch.cuda.current_stream()

    def fail(position: int) -> None:
        if position == 1:
            raise KeyError(position)

    refusal(KeyError, lambda: execute_on_streams(streams, fail, range(2)))
    assert torch.cuda.current_stream() == outside
    if isinstance(torch, StandInTorch):
        assert torch.waits[-2:] == [(outside.cuda_stream, stream.cuda_stream) for stream in streams]


def test_each_stream_needs_an_argument(torch: Any, dev: Device) -> None:
    [ctx] = GreenContext.split(num_sms=16)
    ran: list[int] = []
    error = refusal(ValueError, lambda: execute_on_streams([ctx.Stream()], ran.append, range(2)))
    assert str(error) == "args has 2 entries for 1 streams: pass one argument for each stream"
    assert ran == []


# ---- workqueues


@pytest.mark.parametrize("driver", NEW_DRIVERS)
@pytest.mark.parametrize(("scope", "ours"), [("device_ctx", "device_ctx"), ("balanced", "green_ctx_balanced")])
def test_a_workqueue_is_configured(torch: Any, sim: Any, driver: str, scope: str, ours: str) -> None:
    sim("h200", driver=driver)
    ctx = GreenContext.create(num_sms=16, workqueue_scope=scope, workqueue_concurrency_limit=3)
    assert ctx.sm_count == 16
    assert ctx.context.resources.workqueue.sharing_scope == ours
    assert ctx.context.resources.workqueue.concurrency_limit == 3


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_a_workqueue_alone_leaves_all_sms(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    ctx = GreenContext.create(workqueue_scope="balanced")
    assert ctx.sm_count == 132
    assert ctx.context.resources.workqueue.concurrency_limit == GreenContext.max_workqueue_concurrency()


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_a_workqueue_that_the_driver_lacks_is_refused(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    for ask in (
        lambda: GreenContext.create(num_sms=16, workqueue_scope="balanced"),
        lambda: GreenContext.create(workqueue_scope="device_ctx", workqueue_concurrency_limit=1),
        GreenContext.max_workqueue_concurrency,
    ):
        error = refusal(FeatureNotSupported, ask)
        assert isinstance(error, RuntimeError)
        assert "13.1" in str(error)
        assert driver in str(error)


def test_workqueue_arguments_that_cannot_be_are_refused(torch: Any) -> None:
    with pytest.raises(ValueError, match="is one of 'device_ctx', 'balanced', not 'green'"):
        GreenContext.create(num_sms=16, workqueue_scope="green")
    with pytest.raises(RuntimeError, match="requires workqueue_scope"):
        GreenContext.create(num_sms=16, workqueue_concurrency_limit=2)
    with pytest.raises(ValueError, match="limit must be >= 1"):
        GreenContext.create(num_sms=16, workqueue_scope="balanced", workqueue_concurrency_limit=0)


# ---- disjoint


def test_contexts_made_one_after_the_other_have_sms_of_their_own(torch: Any, fresh: Device) -> None:
    contexts = [GreenContext.create(num_sms=asked) for asked in (16, 24, 16)]  # warnings are errors in the tests
    seen = [sm_ids(context.Stream()) for context in contexts]
    assert sum(map(len, seen)) == len(set.union(*map(set, seen))) == sum(context.sm_count for context in contexts)


def test_contexts_share_as_few_sms_as_possible_where_there_are_too_few_and_say_so(torch: Any, sim: Any) -> None:
    sim("h200")
    first = GreenContext.create(num_sms=96)
    with pytest.warns(ResourceOverlapWarning, match="exclusive=True") as warned:
        second = GreenContext.create(num_sms=48)
    assert warned[0].filename == __file__
    # Of 15 units of 8, 3 are free, and so are the 12 SMs outside of the units.
    assert len(set(sm_ids(first.Stream())) & set(sm_ids(second.Stream()))) == 16


def test_a_context_has_sms_that_no_open_partition_has(torch: Any, sim: Any) -> None:
    sim("h200")
    with Device(0).partition([8] * 2, exclusive=True) as parts:
        assert "background" in parts
        with pytest.warns(ResourceOverlapWarning):  # another set's background counts as taken
            GreenContext.create(num_sms=8).close()


def test_sharing_that_is_an_error_leaves_nothing_behind(torch: Any, fresh: Device) -> None:
    first = GreenContext.create(num_sms=fresh.sm_count)
    # Contexts that frameworks have seen in other tests wait there.
    kept = system.idle_contexts
    for asked in (16, 24):
        with pytest.raises(ResourceOverlapWarning):  # the tests make errors of warnings
            GreenContext.create(num_sms=asked)
    assert system.idle_contexts == kept
    first.close()
    for asked in (16, 24):
        assert GreenContext.create(num_sms=asked).sm_count == asked
        gc.collect()


@pytest.mark.parametrize("driver", DRIVERS)
def test_exclusive_contexts_made_one_after_the_other_share_nothing(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    contexts = [GreenContext.create(num_sms=16)]
    contexts += [GreenContext.create(num_sms=asked, exclusive=True) for asked in (8, 24, 64)]
    seen = [sm_ids(ctx.Stream()) for ctx in contexts]
    assert [len(ids) for ids in seen] == [16, 8, 24, 64]
    assert len(set().union(*seen)) == 112


def test_exclusive_contexts_share_nothing_on_this_device(torch: Any, fresh: Device) -> None:
    contexts = [GreenContext.create(num_sms=16, exclusive=True) for _ in range(3)]
    seen = [sm_ids(ctx.Stream()) for ctx in contexts]
    assert [len(ids) for ids in seen] == [ctx.sm_count for ctx in contexts]
    assert len(set().union(*seen)) == sum(map(len, seen))


def test_a_closed_context_gives_its_sms_back(torch: Any, fresh: Device) -> None:
    least = GreenContext.create(num_sms=1, exclusive=True).sm_count
    contexts = []
    with suppress(ResourceOverlapError):
        while True:
            contexts.append(GreenContext.create(num_sms=least, exclusive=True))
    gc.collect()
    error = refusal(ResourceOverlapError, lambda: GreenContext.create(num_sms=2 * least, exclusive=True))
    assert f"0 of {fresh.sm_count} SMs are known to be free, and {2 * least} were requested" in str(error)
    assert len(contexts) > 2
    given_back = sm_ids(contexts[1].Stream())
    contexts[1].close()
    again = GreenContext.create(num_sms=least, exclusive=True)
    assert sm_ids(again.Stream()) == given_back


def test_sms_of_contexts_made_otherwise_are_not_taken(torch: Any, fresh: Device) -> None:
    with fresh.partition(16):
        error = refusal(ResourceOverlapError, lambda: GreenContext.create(num_sms=16, exclusive=True))
        assert "close other contexts, or request fewer" in str(error)
    assert GreenContext.create(num_sms=16, exclusive=True).sm_count == 16


@pytest.mark.parametrize("asked", [None, 132])
def test_the_whole_device_can_be_exclusive_only_alone(torch: Any, sim: Any, asked: int | None) -> None:
    sim("h200", driver="13.1")
    whole = GreenContext.create(num_sms=asked, workqueue_scope="balanced", exclusive=True)
    with pytest.raises(ResourceOverlapError):
        GreenContext.create(num_sms=asked, workqueue_scope="balanced", exclusive=True)
    whole.close()


# ---- set_context and pop_context


def test_between_set_and_pop_the_context_and_a_stream_of_it_are_current(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    before = torch.cuda.current_stream()
    dev.set_current()
    assert ctx.set_context() is None
    try:
        assert ctx.context.is_current
        inside = torch.cuda.current_stream()
        assert inside != before
        assert isinstance(inside, torch.cuda.Stream)
        assert Stream(inside).context == ctx.context
        assert len(sm_ids(inside)) == 16
    finally:
        assert ctx.pop_context() is None
    assert not ctx.context.is_current
    assert current_context(dev) == dev.context
    assert torch.cuda.current_stream() == before


def test_a_with_block_is_the_same_and_may_be_used_again(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    before = torch.cuda.current_stream()
    for _ in range(2):
        with ctx as inside:
            assert inside is ctx
            assert ctx.context.is_current
        assert not ctx.context.is_current
    with suppress(KeyError), ctx:
        raise KeyError
    assert torch.cuda.current_stream() == before
    assert not ctx.context.is_current
    assert not ctx.is_closed


@pytest.mark.sim_only
def test_the_streams_inside_and_outside_wait_for_each_other(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    outer = torch.cuda.current_stream().cuda_stream
    with ctx:
        inner = torch.cuda.current_stream().cuda_stream
        assert torch.waits == [(inner, outer)]
    assert torch.waits == [(inner, outer), (outer, inner)]


@pytest.mark.sim_only
def test_a_stream_that_was_made_current_inside_is_waited_for_too(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    outer = torch.cuda.current_stream()
    other = ctx.Stream()
    ctx.set_context()
    inner = torch.cuda.current_stream()
    block = torch.cuda.stream(other)
    block.__enter__()  # as torch.cuda.set_stream() does
    ctx.pop_context()
    assert torch.waits[1:] == [(outer.cuda_stream, inner.cuda_stream), (outer.cuda_stream, other.cuda_stream)]
    assert torch.cuda.current_stream() == outer


def test_contexts_nest_and_one_may_be_set_twice(torch: Any, fresh: Device) -> None:
    first = GreenContext.create(num_sms=16, exclusive=True)
    second = GreenContext.create(num_sms=24, exclusive=True)
    with first:
        of_first = torch.cuda.current_stream()
        with second, first:
            assert torch.cuda.current_stream() == of_first
            assert first.context.is_current
        assert torch.cuda.current_stream() == of_first
        assert first.context.is_current
    assert not first.context.is_current


def test_a_pop_without_a_set_is_refused(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    with pytest.raises(RuntimeError, match=r"pop_context\(\) without set_context\(\)"):
        ctx.pop_context()
    with ctx:
        error = on_another_thread(lambda: refusal(RuntimeError, ctx.pop_context))
        assert "not active on this thread" in str(error)
        assert ctx.context.is_current
    with pytest.raises(RuntimeError, match="not active on this thread"):
        ctx.pop_context()


def test_a_pop_out_of_order_is_refused_and_changes_nothing(torch: Any, fresh: Device) -> None:
    first = GreenContext.create(num_sms=16, exclusive=True)
    second = GreenContext.create(num_sms=16, exclusive=True)
    with first, second:
        assert "pop that one first" in str(refusal(RuntimeError, first.pop_context))
        assert second.context.is_current


def test_a_context_that_others_left_current_inside_is_taken_off(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    dev.set_current()
    ctx.set_context()
    Raw().set_current(dev.context.handle)  # as NCCL's initialisation does
    ctx.pop_context()
    assert current_context(dev) == dev.context


def test_a_failing_set_leaves_nothing_behind(torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = GreenContext.create(num_sms=16)
    before = torch.cuda.current_stream()

    def fail(stream: Any) -> Any:
        raise KeyError

    with monkeypatch.context() as broken:
        broken.setattr(torch.cuda, "stream", fail)
        with pytest.raises(KeyError):
            ctx.set_context()
    assert not ctx.context.is_current
    assert torch.cuda.current_stream() == before
    ctx.close()


def test_threads_have_contexts_of_their_own(torch: Any, fresh: Device) -> None:
    contexts = [GreenContext.create(num_sms=16, exclusive=True) for _ in range(3)]
    together = threading.Barrier(len(contexts) + 1)
    seen: dict[int, tuple[int, bool]] = {}

    def work(position: int) -> None:
        mine = contexts[position]
        with mine:
            together.wait(60)
            seen[position] = Stream(torch.cuda.current_stream()).context.id, mine.context.is_current
            together.wait(60)

    threads = [threading.Thread(target=work, args=(position,)) for position in range(len(contexts))]
    for thread in threads:
        thread.start()
    with contexts[0]:  # the same one on two threads
        together.wait(60)
        together.wait(60)
        assert "cannot be closed" in str(refusal(RuntimeError, contexts[0].close))
    for thread in threads:
        thread.join()
    assert seen == {position: (ctx.context.id, True) for position, ctx in enumerate(contexts)}


# ---- streams


def test_streams_are_torchs_and_belong_to_the_context(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    first, second = ctx.Stream(), ctx.Stream()
    assert first != second
    for stream in (first, second):
        assert isinstance(stream, torch.cuda.Stream)
        assert Stream(stream).context == ctx.context
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
    with ctx:
        assert torch.cuda.current_stream() not in (first, second)


def test_after_thirty_two_streams_the_first_comes_again(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    streams = [ctx.Stream() for _ in range(34)]
    assert len({stream.cuda_stream for stream in streams}) == 32
    assert streams[32:] == streams[:2]


def test_a_stream_keeps_the_sms_of_a_context_that_nobody_refers_to(torch: Any, fresh: Device) -> None:
    stream = GreenContext.create(num_sms=16, exclusive=True).Stream()
    gc.collect()
    assert Stream(stream).resources.sm.sm_count == 16
    refusal(ResourceOverlapError, lambda: GreenContext.create(num_sms=fresh.sm_count, exclusive=True))
    del stream
    gc.collect()
    assert GreenContext.create(num_sms=16).sm_count == 16


def test_a_stream_works_on_after_its_context_is_closed(torch: Any, fresh: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    stream = ctx.Stream()
    ctx.close()
    assert len(sm_ids(stream)) == 16


# ---- closing


def test_a_closed_context_is_refused(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    ctx.close()
    ctx.close()
    assert ctx.is_closed
    assert "closed" in repr(ctx)
    for use in (ctx.set_context, ctx.Stream, lambda: ctx.context, lambda: ctx.device_id, ctx.__enter__):
        assert "create another one" in str(refusal(RuntimeError, use))


def test_streams_stay_with_the_context_and_are_given_again(machine: Any) -> None:
    given = []
    for _ in range(2):
        ctx = GreenContext.create(num_sms=16)
        with ctx:
            inside = machine.torch.cuda.current_stream()
        given.append([inside.cuda_stream, *(ctx.Stream().cuda_stream for _ in range(34))])
        ctx.close()
    assert given[0] == given[1]
    assert len(set(given[0])) == 33
    assert streams_alive(machine) == 33
    system.release_contexts()
    assert streams_alive(machine) == 33
    assert machine.ledger().misuse == ()


def test_a_handle_is_good_for_as_long_as_the_driver_is_open(machine: Any) -> None:
    def forward() -> int:
        with GreenContext.create(num_sms=16):
            handle: int = machine.torch.cuda.current_stream().cuda_stream
            return handle

    # All that torch knows when it runs backward.
    handle = forward()
    gc.collect()
    stream = Stream.from_handle(handle)
    assert stream.resources.sm.sm_count == 16
    stream.record().sync()
    del stream
    system.release_contexts()
    Stream.from_handle(handle).record().sync()
    assert streams_alive(machine) == 1
    assert machine.ledger().misuse == ()


def test_a_stream_in_which_a_capture_was_left_is_not_given_again(torch: Any, fresh: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    kept = system.idle_contexts
    stream = ctx.Stream()
    Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream), 2)
    assert "end the capture" in str(refusal(RuntimeError, ctx.close))
    del ctx, stream
    gc.collect()
    with GreenContext.create(num_sms=16) as other:  # not in the context of the capture
        Stream(torch.cuda.current_stream()).record().sync()
        assert other.sm_count == 16
    assert system.idle_contexts >= kept


def test_a_stream_that_could_not_be_made_can_be_asked_for_again(machine: Any) -> None:
    ctx = GreenContext.create(num_sms=16)
    machine.fail("cuGreenCtxStreamCreate", nth=1)
    with pytest.raises(CUDAError):
        ctx.Stream()
    assert Stream(ctx.Stream()).resources.sm.sm_count == 16


def test_an_active_context_cannot_be_closed(torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    with ctx:
        assert "call pop_context()" in str(refusal(RuntimeError, ctx.close))
        assert "call pop_context()" in str(refusal(RuntimeError, lambda: on_another_thread(ctx.close)))
        assert ctx.context.is_current
    ctx.close()


def test_an_active_context_lives_without_any_reference(torch: Any, fresh: Device) -> None:
    GreenContext.create(num_sms=16).set_context()
    kept = system.idle_contexts
    gc.collect()
    stream = torch.cuda.current_stream()
    assert system.idle_contexts == kept
    assert len(sm_ids(stream)) == 16
    from cuda_gctx.compat.torch_green import _active

    [(ctx, _)] = _active.entries
    ctx.pop_context()
    del ctx, stream
    gc.collect()
    assert system.idle_contexts == kept + 1


def test_contexts_are_made_once_however_often_they_are_created(torch: Any, fresh: Device) -> None:
    def round_trip(exclusive: bool) -> None:
        ctx = GreenContext.create(num_sms=16, exclusive=exclusive)
        with ctx:
            pass
        ctx.Stream()
        if exclusive:
            ctx.close()

    round_trip(True)
    made = system.memory()[0].contexts
    for number in range(20):
        round_trip(number % 2 == 0)
        gc.collect()
    assert system.memory()[0].contexts == made


def test_the_module_says_that_it_is_supported() -> None:
    from cuda_gctx.compat.torch_green import SUPPORTED

    assert SUPPORTED is True


def test_torchs_tests_find_the_drop_in_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("from . import cuda\n")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text("from .green_contexts import GreenContext\n")
    (tmp_path / "torch" / "cuda" / "green_contexts.py").write_text(
        "class GreenContext: pass\nclass SMPartition: pass\n"
    )
    theirs = tmp_path / "test_matmul.py"
    theirs.write_text(
        "import torch\n"
        "from torch.cuda.green_contexts import GreenContext, SMPartition\n"
        "def test_greencontext():\n"
        "    assert GreenContext.__module__ == 'cuda_gctx.compat.torch_green'\n"
        "    assert GreenContext is torch.cuda.GreenContext is torch.cuda.green_contexts.GreenContext\n"
        "    assert SMPartition.__module__ == 'cuda_gctx.compat.torch_green'\n"
        "    assert not hasattr(torch.cuda, 'SMPartition')\n"
        "class TestGreenContexts:\n"
        "    def test_split(self):\n"
        "        pass\n"
        "def test_something_else():\n"
        "    raise AssertionError\n"
    )
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "hardware" / "upstream_tests.py", "--torch", theirs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 deselected" in done.stdout


def test_the_module_does_not_import_torch() -> None:
    done = run_python("import sys, cuda_gctx.compat.torch_green; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


# ---- torch itself


def on_a_gpu(test: Any) -> Any:
    # What torch warns of is not the matter.
    return pytest.mark.gpu_only(pytest.mark.filterwarnings("default")(test))


@on_a_gpu
def test_torch_orders_what_is_inside_after_what_was_before_and_before_what_follows(torch: Any, fresh: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    # Twice: at their first use kernels are loaded, which waits for the device.
    for outside in 2 * (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(outside):
            x = torch.zeros(SIZE, device="cuda:0")
            torch.cuda._sleep(LONG)
            x.fill_(1)
            ctx.set_context()
            y = x + 1
            torch.cuda._sleep(LONG)
            y.mul_(3)
            ctx.pop_context()
            assert (y + 1).eq(7).all()


@on_a_gpu
def test_torch_orders_nested_contexts(torch: Any, fresh: Device) -> None:
    first = GreenContext.create(num_sms=16, exclusive=True)
    second = GreenContext.create(num_sms=32, exclusive=True)
    x = torch.zeros(SIZE, device="cuda:0")
    with first:
        torch.cuda._sleep(LONG)
        x.add_(1)
        with second:
            torch.cuda._sleep(LONG)
            x.mul_(5)
        x.add_(2)
    assert x.eq(7).all()


@on_a_gpu
def test_torch_runs_backward_in_the_context_of_forward(torch: Any, fresh: Device) -> None:
    seen = []

    class Twice(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            seen.append(Stream(torch.cuda.current_stream()).resources.sm.sm_count)
            return 2 * gradient

    green = GreenContext.create(num_sms=16)
    x = torch.ones(SIZE, device="cuda:0", requires_grad=True)
    with green:
        y = Twice.apply(x)
    (3 * y).sum().backward()
    assert seen == [16]
    assert x.grad.eq(6).all()


@on_a_gpu
def test_torch_captures_a_context_in_a_graph_and_replays_it(torch: Any, fresh: Device) -> None:
    ctx = GreenContext.create(num_sms=16)
    x = torch.zeros(SIZE, device="cuda:0")
    with ctx:
        (x + 1).mul_(2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = x + 1
        ctx.set_context()
        b = a * 2
        ctx.pop_context()
        c = b + 1
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert c.eq(2 * (value + 1) + 1).all()


@on_a_gpu
def test_torch_reuses_no_memory_that_another_threads_context_still_needs(torch: Any, fresh: Device) -> None:
    contexts = [GreenContext.create(num_sms=16, exclusive=True) for _ in range(2)]
    wrong: list[tuple[int, int]] = []

    def work(position: int) -> None:
        with contexts[position]:
            for number in range(50):
                made = torch.full((SIZE,), float(number), device="cuda:0")
                torch.cuda._sleep(LONG // 100)
                result = made * 2
                del made  # the next allocation of this size gets its memory, here or on the other thread
                torch.full((SIZE,), -1.0, device="cuda:0")
                if not result.eq(2 * number).all():
                    wrong.append((position, number))

    threads = [threading.Thread(target=work, args=(position,)) for position in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@on_a_gpu
def test_the_null_stream_inside_is_one_of_the_context(torch: Any, fresh: Device) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
    where = cupy.RawKernel(
        'extern "C" __global__ void where(unsigned* sm)'
        ' { unsigned id; asm volatile("mov.u32 %0, %%smid;" : "=r"(id)); sm[blockIdx.x] = id; }',
        "where",
    )
    seen = cupy.zeros(8192, cupy.uint32)
    cupy.cuda.Device(0).synchronize()
    ctx = GreenContext.create(num_sms=16)
    mine = sm_ids(ctx.Stream())
    where((1,), (32,), (seen,))
    cupy.cuda.Device(0).synchronize()
    with ctx:
        where((8192,), (32,), (seen,))
        ctx.context.sync()
    assert set(cupy.asnumpy(seen).tolist()) <= mine


@on_a_gpu
@pytest.mark.alone
def test_torch_in_a_loop_of_contexts_loses_no_device_memory(torch: Any, fresh: Device) -> None:
    def round_trip() -> None:
        with GreenContext.create(num_sms=16, exclusive=True) as ctx:
            x = torch.ones(SIZE, device="cuda:0") * 2
        assert x.eq(2).all()
        ctx.close()

    for _ in range(3):
        round_trip()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(0)
    for _ in range(50):
        round_trip()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info(0)
    assert before - after < 16 * 2**20  # each context that is destroyed loses 4 MiB


@on_a_gpu
def test_torchs_own_class_gives_the_same_results(torch: Any, fresh: Device) -> None:
    green = pytest.importorskip("torch.cuda.green_contexts", reason="this torch has no green contexts")
    x = torch.randn(512, 512, device="cuda:0")
    results = []
    for kind in (green.GreenContext, GreenContext):
        ctx = kind.create(num_sms=16, device_id=0)
        ctx.set_context()
        inside = torch.sigmoid(x) + 1
        ctx.pop_context()
        stream = ctx.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            also = torch.sigmoid(x) + 1
        stream.synchronize()
        assert Stream(stream).resources.sm.sm_count == 16
        results += [inside, also]
        torch.cuda.synchronize()
        del ctx, stream
    assert all(torch.equal(result, results[0]) for result in results)
