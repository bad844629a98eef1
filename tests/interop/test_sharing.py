"""check(): what two partitions must not share is found in the objects that each of them uses.

torch is played by classes with the attributes that check() reads. test_libraries_on_gpu.py asks torch itself.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cuda_gctx.interop import check
from cuda_gctx.interop.sharing import CublasHandle


@dataclass
class Tensor:
    """Rows of `columns` floats at an address, `apart` floats from each other."""

    address: int
    rows: int = 1
    columns: int = 16
    apart: int = 16
    is_cuda: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def stride(self) -> tuple[int, int]:
        return self.apart, 1

    def numel(self) -> int:
        return self.rows * self.columns

    def data_ptr(self) -> int:
        return self.address

    def element_size(self) -> int:
        return 4


@dataclass(eq=False)
class ProcessGroup:
    group_name: str
    backend: str = "nccl"


@dataclass(eq=False)
class CUDAGraph:
    number: int

    def pool(self) -> tuple[int, int]:
        return 0, self.number


class Layer:
    """A layer with a weight, and with what a quantised GEMM keeps for the locks of its blocks."""

    def __init__(self, weight: Tensor, workspace: Tensor) -> None:
        self._parameters = {"weight": weight}
        self.workspace = workspace


@dataclass
class Model:
    layers: list[Layer] = field(default_factory=list)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: dict[str, dict[str, Any]] = {
        "torch": {"Tensor": Tensor},
        "torch.cuda": {"CUDAGraph": CUDAGraph},
        "torch.distributed": {"ProcessGroup": ProcessGroup, "get_backend": lambda group: group.backend},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def kinds(**uses: Any) -> list[str]:
    return [one.kind for one in check(**uses).shared]


def test_one_communicator_in_two_partitions_is_found() -> None:
    group, other = ProcessGroup("0"), ProcessGroup("1")
    report = check(decode=[group], prefill={"group": group})
    [shared] = report.shared
    assert (shared.kind, shared.places) == ("communicator", ("decode[0]", "prefill['group']"))
    assert "new_group(part)" in shared.advice
    assert "communicator" in str(report)
    assert kinds(decode=group, prefill=other) == []


def test_a_second_object_for_the_same_group_is_the_same_communicator() -> None:
    assert kinds(decode=ProcessGroup("0"), prefill=ProcessGroup("0")) == ["communicator"]


def test_a_group_that_communicates_through_the_host_may_be_shared() -> None:
    group = ProcessGroup("0", "gloo")
    assert kinds(decode=group, prefill=group) == []
    both = ProcessGroup("0", "cpu:gloo,cuda:nccl")
    assert kinds(decode=both, prefill=both) == ["communicator"]


def test_communicators_of_other_libraries_are_known_by_their_handles() -> None:
    class PyNcclCommunicator:
        def __init__(self, comm: object) -> None:
            self.comm = comm

    wrapped = PyNcclCommunicator(ctypes.c_void_p(4096))
    engine = SimpleNamespace(tp=SimpleNamespace(pynccl_comm=wrapped))
    assert kinds(decode=engine, prefill=PyNcclCommunicator(4096)) == ["communicator"]
    assert kinds(decode=engine, prefill=PyNcclCommunicator(8192)) == []


def test_one_cublas_handle_in_two_partitions_is_found() -> None:
    mine = CublasHandle(0x10, workspace=0x1000, workspace_bytes=0x100)
    assert kinds(decode=mine, prefill=mine) == ["cuBLAS handle", "cuBLAS workspace"]


def test_two_handles_whose_workspaces_overlap_are_found() -> None:
    first = CublasHandle(0x10, workspace=0x1000, workspace_bytes=0x100)
    second = CublasHandle(0x20, workspace=0x10FF, workspace_bytes=0x100)
    third = CublasHandle(0x30, workspace=0x1100, workspace_bytes=0x100)
    assert kinds(decode=first, prefill=second) == ["cuBLAS workspace"]
    assert kinds(decode=first, prefill=third) == []
    assert kinds(decode=CublasHandle(0x10), prefill=CublasHandle(0x20)) == []


def test_graphs_with_one_pool_are_found() -> None:
    assert kinds(decode=CUDAGraph(1), prefill=CUDAGraph(1)) == ["memory pool of graphs"]
    assert kinds(decode=CUDAGraph(1), prefill=CUDAGraph(2)) == []
    graph = CUDAGraph(1)
    assert kinds(decode=graph, prefill=graph) == ["CUDA graph", "memory pool of graphs"]


def graphed_callable(graph: CUDAGraph) -> Any:
    """As torch.cuda.make_graphed_callables does: a function that calls a class that is made inside a function."""

    class Graphed:
        @staticmethod
        def forward() -> CUDAGraph:
            return graph

    def functionalized() -> Any:
        return Graphed.forward()

    return functionalized


def test_a_module_that_was_captured_twice_with_one_pool_is_found() -> None:
    first, second = SimpleNamespace(), SimpleNamespace()
    first.forward = graphed_callable(CUDAGraph(1))
    second.forward = partial(graphed_callable(CUDAGraph(1)))
    assert kinds(decode=first, prefill=second) == ["memory pool of graphs"]
    second.forward = graphed_callable(CUDAGraph(2))
    assert kinds(decode=first, prefill=second) == []


def test_lock_arrays_are_found_and_weights_may_be_shared() -> None:
    weight = Tensor(0x1000)
    shared, own = Tensor(0x2000), Tensor(0x3000)
    first, second = Model([Layer(weight, shared)]), Model([Layer(weight, shared)])
    [found] = check(decode=first, prefill=second).shared
    assert found.kind == "scratch memory"
    assert found.places == ("decode.layers[0].workspace", "prefill.layers[0].workspace")
    assert kinds(decode=first, prefill=Model([Layer(weight, own)])) == []


def test_buffers_of_a_module_have_the_names_of_attributes() -> None:
    inner = SimpleNamespace(_parameters={}, _buffers={"locks": Tensor(0x1000)}, _modules={})
    module = SimpleNamespace(_parameters={"weight": Tensor(0x2000)}, _buffers={}, _modules={"0": inner})
    [found] = check(decode=module, prefill=module).shared
    assert found.places == ("decode.0.locks", "prefill.0.locks")


@pytest.mark.parametrize("name", ["lock", "locks", "workspace", "semaphores", "barrier", "counters", "scratch"])
def test_memory_that_kernels_write_to_is_known_by_its_name(name: str) -> None:
    layer = SimpleNamespace(**{f"sm_{name}": Tensor(0x1000), f"{name}smith": Tensor(0x2000)})
    [found] = check(decode=layer, prefill=layer).shared
    assert found.places == (f"decode.sm_{name}", f"prefill.sm_{name}")


def test_weights_in_a_list_may_be_shared() -> None:
    model = SimpleNamespace(weights=[Tensor(0x1000), (Tensor(0x2000),)])
    assert kinds(decode=model, prefill=model) == []


def test_the_same_model_in_two_partitions_shares_its_workspaces() -> None:
    model = Model([Layer(Tensor(0x1000), Tensor(0x2000)), Layer(Tensor(0x4000), Tensor(0x5000))])
    assert kinds(decode=model, prefill=model) == ["scratch memory"] * 2


def test_tensors_that_are_given_count_if_their_memory_overlaps() -> None:
    whole = Tensor(0x1000, rows=4, apart=32)
    assert kinds(a=whole, b=[Tensor(0x1000 + 4 * (3 * 32 + 15), columns=1)]) == ["scratch memory"]
    assert kinds(a=whole, b=[Tensor(0x1000 + 4 * (3 * 32 + 16), columns=1)]) == []
    assert kinds(a=whole, b=Tensor(0x1000, is_cuda=False)) == []


def test_arrays_of_other_libraries_count_too() -> None:
    class Array:
        def __init__(self, address: int, strides: tuple[int, ...] | None) -> None:
            self.described = {"data": (address, False), "shape": (4, 8), "strides": strides, "typestr": "<f8"}

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return self.described

    inside = Array(0x1000 + 8 * 31, None)
    assert kinds(a=Array(0x1000, None), b=inside) == ["scratch memory"]
    assert kinds(a=Array(0x1000, None), b=Array(0x1000 + 8 * 32, None)) == []
    # Backwards from its address.
    assert kinds(a=Array(0x1000, (-64, 8)), b=Array(0x1000 - 3 * 64, None)) == ["scratch memory"]


def test_all_pairs_of_partitions_are_compared_and_objects_that_refer_to_each_other_are_searched_once() -> None:
    group = ProcessGroup("0")
    ring: dict[str, Any] = {"group": group}
    ring["self"] = ring
    report = check(a=ring, b=ProcessGroup("1"), c=[group])
    assert [one.places for one in report.shared] == [("a['group']", "c[0]")]
    assert report.seen["communicator"] == 3


def test_a_report_says_what_was_compared() -> None:
    assert str(check(a=[ProcessGroup("0")], b=[1, "text"])) == "nothing is shared (compared: 1 x communicator)"
    assert str(check(a=[], b=[])) == "nothing is shared (compared: nothing it knows)"


def test_graphs_without_a_capture_and_groups_that_are_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("without a preceding successful capture")

    monkeypatch.setattr(CUDAGraph, "pool", fail)
    assert kinds(decode=CUDAGraph(1), prefill=CUDAGraph(1)) == []
    monkeypatch.setattr(sys.modules["torch.distributed"], "get_backend", fail)
    group = ProcessGroup("0")
    assert kinds(decode=group, prefill=group) == []


def test_a_report_says_if_the_search_came_to_no_end() -> None:
    deep: Any = ProcessGroup("0")
    for _ in range(20):
        deep = [deep]
    report = check(a=deep, b=deep)
    assert (report.shared, report.is_complete) == ((), False)
    assert "not searched: beyond" in str(report)
    assert check(a=[[1]], b=[{}]).is_complete


def test_one_partition_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least two"):
        check(a=[])
