"""``with cuda_gctx.trace()`` on the software driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..common import run_python
from .pftrace import read_tracks

pytestmark = pytest.mark.sim_only

# The software driver and the recorder are of a whole process, so that each program has one.
PROGRAM = """
import json, sys
import cuda_gctx
from cuda_gctx import Device, tune

MS = 1_000_000
dev = Device(0)
out = {}
with dev.partition(control=16, rest=None) as parts, dev.create_stream() as plain:
    tune.spin(parts.control.stream, 16, MS)
    dev.sync()
    with cuda_gctx.trace() as first:
        tune.spin(parts.control.stream, 16, MS)
        tune.spin(plain, 8, MS)
        dev.sync()
        try:
            first.summary()
        except RuntimeError as error:
            out["early"] = str(error)
        try:
            with cuda_gctx.trace():
                pass
        except RuntimeError as error:
            out["nested"] = str(error)
    tune.spin(parts.rest.stream, 116, MS)
    dev.sync()
with cuda_gctx.trace() as second, dev.partition(late=8) as parts:
    tune.spin(parts.late.stream, 8, MS)
    dev.sync()
first.perfetto(sys.argv[1])
out["first"], out["second"] = json.loads(first.to_json()), json.loads(second.to_json())
out["printed"], out["picture"] = str(first), first._repr_html_()
print(json.dumps(out))
"""


def run(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(code, *words, **{"CUDA_GCTX_DRIVER": "sim:h200@13.0", **environment})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block") / "trace.pftrace"


@pytest.fixture(scope="module")
def found(file: Path) -> dict[str, Any]:
    done = run(PROGRAM, str(file))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def kernels(document: dict[str, Any]) -> dict[str, int]:
    return {lane["partition"]: lane["kernels"] for lane in document["lanes"]}


def test_partitions_that_were_open_before_have_their_names(found: dict[str, Any]) -> None:
    assert kernels(found["first"]) == {"outside of all partitions": 1, "control": 1}
    [control] = [lane for lane in found["first"]["lanes"] if lane["partition"] == "control"]
    assert (control["sm_count"], control["busy_ns"]) == (16, pytest.approx(1e6, rel=0.1))


def test_a_process_can_be_traced_again(found: dict[str, Any]) -> None:
    assert kernels(found["second"]) == {"late": 1}


@pytest.mark.parametrize("is_open_before", [False, True])
def test_all_stray_kernels_count_although_simulated_time_runs_ahead(is_open_before: bool) -> None:
    code = """
import sys
import cuda_gctx
from cuda_gctx import Device, tune
dev = Device(0)
plain = dev.create_stream()
tune.spin(plain, 8, 50_000_000)
plain.sync()
parts = dev.partition(control=16) if sys.argv[1] == "True" else None
with cuda_gctx.trace() as found:
    if parts is None:
        tune.spin(plain, 8, 2_000_000)
        plain.sync()
        parts = dev.partition(control=16)
    for _ in range(10):
        tune.spin(plain, 8, 2_000_000)
        plain.sync()
print(found.to_json())
"""
    done = run(code, str(is_open_before))
    assert done.returncode == 0, done.stderr
    assert [stray["count"] for stray in json.loads(done.stdout)["strays"]] == [10]
    assert json.loads(done.stdout)["simulated"] is True


def test_launches_are_known(found: dict[str, Any]) -> None:
    assert all(lane["queueing_p50_ns"] is not None for lane in found["first"]["lanes"])


def test_a_process_has_one_trace_at_a_time(found: dict[str, Any]) -> None:
    assert "one trace at a time" in found["nested"]
    assert "after its with block" in found["early"]


def test_no_trace_says_that_it_is_incomplete(found: dict[str, Any]) -> None:
    for name in ("first", "second"):
        [process] = found[name]["processes"]
        assert (process["has_ended"], process["was_replaced"], process["dropped"]) == (True, False, 0)


def test_it_prints_the_report_and_has_a_picture_and_a_file(found: dict[str, Any], file: Path) -> None:
    assert "control" in found["printed"]
    assert found["picture"].startswith("<svg")
    assert "control" in found["picture"]
    assert "control (16 SMs)" in {track.name for track in read_tracks(file.read_bytes())}


def test_a_traced_program_cannot_trace_itself() -> None:
    code = "import cuda_gctx\nwith cuda_gctx.trace(): pass"
    done = subprocess.run(
        [sys.executable, "-m", "cuda_gctx.cli", "trace", "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    assert done.returncode == 1
    assert "one trace at a time" in done.stderr


def test_graphs_has_two_values() -> None:
    done = run("import cuda_gctx\ncuda_gctx.trace('all')")
    assert "graphs must be 'nodes' or 'whole', not 'all'" in done.stderr
