"""Free SMs: partitions of those only that no live context has, found and claimed in one step."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_gctx import (
    CUDAError,
    Device,
    Partitions,
    PartitionSpec,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    system,
)
from cuda_gctx.compat.flashinfer import split_device_green_ctx_by_sm_count
from cuda_gctx.compat.torch_green import GreenContext
from cuda_gctx.partitions import PartitionPool, free

from ..common import DRIVERS, NEW_DRIVERS, green, refusal, split
from ..stand_in_torch import StandInTorch

Machines = Callable[..., Any]


@pytest.fixture
def machine(sim: Machines) -> Iterator[Any]:
    yield sim("h200")
    gc.collect()


@pytest.fixture
def green_torch(torch: Any) -> Any:
    if isinstance(torch, StandInTorch):
        torch._C._cuda_hasPrimaryContext = lambda device: True
    return torch


def counts(parts: Partitions) -> list[int]:
    return [part.sm_count for part in parts]


def seen(*sets: Partitions) -> list[set[int]]:
    """The SMs on which each partition runs, by the probe."""
    for parts in sets:
        parts.verify()
    return [set(part.sm_ids or ()) for parts in sets for part in parts]


# ---- the snapshot


def test_all_sms_of_an_unused_device_are_free(dev: Device) -> None:
    whole = dev.resources.sm
    assert whole.free == whole


def test_what_partitions_of_free_sms_have_is_not_free(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(a=16, b=24, among="free"):
        assert dev.resources.sm.free.sm_count == 132 - 40
    assert dev.resources.sm.free.sm_count == 132


def test_nothing_is_free_next_to_a_background_partition(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(a=16):
        assert dev.resources.sm.free.sm_count == 0


def test_what_may_be_taken_counts_as_taken(machine: Any) -> None:
    dev = Device(0)
    [group], _ = split(dev.resources.sm, [16])
    with green(dev, group):
        assert dev.resources.sm.free.sm_count == 0
        refusal(SplitError, lambda: dev.partition(8, among="free"))


def test_free_sms_can_be_split(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(a=16, among="free") as parts:
        [group], _ = dev.resources.sm.free.split([8])
        with green(dev, group, exclusive=True) as other:
            ids = set(other.verify().contexts[0].sm_ids)
            assert not ids & seen(parts)[0]


def test_only_a_whole_device_knows_its_free_sms(machine: Any) -> None:
    [group], _ = split(Device(0).resources.sm, [16])
    assert "read device.resources.sm.free" in str(refusal(ValueError, lambda: group.free))


# ---- partitions


@pytest.mark.parametrize("driver", DRIVERS)
def test_partitions_that_do_not_know_of_each_other_get_different_sms(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    with (
        dev.partition(a=16, b=8, among="free", exclusive=True) as first,
        dev.partition(8, 32, among="free") as second,
        dev.partition(rest=None, among="free") as third,
    ):
        # From 13.1 on, the 12 SMs outside of the units cannot be in one context with units.
        apart = 12 if driver in NEW_DRIVERS else 0
        assert (counts(first), counts(second), counts(third)) == ([16, 8], [8, 32], [68 - apart])
        assert not any(hasattr(parts, "background") for parts in (first, second, third))
        ids = seen(first, second, third)
        assert sum(map(len, ids)) == len(set.union(*ids)) == 132 - apart
        assert dev.resources.sm.free.sm_count == apart


def test_they_get_different_sms_on_any_card(dev: Device) -> None:
    gc.collect()
    with dev.partition(8, among="free") as first, dev.partition(8, None, among="free") as second:
        ids = seen(first, second)
        assert sum(map(len, ids)) == len(set.union(*ids))


def test_the_exact_remainder_serves_what_rounds_up_beyond_it(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(32, among="free"), dev.partition(100, among="free") as second:
        assert counts(second) == [100]
    with dev.partition(32, among="free"):
        message = str(refusal(SplitError, lambda: dev.partition(104, among="free")))
        assert "100 of 132 SMs are known to be free" in message
        assert "request fewer" in message


def test_shares_and_conditions_are_those_of_the_device(machine: Any) -> None:
    dev = Device(0)
    exact = SMResourceOptions(4, backfill=True)
    with dev.partition(half=0.5, small=exact, others=PartitionSpec(None, aligned=True), among="free") as parts:
        assert parts.half.sm_count == 64
        assert parts.small.sm_count == 4
        assert parts.others.sm_count == 48
        ids = seen(parts)
        assert sum(map(len, ids)) == len(set.union(*ids))
        with dev.partition(among="free", rest=None) as rest:
            assert counts(rest) == [12]


def test_a_layout_that_fits_only_without_others_is_refused_and_leaves_nothing(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(a=64, among="free"):
        refusal(SplitError, lambda: dev.partition(b=64, c=16, among="free"))
        assert dev.resources.sm.free.sm_count == 68
    with dev.partition(a=None, among="free"):
        assert "no SMs are known to be free" in str(refusal(SplitError, lambda: dev.partition(b=None, among="free")))


def test_they_conflict_with_others_as_all_partitions_do(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(a=16, among="free"):
        refusal(ResourceOverlapError, lambda: dev.partition(b=16, exclusive=True))
        with pytest.warns(ResourceOverlapWarning, match="'a'"):
            dev.partition(b=16).close()


def test_a_pool_holds_all_of_its_layouts(machine: Any) -> None:
    dev = Device(0)
    with PartitionPool(dev) as pool:
        pool.prepare(16)
        assert dev.resources.sm.free.sm_count == 0
    assert dev.resources.sm.free.sm_count == 132


def test_stored_contexts_are_used_again(machine: Any) -> None:
    dev = Device(0)
    first = dev.partition(16, among="free")
    second = dev.partition(24, among="free")
    first.close()
    second.close()
    made = machine.calls("cuGreenCtxCreate")
    with dev.partition(24, among="free"), dev.partition(16, among="free"):
        assert machine.calls("cuGreenCtxCreate") == made


def test_a_stored_context_is_used_again_only_if_all_its_sms_are_free(machine: Any) -> None:
    dev = Device(0)
    dev.partition(16, among="free").close()
    with dev.partition(8, among="free") as first, dev.partition(16, among="free") as second:
        ids = seen(first, second)
        assert not ids[0] & ids[1]


def test_sms_that_others_claim_in_between_are_not_taken(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dev = Device(0)
    others = []
    claim_all = free.claim_all

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        others.append(dev.partition(8, among="free"))
        return claim_all(*args, **kwargs)

    monkeypatch.setattr(free, "claim_all", late)
    with dev.partition(16, among="free") as mine:
        ids = seen(mine, *others)
        assert not ids[0] & ids[1]
    others[0].close()


def test_threads_get_different_sms(machine: Any) -> None:
    dev = Device(0)
    opened: list[Partitions] = []
    together = threading.Barrier(8)

    def work() -> None:
        together.wait(60)
        opened.append(dev.partition(8, among="free"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ids = seen(*opened)
    assert (len(ids), sum(map(len, ids)), len(set.union(*ids))) == (8, 64, 64)
    for parts in opened:
        parts.close()


def test_a_driver_that_refuses_units_and_the_rest_together_gets_units(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(32, among="free"):
        machine.fail("cuDevResourceGenerateDesc", code="CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", nth=1)
        with dev.partition(None, among="free") as parts:
            assert counts(parts) == [88]
        with dev.partition(None, among="free") as parts:
            assert counts(parts) == [88]


def test_other_failures_of_the_driver_leave_nothing_behind(machine: Any) -> None:
    dev = Device(0)
    machine.fail("cuGreenCtxCreate", nth=2)
    refusal(CUDAError, lambda: dev.partition(8, 8, among="free"))
    assert dev.resources.sm.free.sm_count == 132
    assert system.memory()[0].contexts == system.idle_contexts


def test_another_word_for_among_is_refused(dev: Device) -> None:
    with pytest.raises(ValueError, match="among must be 'all' or 'free'"):
        dev.partition(8, among=16)  # type: ignore[arg-type]


# ---- libraries that do not know of each other


@pytest.mark.sim_only
def test_two_libraries_share_a_device_without_knowing_of_each_other(green_torch: Any, dev: Device) -> None:
    ctx = GreenContext.create(num_sms=32)
    streams, resources = split_device_green_ctx_by_sm_count("cuda:0", [16, 24])
    # FlashInfer's remainder takes what is left, and so comes last.
    assert [resource.sm.smCount for resource in resources] == [16, 24, 60]
    assert ctx.context.verify().contexts[0].sm_ids
    taken = set(ctx.context.verify().contexts[0].sm_ids or ())
    from cuda_gctx import Stream

    for stream in streams:
        ids = set(Stream(stream).context.verify().contexts[0].sm_ids or ())
        assert ids
        assert not ids & taken
        taken |= ids
    assert len(taken) == 132
    ctx.close()
    del streams, stream, resources


@pytest.mark.sim_only
@pytest.mark.parametrize(("asked", "given"), [(100, 100), (96, 100), (88, 88), (8, 8)])
def test_contexts_of_torchs_class_are_disjoint_as_long_as_there_are_enough(
    green_torch: Any, dev: Device, asked: int, given: int
) -> None:
    first, other = GreenContext.create(num_sms=32), GreenContext.create(num_sms=asked)
    assert (first.sm_count, other.sm_count) == (32, given)
    assert dev.resources.sm.free.sm_count == 132 - 32 - given
    first.close()
    other.close()


@pytest.mark.sim_only
def test_a_context_that_cannot_be_disjoint_shares_as_few_as_possible(green_torch: Any, dev: Device) -> None:
    first = GreenContext.create(num_sms=32)
    with pytest.warns(ResourceOverlapWarning):
        second = GreenContext.create(num_sms=104)
    ids = [set(ctx.context.verify().contexts[0].sm_ids or ()) for ctx in (first, second)]
    assert second.sm_count == len(ids[1]) == 108
    assert len(ids[0] & ids[1]) == 8
    first.close()
    second.close()


SHARES = [(0.5, 0.5), (0.25,) * 4, (0.1,) * 10, (0.9,), (0.999,), (0.3, 0.7), (0.5, None)]


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.1", "13.4"])
@pytest.mark.parametrize("card", ["h200", "a100", "b200", "l40s", "rtx4090", "rtx5080", "thor"])
def test_shares_are_rounded_down_among_all_sms_and_among_free_ones(sim: Machines, card: str, driver: str) -> None:
    sim(card, driver=driver)
    dev = Device(0)
    for shares in SHARES:
        for among in ("all", "free"):
            with dev.partition(*shares, among=among) as parts:  # type: ignore[arg-type]
                for part, share in zip(parts, shares, strict=True):
                    assert part.sm_count <= (share or 1) * dev.sm_count, (shares, among)
                assert parts.verify().contexts


def test_a_share_of_which_too_little_is_free_is_refused(dev: Device) -> None:
    with dev.partition(0.75, among="free"):
        assert "are known to be free" in str(refusal(SplitError, lambda: dev.partition(0.5, among="free")))
        with dev.partition(0.125, among="free") as parts:
            assert parts[0].sm_count <= dev.sm_count / 8
