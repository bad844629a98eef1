"""The benchmarks run on the software driver, keep what they have measured, and render.py writes tables of results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from cuda_software_driver import session

BENCHMARKS = Path(__file__).resolve().parents[1]


@pytest.fixture
def render() -> ModuleType:
    return importlib.import_module("render")


def run(name: str, *options: str | Path) -> str:
    """Runs a benchmark on the software driver, and returns its output."""
    command = [sys.executable, BENCHMARKS / name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_call_is_timed_and_simulated_times_have_no_targets(tmp_path: Path) -> None:
    printed = run("calls.py", "--rounds", "2", "--imports", "1", "--out", tmp_path)
    [path] = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert printed.startswith("simulated")
    assert result["simulated"] is True
    assert not any(call["targets"] for call in result["calls"] + result["imports"])
    calls = {call["name"]: call["contestants"] for call in result["calls"]}
    assert all("ns" in contestants["cuda_gctx"] for contestants in calls.values())
    assert {name for name, contestants in calls.items() if "ns" not in contestants.get("raw", {})} == {"is_green"}
    timed = [one["ns"] for contestants in calls.values() for one in contestants.values() if "ns" in one]
    assert all(0 <= ns["p10"] <= ns["median"] <= ns["p90"] for ns in timed)


def test_many_contexts_are_waited_for_and_free_sms_are_never_shared(tmp_path: Path) -> None:
    run("many_contexts.py", "--contexts", "40", "--rounds", "60", "--out", tmp_path)
    [path] = tmp_path.iterdir()
    result = json.loads(path.read_text())
    states = [(row["state"], row["contexts"]) for row in result["sync"]]
    assert states == [("open", 1), ("open", 16), ("open", 40), ("idle", 40), ("idle, exposed", 40)]
    rounds = result["free_rounds"]
    assert (rounds["overlaps"], rounds["free"]) == (0, result["sm_count"])
    assert 0 < rounds["refused"] < rounds["rounds"]


def test_a_switch_of_three_parts_is_compared_with_pairs_of_waits_and_with_a_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions = importlib.import_module("partitions")
    monkeypatch.setattr(partitions, "SWITCHES", 4)
    with session("h200", driver="13.0"):
        rows = partitions.measure_switching(partitions.Device(0))
    known = {(row["partitions"], row["verified"]): row for row in rows if row["switch"] == "other layout"}
    assert {(3, True), (6, True)} <= known.keys()
    for (parts, verified), row in known.items():
        assert ("raw_us" in row) == (verified or parts == 2)
        assert ("raw_relay_us" in row) == verified


def test_requests_wait_for_gemms_unless_these_run_in_the_background_partition(tmp_path: Path) -> None:
    run("arrivals.py", "--seconds", "0.02", "--out", tmp_path)
    [path] = tmp_path.glob("*-arrivals.json")
    rows = json.loads(path.read_text())["rows"]
    for rate in {row["per_second"] for row in rows}:
        alone, priority, primary, isolated = (row for row in rows if row["per_second"] == rate)
        # The median too: a request that arrives at a random time meets a running GEMM.
        assert isolated["us"]["p50"] < 5 * alone["us"]["p50"] < priority["us"]["p50"] < primary["us"]["p50"]
        assert isolated["us"]["p99"] < 100 < priority["us"]["p99"]
        assert 0.75 < isolated["gemms_per_second"] / priority["gemms_per_second"] < 1


def test_studies_of_several_processes_are_joined_and_the_rest_is_measured_later(tmp_path: Path) -> None:
    studies = importlib.import_module("studies")
    for key, found in {"0-gemm-sigmoid": "a", "1-gemm-sigmoid": "b"}.items():
        (tmp_path / f"{key}.json").write_text(json.dumps({"machine": {"card": "d"}, "found": found}))
    assert studies.joined(tmp_path) == {
        "card": "d",
        "studies": [{"name": "gemm-sigmoid", "title": studies.STUDIES["gemm-sigmoid"].title, "reports": ["a", "b"]}],
        "gemms": [],
    }
    asked = SimpleNamespace(parts=tmp_path, processes=2, only=None)
    assert [studies.missing(asked, number) for number in range(2)] == [
        ["critical-load", "large-small"],
        ["critical-load", "large-small", "gemms"],
    ]


def test_each_answer_of_pairs_is_kept_at_once_and_the_rest_is_measured_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = importlib.import_module("overlap_pairs")
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(pairs, "PAIRS", {name: lambda torch: ({}, "makespan") for name in ("a", "b")})
    measured: list[int] = []

    def answer(device: object, work: object, objective: object, seconds: float, seed: int) -> dict[str, object]:
        measured.append(seed)
        if len(measured) == 2:
            raise KeyboardInterrupt
        ratio = (1.0, 1.0, 1.0)
        ratios = {"told": ratio, "found": ratio, "found_of_streams": ratio}
        return {"choice": "x", "best": "x", "sure": True, "agrees": True, "loses": False, **ratios}

    monkeypatch.setattr(pairs, "answer", answer)
    arguments = SimpleNamespace(out=tmp_path / "pairs.json", only=None, seed=0, seconds=1.0)
    with session("h200", driver="13.0"):
        with pytest.raises(KeyboardInterrupt):
            pairs.measure(arguments, float("inf"))
        kept = json.loads(arguments.out.read_text())
        assert (kept["of"], [row["pair"] for row in kept["rows"]]) == (1, ["a"])
        pairs.measure(arguments, float("inf"))
        kept = json.loads(arguments.out.read_text())
        assert (kept["of"], kept["agree"], kept["lose"], len(measured)) == (2, 2, 0, 3)


def test_a_table_of_results_replaces_what_stands_between_its_markers(render: ModuleType) -> None:
    head, end = "Text.\n\n<!-- results: latency -->\n", "<!-- end of results -->\n\nMore text.\n"
    page = render.rendered(f"{head}old\n{end}")
    assert page.startswith(f"{head}\nNVIDIA ")
    assert page.endswith(f" |\n\n{end}")
    assert "old" not in page
    assert render.rendered(page) == page


def test_every_table_and_picture_is_made_of_results(render: ModuleType) -> None:
    for subject, table in render.TABLES.values():
        results = render.results_of(subject)
        assert results
        assert all("| ---" in table(result) for result in results)
    assert render.latency_picture(render.results_of("arrivals")[-1]).startswith("<svg")
    assert render.programs_picture(render.results_of("whole-programs")[-1]).startswith("<svg")


def test_simulated_results_are_refused(render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h200-calls.json").write_text(json.dumps({"simulated": True}))
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="has a simulated calls"):
        render.results_of("calls")
