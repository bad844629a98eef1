"""Metrics of partitions, read by the parser of Prometheus's own client."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_gctx.tracing._live import LiveMetrics
from cuda_gctx.tracing._metrics import Labels, LaneMeter, MetricsFile, MetricsServer, exposition, published
from cuda_gctx.tracing._records import Tag

from .recorded import HEAD, record

# Machines with a card have no package index: the tests of metrics run where the test requirements are installed.
parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")

CONTROL: Labels = (("partition", "control"), ("program", "loop.py"), ("pid", "41"), ("device", "0"))
PROCESS: Labels = (("program", "loop.py"), ("pid", "41"))


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, labels: Labels) -> float:
    return values(text)[name, frozenset(labels)]


def test_a_partition_has_its_sms_kernels_and_busy_seconds() -> None:
    meter = LaneMeter(sm_count=16)
    for start, end in ((0, 1_000_000_000), (500_000_000, 1_500_000_000), (3_000_000_000, 4_000_000_000)):
        meter.add_span(start, end)
        meter.add_kernel(None)
    text = exposition({CONTROL: meter}, {PROCESS: 3}, {PROCESS: 7})
    assert value(text, "cuda_gctx_sms", CONTROL) == 16
    assert value(text, "cuda_gctx_kernels_total", CONTROL) == 3
    assert value(text, "cuda_gctx_busy_seconds_total", CONTROL) == 2.5
    assert value(text, "cuda_gctx_switches_total", PROCESS) == 3
    assert value(text, "cuda_gctx_dropped_records_total", PROCESS) == 7


def test_queueing_is_a_histogram_in_seconds() -> None:
    meter = LaneMeter()
    for queueing_ns in (900, 1_000, 1_001, 40_000, 2_000_000_000, None):
        meter.add_kernel(queueing_ns)
    text = exposition({CONTROL: meter}, {}, {})

    def below(bound: str) -> float:
        return value(text, "cuda_gctx_queueing_seconds_bucket", (*CONTROL, ("le", bound)))

    assert [below(bound) for bound in ("1e-06", "2.5e-06", "5e-05", "1", "+Inf")] == [2, 3, 4, 4, 5]
    assert value(text, "cuda_gctx_queueing_seconds_count", CONTROL) == 5
    assert value(text, "cuda_gctx_queueing_seconds_sum", CONTROL) == pytest.approx(2.000042901)
    assert value(text, "cuda_gctx_kernels_total", CONTROL) == 6


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=30))
def test_no_time_counts_twice_and_ordered_work_counts_whole(spans: list[tuple[int, int]]) -> None:
    arrived, ordered = LaneMeter(), LaneMeter()
    for start, length in spans:
        arrived.add_span(start, start + length)
    for start, length in sorted(spans):
        ordered.add_span(start, start + length)
    busy = len({time for start, length in spans for time in range(start, start + length)})
    assert ordered.busy_ns == busy
    assert arrived.busy_ns <= busy


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30))
def test_any_name_of_a_partition_is_a_label(name: str) -> None:
    text = exposition({(("partition", name),): LaneMeter(sm_count=8)}, {}, {})
    assert value(text, "cuda_gctx_sms", (("partition", name),)) == 8


def test_a_server_answers_with_the_present_metrics_on_the_loopback_interface() -> None:
    switches = {PROCESS: 1}
    with MetricsServer("127.0.0.1", 0, lambda: exposition({}, switches, {})) as server:
        for count in (1, 2):
            switches[PROCESS] = count
            with urllib.request.urlopen(server.url, timeout=10) as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert value(response.read().decode(), "cuda_gctx_switches_total", PROCESS) == count
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(server.url.removesuffix("/metrics") + "/other", timeout=10)
        refused.value.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=10)


@pytest.mark.parametrize("where", ["0", "127.0.0.1:0", "localhost:0"])
def test_a_port_is_one_of_the_loopback_interface_unless_a_host_is_named(where: str) -> None:
    place = published(where, str)
    assert isinstance(place, MetricsServer)
    with place:
        assert place.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("where", ["metrics.prom", "./9100", "folder/a:9100"])
def test_other_words_are_files(where: str) -> None:
    assert str(published(where, str)) == str(Path(where))


def test_a_port_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match=r"65536 is not a port.*write \./65536"):
        published("65536", str)


def test_a_file_holds_the_metrics_of_the_end(tmp_path: Path) -> None:
    file, switches = tmp_path / "metrics.prom", {PROCESS: 1}
    with MetricsFile(file, lambda: exposition({}, switches, {})):
        assert value(file.read_text(), "cuda_gctx_switches_total", PROCESS) == 1
        switches[PROCESS] = 2
    assert value(file.read_text(), "cuda_gctx_switches_total", PROCESS) == 2
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_in_no_folder_is_an_error_at_the_beginning(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), MetricsFile(tmp_path / "none" / "metrics.prom", str):
        pytest.fail("the block must not begin")


# ---- files that grow


def kernel(**fields: int) -> bytes:
    return record(Tag.KERNEL, context=2, stream=7, name=1, **fields)


def test_metrics_grow_with_the_files_of_the_recorder(tmp_path: Path) -> None:
    data = (
        HEAD
        + record(Tag.LAUNCH, correlation=9, start=1_000)
        + kernel(correlation=9, start=3_000, end=5_000)
        + record(Tag.LAUNCH, correlation=10, start=5_500)
        + kernel(correlation=10, start=6_000, end=8_000)
        + record(Tag.COPY, context=1, start=100, end=200)
        + record(Tag.DROPPED, size=4)
    )
    file = tmp_path / "41.loop.py.records"
    (tmp_path / "41.marks").write_text(
        '{"event": "open", "time": 1, "contexts": {"2": "control"}}\n'
        '{"event": "switch", "time": 2, "contexts": {"2": "control"}}\n'
    )
    live = LiveMetrics(tmp_path)
    assert values(live.text()) == {}
    for written in range(0, len(data) + 1, 100):  # also in the middle of records
        file.write_bytes(data[:written])
        live.text()
    file.write_bytes(data)
    text = live.text()

    assert value(text, "cuda_gctx_sms", CONTROL) == 16
    assert value(text, "cuda_gctx_kernels_total", CONTROL) == 2
    assert value(text, "cuda_gctx_busy_seconds_total", CONTROL) == pytest.approx(4e-6)
    assert value(text, "cuda_gctx_queueing_seconds_sum", CONTROL) == pytest.approx(2.5e-6)
    assert value(text, "cuda_gctx_switches_total", PROCESS) == 1
    assert value(text, "cuda_gctx_dropped_records_total", PROCESS) == 4
    outside = dict(CONTROL) | {"partition": "outside of all partitions"}
    assert value(text, "cuda_gctx_busy_seconds_total", tuple(outside.items())) == pytest.approx(1e-7)
    assert live.text() == text


def test_a_process_without_work_has_its_dropped_records(tmp_path: Path) -> None:
    (tmp_path / "41.loop.py.records").write_bytes(HEAD)
    assert value(LiveMetrics(tmp_path).text(), "cuda_gctx_dropped_records_total", PROCESS) == 0
