"""Files of the recorder: the order of records does not matter, and a killed process leaves a file that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_gctx.tracing._lanes import OUTSIDE, lanes_of
from cuda_gctx.tracing._records import Process, Tag, read_process
from cuda_gctx.tracing._summary import LaneSummary, summary

from .recorded import HEAD, SHIFT, record

MS = 1_000_000


def process_of(data: bytes, folder: Path) -> Process:
    file = folder / "41.loop.py.records"
    file.write_bytes(data)
    return read_process(file)


def summaries(process: Process) -> dict[str, LaneSummary]:
    found = summary([process], lanes_of([process], {(41, 2): "control"}), [])
    return {lane.partition: lane for lane in found.lanes}


def test_a_kernel_of_a_graph_was_queued_when_the_graph_was_launched(tmp_path: Path) -> None:
    kernel = record(Tag.KERNEL, context=2, stream=7, correlation=9, start=300, end=400, name=1, graph=5)
    process = process_of(HEAD + kernel + record(Tag.LAUNCH, correlation=9, start=180, end=190), tmp_path)
    [items] = process.streams.values()
    [item] = items
    assert (item.name, item.start, item.end, item.graph) == ("gemm", 300 + SHIFT, 400 + SHIFT, 5)
    assert item.start - item.queued == 120


@pytest.mark.parametrize("is_first", [True, False])
def test_a_kernel_was_queued_when_it_was_launched(is_first: bool, tmp_path: Path) -> None:
    kernel = record(Tag.KERNEL, context=2, stream=7, correlation=9, start=300, end=400, name=1)
    launch = record(Tag.LAUNCH, correlation=9, start=180, end=190)
    process = process_of(HEAD + (launch + kernel if is_first else kernel + launch), tmp_path)
    assert summaries(process)["control"].queueing_p50_ns == 120


def test_a_graph_without_times_stands_at_its_launch(tmp_path: Path) -> None:
    graph = record(Tag.GRAPH, context=2, stream=7, correlation=9, graph=5)
    process = process_of(HEAD + record(Tag.LAUNCH, correlation=9, start=180, end=190) + graph, tmp_path)
    [items] = process.streams.values()
    [item] = items
    assert (item.start, item.end) == (180 + SHIFT, 180 + SHIFT)
    control = summaries(process)["control"]
    assert (control.graphs, control.busy_ns) == (1, 0)


@pytest.mark.parametrize("work_ms", [10, 950])
def test_waits_for_work_that_was_not_recorded_are_told(work_ms: int, tmp_path: Path) -> None:
    kernel = record(Tag.KERNEL, context=2, stream=7, start=1000, end=1000 + work_ms * MS, name=1)
    waits = [record(Tag.WAIT, context=1, start=1000 + k * 250 * MS, end=1000 + (k + 1) * 250 * MS) for k in range(4)]
    process = process_of(HEAD + kernel + b"".join(waits), tmp_path)
    found = summary([process], lanes_of([process], {}), [])
    assert found.processes[0].waited_for_nothing_ns == (1000 - work_ms) * MS
    assert ("waited 990 ms" in str(found)) == (work_ms == 10)


def test_the_most_certain_pair_of_clocks_counts(tmp_path: Path) -> None:
    assert process_of(HEAD, tmp_path).error_ns == 9


def test_a_launch_that_is_not_known_gives_no_queueing(tmp_path: Path) -> None:
    kernel = record(Tag.KERNEL, context=2, stream=7, correlation=9, start=300, end=400, name=1)
    control = summaries(process_of(HEAD + kernel, tmp_path))["control"]
    assert (control.kernels, control.queueing_p50_ns) == (1, None)


@pytest.mark.parametrize("cut", [1, 30, 55, 57, 111])
def test_a_file_that_ends_inside_a_record_keeps_the_records_before(tmp_path: Path, cut: int) -> None:
    kernel = record(Tag.KERNEL, context=2, stream=7, start=300, end=400, name=1)
    last = record(Tag.TEXT, "tanh", correlation=3)
    process = process_of(HEAD + kernel + last[:-cut], tmp_path)
    assert (process.has_ended, summaries(process)["control"].kernels) == (False, 1)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format 2, and this version reads 1"):
        process_of(record(Tag.PROGRAM, "loop.py", name=2), tmp_path)


KERNELS = st.lists(
    st.tuples(st.sampled_from((1, 2)), st.integers(3, 5), st.integers(1, 2000), st.integers(0, 300), st.integers(1, 2)),
    max_size=40,
)


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(KERNELS)
def test_any_order_of_records_gives_the_sums(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[tuple[int, int, int, int, int]]
) -> None:
    data = b"".join(
        record(Tag.LAUNCH, correlation=number, start=1)
        + record(
            Tag.KERNEL, context=context, stream=stream, correlation=number, start=start, end=start + length, name=name
        )
        for number, (context, stream, start, length, name) in enumerate(kernels, 1)
    )
    process = process_of(HEAD + data, tmp_path_factory.mktemp("records"))
    for items in process.streams.values():
        assert list(items.starts) == sorted(items.starts)
        assert all(item.end - item.start <= 300 for item in items)
    found = summary([process], lanes_of([process], {(41, 2): "control"}), [])
    for context, partition in ((1, OUTSIDE), (2, "control")):
        ran = [kernel for kernel in kernels if kernel[0] == context]
        lanes = [lane for lane in found.lanes if lane.partition == partition]
        assert sum(lane.kernels for lane in lanes) == len(ran)
        busy = {time for _, _, start, length, _ in ran for time in range(start, start + length)}
        assert sum(lane.busy_ns for lane in lanes) == len(busy)
        queueing = sorted(start - 1 for _, _, start, _, _ in ran)
        if queueing:
            assert lanes[0].queueing_p50_ns == queueing[(len(queueing) - 1) // 2]
        for number, name in ((1, "gemm"), (2, "relu")):
            total = sum(length for _, _, _, length, kernel in ran if kernel == number)
            assert total == sum(k.total_ns for k in found.kernels if (k.name, k.partition) == (name, partition))
