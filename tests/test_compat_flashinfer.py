"""The functions of flashinfer.green_ctx: the same counts, results and exceptions, and contexts that do not leak.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from cuda_gctx import Device, ResourceOverlapWarning, Stream
from cuda_gctx.compat.flashinfer import (
    get_compute_capability,
    get_sm_count_constraint,
    split_device_green_ctx,
    split_device_green_ctx_by_sm_count,
)
from cuda_gctx.partitions import store

from .common import DRIVERS, refusal

# Sizes are multiples of 8 from compute capability 9.0 on.
HOPPER = [
    ([8, 16, 24], [8, 16, 24, 84]),
    ([7], [8, 124]),
    ([10], [16, 116]),
    ([16], [16, 116]),
    ([17], [24, 108]),
    ([1, 2, 3, 4], [8, 8, 8, 8, 100]),
    ([7, 8, 9, 10], [8, 8, 16, 16, 84]),
    ([15, 16, 17, 18], [16, 16, 24, 24, 52]),
]


def counts(resources: list[Any]) -> list[int]:
    return [resource.sm.smCount for resource in resources]


def free() -> None:
    """Lets go of what only a cycle of references keeps."""
    gc.collect()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("asked", "given"), HOPPER, ids=str)
def test_counts_are_rounded_up_and_the_remainder_comes_last(
    torch: Any, sim: Any, driver: str, asked: list[int], given: list[int]
) -> None:
    sim("h200", driver=driver)
    streams, resources = split_device_green_ctx_by_sm_count(torch.device("cuda:0"), asked)
    assert counts(resources) == given
    assert [Stream(stream).resources.sm.sm_count for stream in streams] == given


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("num_groups", "min_count", "given"),
    [
        (2, 16, [16, 16, 100]),
        (3, 32, [32, 32, 32, 36]),
        (1, 17, [24, 108]),
        (3, 7, [8, 8, 8, 108]),
        (2, 0, [8, 8, 116]),
    ],
)
def test_equal_groups_are_rounded_up_and_the_remainder_comes_last(
    torch: Any, sim: Any, driver: str, num_groups: int, min_count: int, given: list[int]
) -> None:
    sim("h200", driver=driver)
    streams, resources = split_device_green_ctx(torch.device("cuda:0"), num_groups, min_count)
    assert counts(resources) == given
    assert [Stream(stream).resources.sm.sm_count for stream in streams] == given


def test_other_cards_have_other_sizes(torch: Any, sim: Any) -> None:
    sim("a100")
    assert get_sm_count_constraint(*get_compute_capability("cuda:0")) == (4, 2)
    streams, resources = split_device_green_ctx("cuda:0", 3, 5)
    assert counts(resources) == [6, 6, 6, 90]
    del streams
    _, resources = split_device_green_ctx_by_sm_count("cuda:0", [1, 5, 10])
    assert counts(resources) == [4, 6, 10, 88]


def test_every_group_follows_the_constraint_of_the_device(torch: Any, dev: Device) -> None:
    device = torch.device("cuda:0")
    assert get_compute_capability(device) == dev.compute_capability
    least, grain = get_sm_count_constraint(*get_compute_capability(device))
    _, resources = split_device_green_ctx_by_sm_count(device, [1, least, least + 1])
    for resource in resources[:-1]:
        assert resource.sm.smCount >= least
        assert resource.sm.smCount % grain == 0


def test_a_compute_capability_that_nobody_here_has_cannot_be_asked(torch: Any) -> None:
    with pytest.raises(ValueError, match=r"no device of compute capability 99\.9"):
        get_sm_count_constraint(99, 9)


def test_streams_are_torchs_and_usable_as_current_streams(torch: Any, dev: Device) -> None:
    streams, resources = split_device_green_ctx(torch.device("cuda:0"), 2, 16)
    assert (len(streams), len(resources)) == (3, 3)
    for stream in streams:
        assert isinstance(stream, torch.cuda.Stream)
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
    whole = dev.resources.sm
    assert resources[0].sm.minSmPartitionSize == whole.min_partition_size
    assert resources[0].sm.smCoscheduledAlignment == resources[0].resource.coscheduled_alignment
    assert sum(counts(resources)) == dev.sm_count


def test_a_device_without_a_number_is_the_current_one(torch: Any) -> None:
    streams, _ = split_device_green_ctx("cuda", 2, 8)
    assert {stream.device.index for stream in streams} == {torch.cuda.current_device()}


def test_a_device_that_is_none_of_cuda_is_refused(torch: Any) -> None:
    with pytest.raises(ValueError, match="on a cuda device, not on"):
        split_device_green_ctx(torch.device("cpu"), 2, 8)


def test_more_than_the_device_has_is_a_runtime_error(torch: Any, dev: Device) -> None:
    for split in (
        lambda: split_device_green_ctx("cuda:0", 2, dev.sm_count),
        lambda: split_device_green_ctx_by_sm_count("cuda:0", [dev.sm_count, 8]),
    ):
        assert str(refusal(RuntimeError, split)).startswith("Insufficient SMs: ")


def test_a_split_that_leaves_nothing_for_the_remainder_is_a_runtime_error(torch: Any, sim: Any) -> None:
    sim("a100")
    kept = len(store)
    error = refusal(RuntimeError, lambda: split_device_green_ctx_by_sm_count("cuda:0", [54, 54]))
    assert "leave none of 108 for the remainder" in str(error)
    free()
    assert len(store) == kept + 2


@pytest.mark.parametrize("sm_counts", [[], [0], [-8], [8, 0]])
def test_no_counts_and_counts_that_are_not_positive_are_value_errors(torch: Any, sm_counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"sm_counts is empty|SM count must be positive, got"):
        split_device_green_ctx_by_sm_count("cuda:0", sm_counts)


@pytest.mark.parametrize(("num_groups", "min_count"), [(0, 8), (-1, 8), (2, -8)])
def test_groups_that_cannot_be_are_value_errors(torch: Any, num_groups: int, min_count: int) -> None:
    with pytest.raises(ValueError, match=r"num_groups must be positive|min_count must not be negative"):
        split_device_green_ctx("cuda:0", num_groups, min_count)


def test_contexts_are_in_use_as_long_as_a_stream_and_no_longer(torch: Any, dev: Device) -> None:
    free()
    store.drop()
    streams, resources = split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
    first = streams[0]
    del streams
    free()
    assert len(store) == 0
    assert Stream(first).resources.sm.sm_count == resources[0].sm.smCount
    del first
    free()
    assert len(store) == 3
    assert counts(resources)[:2] == [8, 16]


def test_splitting_again_makes_no_new_contexts(torch: Any, dev: Device) -> None:
    from cuda_gctx._lease import context_counts

    split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
    free()
    made = context_counts(dev.resources.sm)
    for _ in range(5):
        split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
        free()
    assert context_counts(dev.resources.sm) == made


def test_a_split_beside_a_living_one_warns_of_the_shared_sms(torch: Any, dev: Device) -> None:
    streams, _ = split_device_green_ctx("cuda:0", 2, 8)
    with pytest.warns(ResourceOverlapWarning):
        split_device_green_ctx("cuda:0", 1, 16)
    del streams
