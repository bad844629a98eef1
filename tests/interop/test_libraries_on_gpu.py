"""Libraries themselves on a GPU: what check() finds in objects of torch, and which SM counts they have in a block."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx import Device, GraphSet
from cuda_gctx.interop import check
from cuda_gctx.interop.library_sms import settings
from cuda_gctx.measure.loop import TIMED
from cuda_gctx.tune import spin

from ..common import on_another_thread

# What the frameworks warn of is not the matter here.
pytestmark = [pytest.mark.gpu_only, pytest.mark.filterwarnings("default")]


def kinds(**uses: Any) -> list[str]:
    return [one.kind for one in check(**uses).shared]


def graphed(torch: Any, dev: Device, pool: Any) -> Any:
    layer = torch.nn.Linear(64, 64, device="cuda:0")
    sample = torch.randn(8, 64, device="cuda:0", requires_grad=True)
    return torch.cuda.make_graphed_callables(layer, (sample,), pool=pool)


def test_modules_that_torch_captured_with_one_pool_are_found(torch: Any, dev: Device) -> None:
    pool = torch.cuda.graph_pool_handle()
    first, second = graphed(torch, dev, pool), graphed(torch, dev, pool)
    own = graphed(torch, dev, torch.cuda.graph_pool_handle())
    assert "memory pool of graphs" in kinds(decode=first, prefill=second)
    assert kinds(decode=first, prefill=own) == []


def test_graphs_of_a_graph_set_share_no_pool(torch: Any, dev: Device) -> None:
    x = torch.ones(64, device="cuda:0")
    with dev.partition(16, 16) as parts, GraphSet(framework="torch") as graphs:
        for part in parts:
            graphs.capture(part, "step", lambda part: x + 1)
        first, second = graphs._entries.values()
        report = check(decode=first.graph, prefill=second.graph)
    assert report.shared == ()
    assert report.seen["CUDA graph"] == 2


def test_lock_arrays_of_layers_are_found_and_weights_are_not(torch: Any, dev: Device) -> None:
    layer = torch.nn.Linear(64, 64, device="cuda:0")
    other = torch.nn.Linear(64, 64, device="cuda:0")
    other.weight = layer.weight
    layer.workspace = torch.zeros(132, dtype=torch.int32, device="cuda:0")
    other.register_buffer("workspace", layer.workspace[100:])
    [found] = check(decode=layer, prefill=other).shared
    assert found.places == ("decode.workspace", "prefill.workspace")
    other.workspace = torch.zeros(132, dtype=torch.int32, device="cuda:0")
    assert kinds(decode=layer, prefill=other) == []


def test_settings_are_what_the_libraries_themselves_report(torch: Any, dev: Device) -> None:
    driver = pytest.importorskip("triton", reason="Triton is not installed here").runtime.driver
    torch.cuda.init()

    def reported() -> int:
        count: int = driver.active.utils.get_device_properties(0)["multiprocessor_count"]
        return count

    def counts() -> dict[str, int | None]:
        return {one.library: one.sms for one in settings()}

    assert reported() == dev.sm_count
    with dev.partition(16) as parts:
        with parts[0].torch(library_sms="on"):
            assert reported() == 16
            assert on_another_thread(reported) == dev.sm_count
            print(settings())
            inside = counts()
        outside = counts()
    assert reported() == dev.sm_count
    names = ("cuBLAS of torch", "carve-out of torch", "Triton")
    assert [inside[name] for name in names] == [16, 16, 16]
    assert [outside[name] for name in names] == [dev.sm_count] * 3


def test_inductor_compiles_persistent_kernels_for_the_count_of_the_partition(torch: Any, dev: Device) -> None:
    utils = pytest.importorskip("torch._inductor.utils", reason="this torch has no Inductor")
    if not hasattr(utils, "get_num_sms"):
        pytest.skip("this torch has no persistent GEMMs")
    torch.cuda.init()
    with dev.partition(16) as parts:
        with parts[0].torch(library_sms="on"):
            assert utils.get_num_sms() == 16
        assert utils.get_num_sms() == dev.sm_count


def test_a_triton_kernel_in_a_block_runs_with_a_grid_of_the_partition(torch: Any, dev: Device) -> None:
    # Triton reads the source of a kernel from a file, and the names in it from the module.
    triton = pytest.importorskip("triton", reason="Triton is not installed here")
    from . import triton_kernels

    def programs(x: Any) -> int:
        utils = triton.runtime.driver.active.utils
        count: int = utils.get_device_properties(torch.cuda.current_device())["multiprocessor_count"]
        triton_kernels.count_programs[(count,)](x)
        return int(x.sum().item())

    with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
        assert programs(torch.zeros(1, dtype=torch.int32, device="cuda:0")) == 16
    assert programs(torch.zeros(1, dtype=torch.int32, device="cuda:0")) == dev.sm_count


def test_torchs_nccl_takes_a_policy_and_a_count(torch: Any, dev: Device) -> None:
    from cuda_gctx.interop.nccl import nccl_options

    with dev.partition(16) as parts:
        config = nccl_options(parts[0], ctas=4, cta_policy="zero").config
    assert (config.min_ctas, config.max_ctas, config.cta_policy) == (4, 4, 2)


@pytest.mark.alone
def test_blocks_of_cupys_fork_run_at_the_same_time_and_are_joined(dev: Device) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
    from cuda_gctx.interop.cupy import fork

    with dev.partition(8, 8) as parts:
        x = cupy.zeros(1 << 20)
        for part in parts[:2]:
            with part.cupy():
                x + 1
            spin(part.stream, 8, 10_000)
        dev.sync()
        begin = parts[0].stream.record(options=TIMED)
        parts[1].stream.wait(begin)
        results = []
        with fork() as start:
            for part in parts[:2]:
                with part.cupy(after=start):
                    spin(part.stream, 8, 20_000_000)
                    results.append(x + 1)
        ends = [part.stream.record(options=TIMED) for part in parts[:2]]
        assert float((results[0] + results[1]).sum()) == 2 << 20
        for end in ends:
            end.sync()
        assert max(end - begin for end in ends) < 36
