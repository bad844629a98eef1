"""``cuda-gctx trace`` on the software driver, whose CUPTI gives the same records as the real one."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .pftrace import Track, read_tracks

pytestmark = pytest.mark.sim_only

# Kernels in two partitions, outside of them, in a moved graph, and a copy within the device.
PROGRAM = """
import os, signal, sys, time
from cuda_gctx import Device, PartitionPool, tune

MS = 1_000_000
dev = Device(0)
with dev.partition(control=16, rest=None) as parts, dev.create_stream() as plain:
    tune.spin(parts.control.stream, 16, MS)
    tune.spin(parts.rest.stream, 116, MS)
    for _ in range(3):
        tune.spin(plain, 8, MS)
    dev.sync()
    with plain.capture() as capture:
        for _ in range(4):
            tune.spin(plain, 8, MS)
    with capture.graph.in_partition(parts.control) as moved:
        for _ in range(5):
            moved.launch(parts.control.stream)
        dev.sync()
if "killed" in sys.argv:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
if "switching" in sys.argv:
    with PartitionPool(dev) as pool:
        for control in (16, 32, 16):
            pool.switch(control=control, rest=None)
"""

# A graph of four kernels, captured outside of the partitions; tests append to it.
CAPTURED = """
from cuda_gctx import Device, tune
dev = Device(0)
with dev.partition(control=16, rest=None) as parts, dev.create_stream() as plain:
    with plain.capture() as capture:
        for _ in range(4):
            tune.spin(plain, 8, 1_000_000)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cuda_gctx.cli", "trace", *words]


def traced(*words: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0", **environment},
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done


def program(*words: str) -> list[str]:
    return ["--", sys.executable, "-c", PROGRAM, *words]


def summary(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(traced("--json", *words).stdout)
    return found


def lane(document: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [one for one in document["lanes"] if one["partition"] == name]
    return dict(found)


@dataclass(frozen=True)
class Recorded:
    """A run of the program: the summary, and the tracks of the file."""

    document: dict[str, Any]
    tracks: list[Track]

    def lane(self, name: str) -> dict[str, Any]:
        return lane(self.document, name)

    def track(self, name: str) -> Track:
        [found] = [track for track in self.tracks if track.name == name]
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    file = tmp_path_factory.mktemp("trace") / "trace.pftrace"
    done = traced("--json", "-o", str(file), *program("switching"))
    return Recorded(json.loads(done.stdout), read_tracks(file.read_bytes()))


def test_kernels_stand_in_the_partitions_in_which_they_ran(recorded: Recorded) -> None:
    control, rest, outside = map(recorded.lane, ("control", "rest", "outside of all partitions"))
    assert (control["sm_count"], rest["sm_count"], outside["sm_count"]) == (16, 116, 132)
    assert (control["kernels"], rest["kernels"], outside["kernels"]) == (1 + 5 * 4, 1, 3)
    assert rest["busy_ns"] == pytest.approx(1e6, rel=0.1)
    assert control["queueing_p50_ns"] > 0  # nodes wait for the nodes before them


def test_kernels_outside_of_open_partitions_are_named_with_their_stream(recorded: Recorded) -> None:
    [stray] = recorded.document["strays"]
    assert (stray["kernel"], stray["count"]) == ("cuda_gctx_probe", 3)


def test_partitions_that_ran_at_the_same_time_are_a_pair(recorded: Recorded) -> None:
    pairs = {frozenset((pair["first"], pair["second"])): pair for pair in recorded.document["pairs"]}
    assert pairs[frozenset(("control", "rest"))]["together_ns"] == pytest.approx(1e6, rel=0.1)


def test_nodes_of_a_graph_have_queued_since_its_launch_and_not_since_an_earlier_one() -> None:
    code = (
        CAPTURED
        + """
    with capture.graph.in_partition(parts.control) as moved:
        for _ in range(9):
            moved.launch(parts.control.stream)
            dev.sync()
"""
    )
    control = lane(summary("--", sys.executable, "-c", code), "control")
    assert control["kernels"] == 9 * 4
    assert control["queueing_p50_ns"] == pytest.approx(1.5e6, abs=0.6e6)
    assert control["queueing_p99_ns"] == pytest.approx(3e6, rel=0.1)


def test_whole_graphs_are_launches_and_no_kernels() -> None:
    control = lane(summary("--graphs", "whole", *program()), "control")
    assert (control["kernels"], control["graphs"]) == (1, 5)


def test_whole_graphs_that_run_at_once_are_counted_once() -> None:
    code = (
        CAPTURED
        + """
    with (
        capture.graph.in_partition(parts.control, ordered=False) as one,
        capture.graph.in_partition(parts.rest, ordered=False) as other,
    ):
        for _ in range(5):
            one.launch(parts.control.stream)
            other.launch(parts.rest.stream)
        dev.sync()
"""
    )
    found = summary("--graphs", "whole", "--", sys.executable, "-c", code)
    for name in ("control", "rest"):
        assert (lane(found, name)["kernels"], lane(found, name)["graphs"]) == (0, 5)
        assert lane(found, name)["busy_ns"] == pytest.approx(20e6, rel=0.1)


def test_a_killed_program_keeps_its_records_and_says_so() -> None:
    done = traced(*program("killed"), status=137)
    assert "was killed" in done.stderr
    assert "cuda_gctx_probe" in done.stderr


def test_the_exit_status_is_that_of_the_command() -> None:
    traced("--", sys.executable, "-c", "raise SystemExit(7)", status=7)


def test_another_profiler_is_refused_before_the_command_starts() -> None:
    done = traced(*program(), status=1, CUDA_INJECTION64_PATH="/a/profiler.so")
    assert "/a/profiler.so" in done.stderr
    assert not done.stdout


def test_a_whole_program_in_a_partition_is_traced_under_its_name() -> None:
    run = ("-m", "cuda_gctx.cli", "run", "--layout", "control=16,rest", "--as", "control", "--")
    code = "from cuda_gctx import Device, tune\ns = Device(0).create_stream()\ntune.spin(s, 8, 1000)\ns.sync()"
    found = summary("--", sys.executable, *run, sys.executable, "-c", code)
    [control] = found["lanes"]
    assert (control["partition"], control["sm_count"], control["kernels"]) == ("control", 16, 1)


def test_a_trace_has_a_lane_for_each_partition_and_a_row_for_each_stream(recorded: Recorded) -> None:
    by_number = {track.number: track for track in recorded.tracks}
    [top] = [track for track in recorded.tracks if track.pid]
    lanes = [track for track in recorded.tracks if track.parent == top.number]
    assert [track.name for track in sorted(lanes, key=lambda track: track.rank)] == [
        "SMs of busy partitions",
        "marks",
        "waits of the host",
        "outside of all partitions",
        "control (16 SMs)",
        "rest (116 SMs)",
    ]
    rows = [track for track in recorded.tracks if track.name.startswith("stream")]
    slices = {by_number[row.parent].name: len(row.slices) for row in rows}
    assert slices == {"outside of all partitions": 3, "control (16 SMs)": 21, "rest (116 SMs)": 1}


def test_waits_of_the_host_have_a_row_as_long_as_the_work(recorded: Recorded) -> None:
    waits = recorded.track("waits of the host").slices
    assert sum(one.end - one.begin for one in waits) == pytest.approx(3e6 + 20e6, rel=0.1)


def test_switches_are_marks(recorded: Recorded) -> None:
    names = [name.split()[0] for _, name, _ in recorded.track("marks").instants]
    assert (names[0], names.count("switch")) == ("open", 3)


def test_switches_to_plans_are_marks_that_name_the_plan(tmp_path: Path) -> None:
    code = """
from cuda_gctx import Device, Layout, PartitionPool, tune
dev = Device(0)
parts = ("control", "bulk")
apart = tune.Plan("partitions", parts, Layout(control=16, bulk=None), {part: part for part in parts})
plain = tune.Plan("streams", parts)
with PartitionPool(dev) as pool:
    for plan in (apart, plain, apart):
        tune.spin(plan.switch(pool)["control"], 8, 1_000_000)
    dev.sync()
"""
    file = tmp_path / "trace.pftrace"
    traced("-o", str(file), "--", sys.executable, "-c", code)
    [marks] = [track for track in read_tracks(file.read_bytes()) if track.name == "marks"]
    switches = [name for _, name, _ in marks.instants if name.startswith("switch")]
    assert len(switches) == 3
    assert switches[0] == switches[2] != switches[1]
    assert "16" in switches[0]


def test_the_counter_has_the_sms_of_busy_partitions(recorded: Recorded) -> None:
    values = [value for _, value in recorded.track("SMs of busy partitions").values]
    assert (max(values), values[-1]) == (132, 0)


# Reads its own metrics, when the recorder has flushed and before the program ends.
SCRAPING = (
    PROGRAM
    + """
import urllib.request
seen = ""
while 'cuda_gctx_kernels_total{partition="rest"' not in seen:
    time.sleep(0.1)
    seen = urllib.request.urlopen(sys.argv[1], timeout=10).read().decode()
print(*(line for line in seen.splitlines() if line.startswith("cuda_gctx_kernels_total")), sep="\\n")
"""
)


def test_metrics_are_served_while_the_program_runs() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    done = traced("--metrics", str(port), "--", sys.executable, "-c", SCRAPING, url)
    assert f"metrics at {url}" in done.stderr
    counts = {line.split('"')[1]: int(line.split()[-1]) for line in done.stdout.splitlines()}
    assert counts == {"control": 21, "rest": 1, "outside of all partitions": 3}


def test_a_file_of_metrics_has_all_kernels_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    traced("--metrics", str(file), *program())
    assert re.search(r'^cuda_gctx_kernels_total\{partition="control",.*\} 21$', file.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("where", "says"), [("none/metrics.prom", "No such file"), ("65536", "is not a port")])
def test_metrics_that_cannot_be_published_are_an_error_before_the_command_starts(where: str, says: str) -> None:
    done = subprocess.run(
        command("--metrics", where, "--", sys.executable, "-c", "print('started')"),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    assert done.returncode in (1, 2)
    assert says in " ".join(done.stderr.split())
    assert "started" not in done.stdout
