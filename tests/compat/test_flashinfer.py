"""The functions of flashinfer.green_ctx: the same counts, results and exceptions, and contexts that do not leak.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cuda_software_driver as software_driver
from cuda_gctx import CUDAError, Device, ResourceOverlapWarning, Stream, system
from cuda_gctx._core.extension import run_probe
from cuda_gctx.compat.flashinfer import (
    checkCudaErrors,
    create_green_ctx_streams,
    empty_per_locality_domain,
    get_compute_capability,
    get_cudevice,
    get_device_resource,
    get_locality_domain_count,
    get_sm_count_constraint,
    split_device_green_ctx,
    split_device_green_ctx_by_locality_domain,
    split_device_green_ctx_by_sm_count,
    split_resource,
    split_resource_by_sm_count,
)
from cuda_gctx.partitions import lending

from ..common import DRIVERS, refusal
from ..raw import Raw

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


# FlashInfer's way, on the driver's calls: each group is split off what a context of the remainder before it answers.
# Prints the sizes that it comes to for each list of counts, or null for an error.
CHAIN = """
import json, sys
from cuda.bindings import driver

def ask(call, *arguments):
    code, *answer = call(*arguments)
    if int(code) != 0:
        raise RuntimeError(f"{call.__name__}: {code.name}")
    return answer[0] if len(answer) == 1 else answer

SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
DEFAULT_STREAM = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
ask(driver.cuInit, 0)
device = ask(driver.cuDeviceGet, 0)
ask(driver.cuDevicePrimaryCtxRetain, device)
major = ask(driver.cuDeviceGetAttribute, driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
least, grain = (8, 8) if major >= 9 else (4, 2)
made = []

def context_of(resource):
    description = ask(driver.cuDevResourceGenerateDesc, [resource], 1)
    made.append(ask(driver.cuGreenCtxCreate, description, device, DEFAULT_STREAM))
    return made[-1]

def sizes(counts):
    left = ask(driver.cuDeviceGetDevResource, device, SM)
    groups = []
    for count in counts:
        wanted = (max(count, least) + grain - 1) // grain * grain
        [group], _, remainder = ask(driver.cuDevSmResourceSplitByCount, 1, left, 0, wanted)
        if group.sm.smCount < wanted:
            raise RuntimeError("fewer than asked for, which no drop-in may hand on")
        groups.append(group)
        left = ask(driver.cuGreenCtxGetDevResource, context_of(remainder), SM)
    for resource in [*groups, left]:
        context_of(resource)
    return [resource.sm.smCount for resource in [*groups, left]]

answers = []
for counts in json.loads(sys.argv[1]):
    try:
        answers.append(sizes(counts))
    except RuntimeError:
        answers.append(None)
    while made:
        ask(driver.cuGreenCtxDestroy, made.pop())
print(json.dumps(answers))
"""

# What one split cannot give is among them: all but four SMs of an H200, in groups that are not equal units.
LAYOUTS = [
    *([64, 40, 24], [40, 32, 16, 16, 24], [8, 48, 22, 47], [48, 8, 16, 8, 48], [40, 40, 48], [64, 8, 64, 8]),
    *([8, 16, 24], [1, 2, 3, 4], [15, 16, 17, 18], [120], [124], [128], [132], [140]),
    *([8] * 15, [8] * 16, [64, 40, 32], [56, 56, 32], [5, 47, 5, 2, 41, 1]),
]
CHAINED = [64, 40, 24]  # on an H200


def flashinfers(layouts: list[list[int]], **environment: str) -> list[list[int] | None]:
    done = subprocess.run(
        [sys.executable, "-c", CHAIN, json.dumps(layouts)],
        env={**os.environ, "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[int] | None] = json.loads(done.stdout)
    return answers


def ours(layouts: list[list[int]]) -> list[list[int] | None]:
    answers: list[list[int] | None] = []
    for layout in layouts:
        streams: list[Any] = []
        with suppress(RuntimeError):
            streams, _ = split_device_green_ctx_by_sm_count("cuda:0", layout)
        answers.append([Stream(stream).resources.sm.sm_count for stream in streams] or None)
        del streams
        free()
    return answers


def sm_ids(stream: Any) -> set[int]:
    """Where the blocks of a probe kernel run that is launched on a stream of torch's."""
    adopted = Stream(stream)
    [blocks] = run_probe([adopted], [4 * adopted.resources.sm.sm_count], 100_000, 10_000_000_000)
    return {sm for sm, _, _ in blocks}


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


@pytest.mark.parametrize(
    ("gpu", "driver"), [*(("h200", driver) for driver in DRIVERS), ("a100", "13.0"), ("h100", "13.0"), ("b200", "13.4")]
)
def test_counts_are_split_as_flashinfer_does(torch: Any, sim: Any, gpu: str, driver: str) -> None:
    sim(gpu, driver=driver)
    theirs = flashinfers(
        LAYOUTS,
        LD_LIBRARY_PATH=software_driver.library_folder(),
        CUDA_SOFTWARE_DRIVER_MACHINE=f"{gpu}@{driver}",
    )
    assert ours(LAYOUTS) == theirs


@pytest.mark.gpu_only
def test_counts_are_split_as_flashinfer_does_on_this_device(torch: Any, dev: Device) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed here")
    free()
    for layout, mine, theirs in zip(LAYOUTS, ours(LAYOUTS), flashinfers(LAYOUTS), strict=True):
        if theirs is not None:
            assert mine == theirs, layout
        elif mine is not None:  # what the driver gives there is less than was asked for
            assert all(got >= asked for got, asked in zip(mine, layout, strict=False)), layout


@pytest.mark.parametrize("driver", DRIVERS)
def test_groups_of_a_chain_share_nothing_and_overlap_with_nothing(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    streams, _ = split_device_green_ctx_by_sm_count("cuda:0", CHAINED)
    seen = [sm_ids(stream) for stream in streams]
    assert [len(ids) for ids in seen] == [64, 40, 24, 4]
    assert len(set().union(*seen)) == 132
    with pytest.warns(ResourceOverlapWarning):
        split_device_green_ctx_by_sm_count("cuda:0", [8])
    del streams
    free()
    # Nothing is left in use: no warning, which would be an error.
    split_device_green_ctx("cuda:0", 1, 124)


def test_a_chain_is_made_once(torch: Any, sim: Any) -> None:
    machine = sim("h200")
    split_device_green_ctx_by_sm_count("cuda:0", CHAINED)
    free()
    made = system.memory()[0].contexts
    for _ in range(3):
        split_device_green_ctx_by_sm_count("cuda:0", CHAINED)
        free()
    assert system.memory()[0].contexts == made
    assert system.idle_contexts == made
    assert machine.ledger().misuse == ()


def test_equal_groups_are_not_chained(torch: Any, sim: Any) -> None:
    sim("h200")
    # FlashInfer asks the driver once for these, and it has 15.
    assert "Insufficient SMs" in str(refusal(RuntimeError, lambda: split_device_green_ctx("cuda:0", 16, 8)))


def test_every_group_follows_the_constraint_of_the_device(torch: Any, dev: Device) -> None:
    device = torch.device("cuda:0")
    assert get_compute_capability(device) == dev.compute_capability
    least, grain = get_sm_count_constraint(*get_compute_capability(device))
    _, resources = split_device_green_ctx_by_sm_count(device, [1, least, least + 1])
    for resource in resources[:-1]:
        assert resource.sm.smCount >= least
        assert resource.sm.smCount % grain == 0


@pytest.mark.parametrize(
    ("capability", "constraint"), [((6, 1), (1, 1)), ((7, 5), (2, 2)), ((8, 9), (4, 2)), ((12, 0), (8, 8))]
)
def test_the_constraint_of_an_absent_card_is_flashinfers(
    torch: Any, capability: tuple[int, int], constraint: tuple[int, int]
) -> None:
    assert get_sm_count_constraint(*capability) == constraint


def test_the_constraint_of_a_present_card_is_the_drivers(torch: Any, sim: Any) -> None:
    sim("thor")
    assert get_sm_count_constraint(11, 0) == (2, 2)


def test_a_compute_capability_before_pascal_has_no_constraint(torch: Any) -> None:
    with pytest.raises(ValueError, match=r"Unsupported CUDA capability: 5\.2"):
        get_sm_count_constraint(5, 2)


# ---- kernels of FlashInfer that plan by the SMs of their stream


class CakeFmha(ModuleType):
    """FlashInfer's module with the switch, off as with FLASHINFER_CAKE_FMHA_SM_PARTITIONS=0."""

    def __init__(self) -> None:
        super().__init__("flashinfer.cake_fmha")
        self.on = False

    def enable_cake_fmha_sm_partitions(self, enabled: bool = True) -> None:
        self.on = enabled


@pytest.fixture
def cake_fmha(monkeypatch: pytest.MonkeyPatch) -> CakeFmha:
    module = CakeFmha()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_streams_of_a_split_switch_planning_by_partition_on(torch: Any, dev: Device, cake_fmha: CakeFmha) -> None:
    for split in (
        lambda: split_device_green_ctx("cuda:0", 1, 8),
        lambda: split_device_green_ctx_by_sm_count("cuda:0", [8]),
        lambda: create_green_ctx_streams(0, split_resource(get_device_resource(0), 1, 8)[0]),
    ):
        cake_fmha.on = False
        split()
        free()
        assert cake_fmha.on


def test_streams_of_locality_domains_switch_planning_by_partition_on(torch: Any, sim: Any, cake_fmha: CakeFmha) -> None:
    sim("b200", driver="13.4")
    split_device_green_ctx_by_locality_domain("cuda:0")
    assert cake_fmha.on


def test_a_refused_split_leaves_planning_as_it_was(torch: Any, dev: Device, cake_fmha: CakeFmha) -> None:
    refusal(RuntimeError, lambda: split_device_green_ctx("cuda:0", 1, dev.sm_count + 1))
    assert not cake_fmha.on


def test_a_flashinfer_without_the_switch_is_left_alone(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer.cake_fmha", ModuleType("flashinfer.cake_fmha"))  # before 0.7.4
    assert counts(split_device_green_ctx("cuda:0", 1, 8)[1])[0] == 8


def test_a_split_does_not_import_flashinfer(torch: Any, dev: Device) -> None:
    split_device_green_ctx("cuda:0", 1, 8)
    assert "flashinfer" not in sys.modules


def test_no_resources_have_no_streams(torch: Any, dev: Device) -> None:
    assert create_green_ctx_streams(0, []) == []


def test_the_resource_of_a_device_that_is_not_there_is_a_runtime_error(torch: Any, dev: Device) -> None:
    assert "there is no device 9" in str(refusal(RuntimeError, lambda: get_device_resource(9)))


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
    with pytest.raises(ValueError, match="must be a CUDA device, not"):
        split_device_green_ctx(torch.device("cpu"), 2, 8)


def test_a_device_that_is_not_there_is_a_runtime_error(torch: Any) -> None:
    for ask in (
        lambda: split_device_green_ctx("cuda:99", 2, 8),
        lambda: split_device_green_ctx_by_sm_count("cuda:99", [8]),
        lambda: get_compute_capability("cuda:99"),
    ):
        assert "there is no device 99" in str(refusal(RuntimeError, ask))


def test_more_than_the_device_has_is_a_runtime_error(torch: Any, dev: Device) -> None:
    for split in (
        lambda: split_device_green_ctx("cuda:0", 2, dev.sm_count),
        lambda: split_device_green_ctx_by_sm_count("cuda:0", [dev.sm_count, 8]),
        lambda: split_device_green_ctx("cuda:0", 1, 1 << 40),
        lambda: split_device_green_ctx("cuda:0", 1 << 40, 8),
        lambda: split_device_green_ctx_by_sm_count("cuda:0", [5_000_000_000]),
    ):
        message = str(refusal(RuntimeError, split))
        assert message.startswith("Insufficient SMs: ")
        # By these words FlashInfer's own tests skip on small devices.
        assert "CUDA error code=915(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)" in message


def test_errors_of_the_driver_have_its_code_and_name(torch: Any, sim: Any) -> None:
    sim("h200").fail("cuGreenCtxCreate", nth=1)
    error = refusal(CUDAError, lambda: split_device_green_ctx("cuda:0", 1, 8))
    assert str(error).startswith("CUDA error code=2(CUDA_ERROR_OUT_OF_MEMORY): ")
    assert error.code == 2


def test_the_device_and_its_resource_are_there(torch: Any, dev: Device) -> None:
    resource = get_device_resource(get_cudevice(torch.device("cuda:0")))
    assert resource.sm.smCount == dev.sm_count
    assert resource.sm.minSmPartitionSize == dev.resources.sm.min_partition_size
    assert resource.resource == dev.resources.sm


@pytest.mark.parametrize("driver", DRIVERS)
def test_streams_of_split_resources_keep_their_contexts(torch: Any, sim: Any, driver: str) -> None:
    machine = sim("h200", driver=driver)
    device = get_cudevice(torch.device("cuda:0"))
    # How two models are served: 40 SMs for one, all others for the other.
    [decode], rest = split_resource(get_device_resource(device), 1, 40)
    assert counts([decode, rest]) == [40, 92]
    streams = create_green_ctx_streams(device, [decode, rest])
    del decode, rest
    free()
    seen = [sm_ids(stream) for stream in streams]
    assert [len(ids) for ids in seen] == [40, 92]
    assert seen[0].isdisjoint(seen[1])
    assert system.idle_contexts == 0  # in use, as long as one of the streams
    del streams[0]
    free()
    assert system.idle_contexts == 0
    del streams
    free()
    assert system.idle_contexts == 2
    assert machine.ledger().misuse == ()


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_steps_of_a_split_give_what_the_whole_function_gives(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    for layout in LAYOUTS:
        [whole] = ours([layout])
        groups: list[Any] = []
        with suppress(RuntimeError):
            groups, remainder = split_resource_by_sm_count(0, get_device_resource(0), layout)
            streams = create_green_ctx_streams(0, [*groups, remainder])
            assert [Stream(stream).resources.sm.sm_count for stream in streams] == whole
            del streams
        free()
        assert bool(groups) == bool(whole), layout


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_remainder_is_split_again(torch: Any, sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    [first], rest = split_resource(get_device_resource(0), 1, 64)
    [second, third], rest = split_resource(rest, 2, 16)
    assert counts([first, second, third, rest]) == [64, 16, 16, 36]
    made = system.memory()[0].contexts
    assert split_resource(split_resource(get_device_resource(0), 1, 64)[1], 2, 16)[1] == rest
    assert system.memory()[0].contexts == made
    seen = [sm_ids(stream) for stream in create_green_ctx_streams(0, [first, second, third, rest])]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 132


def test_a_split_may_leave_nothing_but_nothing_has_no_stream(torch: Any, sim: Any) -> None:
    sim("a100")
    groups, remainder = split_resource(get_device_resource(0), 2, 54)
    assert counts([*groups, remainder]) == [54, 54, 0]
    assert len(create_green_ctx_streams(0, groups)) == 2
    error = refusal(RuntimeError, lambda: create_green_ctx_streams(0, [*groups, remainder]))
    assert "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE)" in str(error)
    # What was cached for these steps is no answer for the function with a remainder.
    refusal(RuntimeError, lambda: split_device_green_ctx("cuda:0", 2, 54))


def test_steps_that_do_not_fit_are_runtime_errors(torch: Any, dev: Device) -> None:
    whole = get_device_resource(0)
    for split in (
        lambda: split_resource(whole, 2, dev.sm_count),
        lambda: split_resource(whole, 1 << 40, 8),
        lambda: split_resource_by_sm_count(0, whole, [dev.sm_count, 8]),
    ):
        assert str(refusal(RuntimeError, split)).startswith("Insufficient SMs: ")
    assert split_resource_by_sm_count(0, whole, []) == ([], whole)
    with pytest.raises(ValueError, match=r"sm_counts\[1\] must be an int of at least 1"):
        split_resource_by_sm_count(0, whole, [8, 0])


def test_streams_over_sms_in_use_warn_the_first_time(torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_told", set())
    free()
    [group], _ = split_resource(get_device_resource(0), 1, 16)
    streams = create_green_ctx_streams(0, [group])
    with pytest.warns(ResourceOverlapWarning, match="said once for each device") as caught:
        # Not in a comprehension, which is a caller in this file too.
        again, later = create_green_ctx_streams(0, [group]), create_green_ctx_streams(0, [group])
    assert [warning.filename for warning in caught] == [__file__]
    del streams, again, later


def test_steps_take_what_this_package_and_cuda_bindings_have(torch: Any, dev: Device) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed here")
    free()
    device = driver.CUdevice(0)
    assert get_device_resource(device) == get_device_resource(0)
    [group], _ = split_resource(dev.resources.sm, 1, 16)
    [stream] = create_green_ctx_streams(device, [group.resource])
    assert Stream(stream).resources.sm.sm_count == group.sm.smCount
    # The other way round, a resource is the driver's structure for the functions of cuda.bindings.
    assert driver.CUdevResource(get_device_resource(0).resource.handle).sm.smCount == dev.sm_count
    with pytest.raises(TypeError, match="must be a SplitResource or an SMResource, not CUdevResource"):
        split_resource(driver.CUdevResource(), 1, 8)


def test_a_resource_of_another_device_is_refused(torch: Any, sim: Any) -> None:
    sim("h200", devices=2)
    for use in (
        lambda: create_green_ctx_streams(0, [get_device_resource(1)]),
        lambda: split_resource_by_sm_count(0, get_device_resource(1), [8]),
    ):
        assert "a resource belongs to device 1" in str(refusal(ValueError, use))


def test_results_of_cuda_bindings_are_checked() -> None:
    class Code(Enum):
        CUDA_SUCCESS = 0
        CUDA_ERROR_INVALID_VALUE = 1

    assert checkCudaErrors((Code.CUDA_SUCCESS,)) is None
    assert checkCudaErrors((Code.CUDA_SUCCESS, 5)) == 5
    assert checkCudaErrors((Code.CUDA_SUCCESS, 5, 6)) == (5, 6)
    error = refusal(RuntimeError, lambda: checkCudaErrors((Code.CUDA_ERROR_INVALID_VALUE, None)))
    assert str(error) == "CUDA error code=1(CUDA_ERROR_INVALID_VALUE)"


# ---- locality domains


@pytest.mark.parametrize(("backfill", "given"), [(True, [74, 74]), (False, [72, 72])])
def test_locality_domains_have_a_stream_each(torch: Any, sim: Any, backfill: bool, given: list[int]) -> None:
    sim("b200", driver="13.4")
    assert get_locality_domain_count("cuda") == 2
    streams, resources = split_device_green_ctx_by_locality_domain("cuda", backfill)
    assert counts(resources) == given
    assert [resource.resource.locality_domain for resource in resources] == [0, 1]
    seen = [sm_ids(stream) for stream in streams]
    assert [len(ids) for ids in seen] == given
    assert seen[0].isdisjoint(seen[1])


@pytest.mark.parametrize(("gpu", "driver"), [("h200", "13.4"), ("b200", "13.1")])
def test_a_device_without_locality_domains_is_not_split_by_them(torch: Any, sim: Any, gpu: str, driver: str) -> None:
    sim(gpu, driver=driver)
    assert get_locality_domain_count("cuda:0") == 1
    error = refusal(RuntimeError, lambda: split_device_green_ctx_by_locality_domain("cuda:0"))
    assert "device 0 has 1 locality domain" in str(error)


def test_memory_of_locality_domains_is_refused(torch: Any) -> None:
    with pytest.raises(NotImplementedError, match="partitions SMs only"):
        empty_per_locality_domain((8,), None, "cuda:0")


def test_a_split_that_leaves_nothing_for_the_remainder_is_a_runtime_error(torch: Any, sim: Any) -> None:
    sim("a100")
    error = refusal(RuntimeError, lambda: split_device_green_ctx_by_sm_count("cuda:0", [54, 54]))
    assert "leave none of 108 for the remainder" in str(error)
    assert "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE)" in str(error)
    assert system.memory() == {}


@pytest.mark.parametrize("sm_counts", [[], [0], [-8], [8, 0]])
def test_no_counts_and_counts_that_are_not_positive_are_value_errors(torch: Any, sm_counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"sm_counts is empty|SM count must be positive, got"):
        split_device_green_ctx_by_sm_count("cuda:0", sm_counts)


@pytest.mark.parametrize(("num_groups", "min_count"), [(0, 8), (-1, 8), (2, -8)])
def test_groups_that_cannot_be_are_value_errors(torch: Any, num_groups: int, min_count: int) -> None:
    with pytest.raises(ValueError, match=r"(num_groups|min_count) must be an int of at least"):
        split_device_green_ctx("cuda:0", num_groups, min_count)


def test_contexts_are_in_use_as_long_as_a_stream_and_no_longer(torch: Any, dev: Device) -> None:
    free()
    streams, resources = split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
    first = streams[0]
    del streams
    free()
    kept = system.idle_contexts
    assert Stream(first).resources.sm.sm_count == resources[0].sm.smCount
    del first
    free()
    assert system.idle_contexts == kept + 3
    assert counts(resources)[:2] == [8, 16]


def test_splitting_again_makes_no_new_contexts(torch: Any, dev: Device) -> None:
    split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
    free()
    made = system.memory()[0].contexts
    for _ in range(5):
        split_device_green_ctx_by_sm_count("cuda:0", [8, 16])
        free()
    assert system.memory()[0].contexts == made


def test_a_handle_is_good_for_as_long_as_the_driver_is_open(torch: Any, sim: Any) -> None:
    machine = sim("h200")
    # All that torch.cuda.set_stream() keeps.
    handle = split_device_green_ctx("cuda:0", 1, 16)[0][0].cuda_stream
    free()
    stream = Stream.from_handle(handle)
    assert stream.resources.sm.sm_count == 16
    stream.record().sync()
    del stream
    again = split_device_green_ctx("cuda:0", 1, 16)[0][0]
    assert again.cuda_stream == handle
    del again
    free()
    system.release_contexts()
    Stream.from_handle(handle).record().sync()
    assert machine.ledger().misuse == ()


@pytest.mark.filterwarnings("ignore::cuda_gctx.ResourceOverlapWarning")  # given once in a process
def test_a_split_is_refused_while_a_stream_of_another_is_capturing(torch: Any, dev: Device) -> None:
    raw = Raw()
    free()
    system.release_contexts()
    streams, _ = split_device_green_ctx("cuda:0", 2, 8)
    capturing = ctypes.c_void_p(streams[0].cuda_stream)
    raw.call("cuStreamBeginCapture_v2", capturing, 2)
    error = refusal(RuntimeError, lambda: split_device_green_ctx("cuda:0", 1, 8))
    graph = ctypes.c_void_p()
    raw.call("cuStreamEndCapture", capturing, ctypes.byref(graph))
    raw.call("cuGraphDestroy", graph)
    assert "is capturing a graph" in str(error)


def test_a_split_next_to_a_living_one_warns_of_the_shared_sms(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, _ = split_device_green_ctx("cuda:0", 2, 8)
    for split in (
        lambda: split_device_green_ctx("cuda:0", 1, 16),
        lambda: split_device_green_ctx_by_sm_count("cuda:0", [24]),
    ):
        monkeypatch.setattr(lending, "_told", set())  # else once for all of them
        with pytest.warns(ResourceOverlapWarning) as caught:
            split()
        assert {warning.filename for warning in caught} == {__file__}
    del streams


def test_flashinfers_tests_find_the_drop_in_in_its_place(tmp_path: Path) -> None:
    theirs = tmp_path / "test_theirs.py"
    theirs.write_text(
        "import flashinfer.green_ctx as green_ctx\n"
        "from flashinfer.green_ctx import split_device_green_ctx\n"
        "def test_which():\n"
        "    assert split_device_green_ctx is green_ctx.split_device_green_ctx\n"
        "    assert green_ctx.__name__ == 'cuda_gctx.compat.flashinfer'\n"
    )
    (tmp_path / "conftest.py").write_text("import flashinfer.jit\n")
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "hardware" / "upstream_tests.py", "--flashinfer", theirs],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# Rows of the table of refusals that no other test runs.
REFUSED: list[tuple[type[Exception], Callable[[], Any]]] = [
    (ValueError, lambda: split_resource_by_sm_count(0, get_device_resource(0), [0])),
    (ValueError, lambda: split_resource(get_device_resource(0), 0, 8)),
    (RuntimeError, lambda: split_resource(get_device_resource(0), 1, 1 << 40)),
    (TypeError, lambda: split_resource(get_device_resource(0), 1.0, 8)),  # type: ignore[arg-type]
    (TypeError, lambda: split_resource(get_device_resource(0), True, 8)),
    (TypeError, lambda: split_resource(object(), 1, 8)),  # type: ignore[arg-type]
    (TypeError, lambda: create_green_ctx_streams(0, [object()])),  # type: ignore[list-item]
    (RuntimeError, lambda: get_locality_domain_count("cuda:99")),
    (ValueError, lambda: get_locality_domain_count("cpu")),
    (TypeError, lambda: split_device_green_ctx_by_locality_domain("cuda:0", 1)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("error", "call"), REFUSED)
def test_refusal_is_the_one_of_the_table(
    torch: Any, dev: Device, error: type[Exception], call: Callable[[], Any]
) -> None:
    refusal(error, call)
