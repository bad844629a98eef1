"""The kernels through the compiler that users have at run time, for the chips they are written for."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx.comm import MixedCommOp, ParallelInfo, _compile
from cuda_gctx.comm._compile import (
    BETWEEN_NODES,
    FLAT,
    FOLDER,
    KERNELS,
    PLANS,
    WITHIN_NODES,
    Compiled,
    compile_kernels,
    source,
)
from cuda_gctx.comm._protocol import (
    NODE_THREADS,
    Element,
    Geometry,
    NodeStep,
    Packing,
    defines,
    node_defines,
    region_of,
)
from cuda_gctx.comm._structs import STRUCTS_OF, declarations

from .gpu_cases.one_kernel import in_one
from .topologies import TOPOLOGIES, name_of


@pytest.fixture(scope="module")
def compiler() -> str:
    """The version of NVRTC; the tests that need it are skipped where it is not installed."""
    nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings")
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # cuda.pathfinder found no library
        pytest.skip(f"needs NVRTC (pip install nvidia-cuda-nvrtc): {str(error).splitlines()[0]}")
    if (major, minor) < (12, 8):
        pytest.skip(f"NVRTC {major}.{minor} does not know sm_100: needs 12.8")
    return f"{major}.{minor}"


# Where all ranks meet, plans of several nodes are those of one node, with the ranks in another order.
CASES = [
    (one, op)
    for one in TOPOLOGIES
    if one.inter_size == 1 and one.world_size in (2, 8)
    for op in (*one.valid_ops, *([MixedCommOp.ALLTOALL] if one.dp_size == 8 else []))
]


# Two nodes of four ranks; four nodes of two.
NODES = {(4, 1, 2, 1), (2, 1, 2, 2)}  # local tp x dp, inter tp x dp
NODE_CASES = [
    (one, op, step)
    for one in TOPOLOGIES
    if (one.local_tp_size, one.local_dp_size, one.inter_tp_size, one.inter_dp_size) in NODES
    for op in one.valid_ops
    for step in NodeStep
]


def ids(value: Any) -> str:
    return name_of(value) if isinstance(value, ParallelInfo) else value.name


CAPABILITIES = [(9, 0), (10, 0)]


# In every run, those of eight ranks, which take more registers than those of two, each for one of the chips.
@pytest.mark.parametrize(
    ("info", "op", "capability"),
    [
        pytest.param(
            *(info, op, capability),
            marks=[] if info.world_size == 8 and at == number % len(CAPABILITIES) else pytest.mark.long,
            id=f"{name_of(info)}-{op.name}-sm_{10 * capability[0]}",
        )
        for number, (info, op) in enumerate(CASES)
        for at, capability in enumerate(CAPABILITIES)
    ],
)
def test_kernels_compile_without_spills(
    info: ParallelInfo, op: MixedCommOp, capability: tuple[int, int], compiler: str
) -> None:
    how: dict[str, Any] = {"element": Element((info.tp_size + op) % 4), "packing": Packing(2 + capability[0] % 2)}
    words = defines(info, op, Geometry(info.world_size, 1 << 19, 1 << 26), **how)
    demand_no_spills(words, capability, FLAT)


def words_of_many(world: int) -> dict[str, str]:
    """Of the packing and the operation that need most registers."""
    info = ParallelInfo.of(0, world, 0, world, 0, 1, 1, world, 1, 1)
    return defines(info, MixedCommOp.ALLGATHER, Geometry(world, 1 << 19, 1 << 26), element=Element.BFLOAT16)


@pytest.mark.parametrize(("world", "threads"), [(9, 512), (16, 512), (17, 256), (32, 256)])
def test_more_ranks_have_fewer_threads(world: int, threads: int) -> None:
    assert int(words_of_many(world)["ONE_EXCHANGE_THREADS"]) == threads


# In every run, the most ranks for each number of threads.
@pytest.mark.parametrize(
    "world", [pytest.param(9, marks=pytest.mark.long), 16, pytest.param(17, marks=pytest.mark.long), 32]
)
def test_many_ranks_have_no_spills(world: int, compiler: str) -> None:
    words = words_of_many(world)
    threads = int(words["ONE_EXCHANGE_THREADS"])
    report = compile_kernels(words, (9, 0), ("packets.cuh", "one_exchange.cuh")).report("one_exchange")
    assert (report.spill_bytes, report.stack_bytes) == (0, 0)
    # All of them are on an SM at once: a warp has registers in units of 256.
    assert threads // 32 * -(-report.registers * 32 // 256) * 256 <= 65536


def demand_no_spills(words: dict[str, str], capability: tuple[int, int], files: tuple[str, ...]) -> None:
    compiled = compile_kernels(words, capability, files)
    for kernel in (one for file in files for one in KERNELS[file]):
        report = compiled.report(kernel)
        assert report.spill_bytes == 0
        assert report.stack_bytes == 0  # arrays indexed by variables would be there
        assert 0 < report.registers <= 128
    assert compiled.code.code[:4] == b"\x7fELF"


@pytest.mark.parametrize(("info", "op", "step"), NODE_CASES, ids=ids)
def test_kernels_of_the_hierarchical_form_compile_without_spills(
    info: ParallelInfo, op: MixedCommOp, step: NodeStep, compiler: str
) -> None:
    geometry, region = Geometry(info.world_size, 1 << 19, 1 << 26), region_of(info, 1 << 26)
    words = node_defines(info, op, step, geometry, region, element=Element((info.tp_size + op) % 4))
    files = BETWEEN_NODES if step is NodeStep.EXCHANGE else WITHIN_NODES
    demand_no_spills(words, (9, 0) if op % 2 else (10, 0), files)


def test_the_kernels_of_all_ranks_compile_as_one(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = ParallelInfo.of(0, 2, 0, 2, 0, 1, 2, 1, 1, 1)
    words = defines(info, MixedCommOp.ALLREDUCE, Geometry(2, 1 << 16, 1 << 16), element=Element.FLOAT32)
    text = source(words)
    monkeypatch.setattr(_compile, "source", lambda *_: in_one(text))
    code = compile_kernels(words, (9, 0)).code.code
    kernels = [name for file in FLAT for name in KERNELS[file]]
    assert all(f"{name}_of_all".encode() in code for name in kernels)


# What orders accesses, as the compiler passes it on to the assembler.
ORDERED = re.compile(
    r"(?<![\w.])(griddepcontrol\.wait|fence\.[\w.:]+|barrier\.[\w.:]+|bar\.[\w.:]+|cp\.async\.bulk\.wait[\w.:]+|"
    r"(?:st|ld|mbarrier|atom)\.[\w.]*(?:acquire|release)[\w.:]*|(?:st|ld)\.relaxed\.[\w.:]*(?:b128|v2))"
)
# The release that reports a fault is there once for each wait, and once for each place that leaves no numbers.
COUNTS = {
    "one_exchange": {
        "griddepcontrol.wait": 1,
        "bar.warp.sync": 2,
        "bar.sync": 2,
        "st.relaxed.sys.global.b128": 9,
        "st.release.sys.global.b64": 5,
        "ld.relaxed.sys.global.b128": 6,
        "bar.red.and.pred": 2,
    },
    "two_exchange": {
        "bar.sync": 3,
        "fence.mbarrier_init.release.cluster": 1,
        "st.release.sys.global.b64": 11,
        "ld.acquire.sys.global.b64": 2,
        "bar.red.and.pred": 7,
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64": 2,
        "fence.proxy.async.shared::cta": 1,
        "mbarrier.arrive.release.cta.shared::cta.b64": 1,
        "fence.proxy.async": 2,
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64": 2,
        "cp.async.bulk.wait_group.read": 1,
        "cp.async.bulk.wait_group": 1,
        "fence.acq_rel.gpu": 5,
    },
    "begin_plan": {"st.release.sys.global.b64": 1, "ld.acquire.sys.global.b64": 1},
    "end_plan": {"st.release.sys.global.b64": 3},
    "look_for_torn_packets": {"st.relaxed.sys.global.b128": 6, "ld.relaxed.sys.global.b128": 3},
    "exchange_pieces": {
        "bar.sync": 2,
        "st.release.sys.global.b64": 6,
        "ld.acquire.sys.global.b64": 2,
        "bar.red.and.pred": 3,
        "fence.acq_rel.sys": 1,
        "fence.acq_rel.gpu": 1,
    },
}


def ptx(words: dict[str, str], files: tuple[str, ...]) -> str:
    """The kernels before they are assembled."""
    nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings")

    def made(result: tuple[Any, ...]) -> Any:
        assert int(result[0]) == 0
        return result[-1]

    program = made(nvrtc.nvrtcCreateProgram(source(words, files).encode(), b"kernels.cu", 0, None, None))
    made(nvrtc.nvrtcCompileProgram(program, 2, [b"-std=c++17", b"-arch=compute_90"]))
    text = b" " * made(nvrtc.nvrtcGetPTXSize(program))
    made(nvrtc.nvrtcGetPTX(program, text))
    return text.decode()


def test_the_instructions_that_order_are_those_of_the_kernels(compiler: str) -> None:
    flat = next(one for one in TOPOLOGIES if (one.world_size, one.tp_size, one.inter_size) == (4, 4, 1))
    nodes = next(one for one in TOPOLOGIES if (one.local_size, one.inter_size) == (2, 2))
    geometry, region = Geometry(4, 1 << 19, 1 << 26), region_of(nodes, 1 << 26)
    text = ptx(defines(flat, flat.valid_ops[0], geometry, element=Element.BFLOAT16), FLAT)
    exchange = nodes, nodes.valid_ops[0], NodeStep.EXCHANGE, geometry, region
    text += ptx(node_defines(*exchange, element=Element.BFLOAT16), BETWEEN_NODES)
    assert ordered(text) == COUNTS
    halves = ordered(
        ptx(defines(flat, flat.valid_ops[0], geometry, element=Element.BFLOAT16, packing=Packing.HALVES), FLAT)
    )
    assert halves["one_exchange"] == {name.replace(".b128", ".v2"): n for name, n in COUNTS["one_exchange"].items()}


def ordered(text: str) -> dict[str, Counter[str]]:
    """How often each kernel has each instruction that orders."""
    kernels = re.findall(r"\.entry (\w+)\((.*?)(?=\.entry|\Z)", text, re.DOTALL)
    return {name: Counter(ORDERED.findall(body)) for name, body in kernels}


def registers_of(code: bytes) -> list[int]:
    """Of each function of a linked file: the attribute with that number and its size, a symbol, and the count."""
    return [struct.unpack_from("<II", code, found.end())[1] for found in re.finditer(rb"\x04\x2f\x08\x00", code)]


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=["sm_90", "sm_100"])
def test_the_exchange_between_nodes_links_with_the_device_library_of_nvshmem(
    capability: tuple[int, int], compiler: str
) -> None:
    info = next(one for one in TOPOLOGIES if one.inter_size == 4)
    geometry, region = Geometry(info.world_size, 1 << 19, 1 << 26), region_of(info, 1 << 26)
    words = node_defines(info, info.valid_ops[0], NodeStep.EXCHANGE, geometry, region, element=Element.BFLOAT16)
    try:
        compiled = compile_kernels(words | {"THROUGH_NVSHMEM": "1"}, capability, BETWEEN_NODES, with_nvshmem=True)
    except RuntimeError as error:
        if "NVSHMEM's device calls need" not in str(error):
            raise
        pytest.skip(f"{error}; all of it is 110 MB, too much to be installed for the tests")
    report = compiled.report("exchange_pieces")
    assert (report.spill_bytes, report.stack_bytes) == (0, 0)
    # Those of what it calls count too: with more, it could not be launched.
    assert 0 < max(registers_of(compiled.code.code)) <= 65536 // NODE_THREADS
    for name in (b"nvshmemi_device_state_d", b"exchange_pieces"):
        assert name in compiled.code.code


def test_the_first_and_last_kernel_of_a_plan_compile_for_more_ranks_than_can_meet(compiler: str) -> None:
    info = ParallelInfo.of(0, 64, 0, 8, 0, 8)
    words = defines(info, info.valid_ops[0], Geometry(64, 1 << 19, 1 << 26), element=Element.BFLOAT16)
    demand_no_spills(words, (9, 0), PLANS)


def test_spills_are_seen_in_the_report() -> None:
    log = (
        "ptxas info    : Function properties for one_exchange\n"
        "ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n"
        "ptxas info    : Used 32 registers, used 1 barriers\n"
    )
    report = Compiled(None, log).report("one_exchange")
    assert (report.registers, report.spill_bytes, report.stack_bytes) == (32, 44, 16)
    with pytest.raises(RuntimeError, match="does not mention two_exchange"):
        Compiled(None, log).report("two_exchange")


def test_no_source_uses_multicast() -> None:
    # It can put the GPUs of a whole server out of service.
    for file in FOLDER.glob("*.cu*"):
        assert not {"multimem", "multicast"} & set(file.read_text().lower().replace(".", " ").split()), file


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_struct_whose_fields_lie_elsewhere_on_the_host_does_not_compile(tmp_path: Path) -> None:
    words = {"WORLD": "3", "SOURCES": "2", "TARGETS": "1", "NODES": "4"}
    head = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    head += "".join(f"#define {name} {value}\n" for name, value in words.items())
    text = head + declarations(words, tuple(STRUCTS_OF))
    made = tmp_path / "structs.cpp"
    compiler = ["g++", "-std=c++17", "-fsyntax-only", str(made)]
    made.write_text(text)
    subprocess.run(compiler, check=True)
    swapped = "u64 input;\n  u64 output;", "u64 output;\n  u64 input;"
    for old, new in (("u32 rank;", "u64 rank;"), swapped, ("piece[NODES]", "piece[1]")):
        made.write_text(text.replace(old, new))
        assert made.read_text() != text
        assert subprocess.run(compiler, stderr=subprocess.DEVNULL).returncode != 0, new


def test_source_begins_with_the_defines_that_host_and_kernels_share() -> None:
    info = next(one for one in TOPOLOGIES if one.use_mixed)
    geometry = Geometry(info.world_size, 4096, 4096)
    text = source(defines(info, info.valid_ops[0], geometry, element=Element.FLOAT16))
    assert f"#define SLOT_BYTES {geometry.slot_bytes}\n" in text
    assert f"#define MAILBOX_START {geometry.MAILBOX_START}\n" in text
    assert "#define ORDER {{" in text
