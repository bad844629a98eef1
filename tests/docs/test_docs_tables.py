"""The numbers on the pages are those of benchmarks/results, and the benchmark that writes them runs."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from cuda_gctx import Device
from cuda_gctx.tune import Report

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run_program(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=120,
    )


def test_pages_show_the_stored_results() -> None:
    check = run_program(BENCHMARKS / "tables.py", "--check")
    assert check.returncode == 0, check.stderr


class Copies:
    """Copies of the results and the pages that show them, to be changed, and what benchmarks/tables.py finds there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.docs = shutil.copytree(BENCHMARKS.parent / "docs", folder / "docs")
        self.results = shutil.copytree(BENCHMARKS / "results", folder / "results")
        shutil.copy(BENCHMARKS.parent / "README.md", folder)
        self.program = Path(shutil.copy(BENCHMARKS.parent / "cuda_gctx" / "cli" / "_on_a_card.py", folder))
        monkeypatch.syspath_prepend(BENCHMARKS)
        self._tables = importlib.import_module("tables")
        paths = {"REPOSITORY": folder, "DOCS": self.docs, "RESULTS": self.results, "ON_A_CARD": self.program}
        for name, path in paths.items():
            monkeypatch.setattr(self._tables, name, path)

    def change(self, path: Path, old: str, new: str) -> str:
        """Returns what the file was."""
        before = path.read_text()
        assert old in before
        path.chmod(0o644)
        path.write_text(before.replace(old, new))
        return before

    def write(self) -> None:
        assert self._tables.main([]) == 0

    def check(self, capsys: pytest.CaptureFixture[str]) -> str:
        """What the check finds, which must be something."""
        capsys.readouterr()
        try:
            assert self._tables.main(["--check"]) == 1
        except SystemExit as refused:
            return str(refused)
        return capsys.readouterr().err


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(tmp_path, monkeypatch)


def test_numbers_that_were_changed_on_pages_and_in_a_picture_are_found_and_put_right(
    copies: Copies, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        copies.docs / "appendix" / "call-times.md": ("4 MiB less", "4 MiB more"),
        copies.docs / "partitions.md": ("| 106 ", "| 10.6 "),
        copies.docs / "images" / "latency.svg": ("106 us", "10.6 us"),
        copies.program: ("106 us", "10.6 us"),
    }
    before = {path: copies.change(path, *change) for path, change in changes.items()}
    found = copies.check(capsys)
    assert [path.name for path in changes if path.name not in found] == []
    copies.write()
    assert {path: path.read_text() for path in changes} == before


def test_a_result_that_was_changed_is_missed_on_its_page(copies: Copies, capsys: pytest.CaptureFixture[str]) -> None:
    [path] = copies.results.glob("*-partitions.json")
    copies.change(path, '"cuda": "13.0"', '"cuda": "13.9"')
    found = copies.check(capsys)
    assert "call-times.md" in found


def test_a_page_that_lost_a_table_is_refused(copies: Copies, capsys: pytest.CaptureFixture[str]) -> None:
    copies.change(copies.docs / "partitions.md", "<!-- table of background partitions:", "<!-- ")
    assert "of background partitions" in copies.check(capsys)


def test_the_picture_of_latencies_names_its_card_and_what_isolation_costs() -> None:
    picture = (BENCHMARKS.parent / "docs" / "images" / "latency.svg").read_text()
    for words in ("NVIDIA H200, driver 580.159.04", "2026-11-24", "106 us (p50 54.7 us)", "at 88% of their rate"):
        assert words in picture


def studies_of(card: str) -> dict[str, list[Report]]:
    """The reports of the processes, by study."""
    studies = json.loads((BENCHMARKS / "results" / f"{card}-driver-13.0-studies.json").read_text())["studies"]
    return {study["name"]: [Report.from_json(json.dumps(report)) for report in study["reports"]] for study in studies}


def fastest(report: Report, kind: str) -> float:
    """The speedup of the fastest plan of a kind."""
    return 1 / next(result.relative for result in report.results if result.plan.kind == kind)


def studies_page() -> str:
    return " ".join((BENCHMARKS.parent / "docs" / "appendix" / "studies.md").read_text().split())


def quoted_of(plain: list[Report], mix: list[Report], critical: list[Report]) -> list[list[float]]:
    """What the page quotes of the studies of a card: each a number for each process, or for each result."""
    sequences = [next(r for r in report.results if r.plan.kind == "sequence") for report in plain]
    chosen = [report.result(report.choice) for report in critical]
    first = [next(r for r in report.results if str(r.plan) == "critical first") for report in critical]
    return [
        [one.seconds.value / report.bound for one, report in zip(sequences, plain, strict=True)],
        [r.relative for one in plain for r in one.results if {64, 68} == {part.sm_count for part in r.parts.values()}],
        [fastest(report, "partitions") for report in mix],
        [fastest(report, "streams") for report in mix],
        [
            (one.parts["load"].calls_per_second or 0.0) * report.alone["load"].value
            for one, report in zip(chosen, critical, strict=True)
        ],
        [one.seconds.value * 1e6 for one in chosen],
        [report.alone["small"].value * 1e6 for report in mix],
        [report.bound * 1e6 for report in critical],
        [next(r.seconds.value * 1e3 for r in one.results if r.plan.kind == "sequence") for one in critical],
        [one.seconds.value * 1e3 for one in first],
    ]


def test_what_the_pages_quote_of_the_studies_is_in_the_results() -> None:
    studies = [studies_of(card) for card in ("h200", "h100-80gb-hbm3")]
    names = ("gemm-sigmoid", "large-small", "critical-load")
    assert all(report.complete for one in studies for name in names for report in one[name])
    plain, mix, critical = ([report for one in studies for report in one[name]] for name in names)
    assert [str(report.choice) for report in plain] == [
        *("in sequence", "gemm first"),
        *("gemm first", "in sequence"),
    ]
    assert [str(report.choice) for report in mix] == [
        *["large=104, small=all"] * 2,
        *["large=96, small=all, SM count hint"] * 2,
    ]
    assert [report.sure for report in mix] == [False, False, False, True]
    assert [str(report.choice) for report in critical] == [
        *("critical=all, load=112", "critical=16, load=116"),
        *("critical=8, load=124", "critical=all, load=128"),
    ]
    *unknown, bounded = (report.regret for report in critical)
    assert unknown == [None] * 3
    pairs = zip(*(quoted_of(*(one[name] for name in names)) for one in studies), strict=True)
    hidden, halves, disjoint, streams, shares, tails, smalls, alone, sequences, first = pairs
    interval = "{0.gain:.2f} x ({0.gain_low:.2f} to {0.gain_high:.2f})"
    quoted = [
        "would be a speedup of {:.2f} x and {:.2f} x on the H200, {:.2f} x and {:.2f} x on the H100".format(
            *hidden[0], *hidden[1]
        ),
        f"is, by {interval.format(plain[1])} on the H200 and {interval.format(plain[2])} on the H100, undecided",
        "take {:.2f} to {:.2f} times as long as the sequence".format(*least_and_most(halves)),
        f"104 SMs on the H200, {interval.format(mix[0])} and {interval.format(mix[1])}",
        f"on the H100, {interval.format(mix[2])} and {interval.format(mix[3])}, of which the second is sure",
        "reached {:.2f} x and {:.2f} x, and {:.2f} x and {:.2f} x; plain".format(*disjoint[0], *disjoint[1]),
        "plain streams {:.2f} x to {:.2f} x".format(*least_and_most(streams)),
        "On the H200 the p99 is {:.0f} and {:.0f} us, next to {:.0f} and {:.0f} us alone".format(*tails[0], *alone[0]),
        "on the H100 it is {:.0f} and {:.0f} us, next to {:.0f} and {:.0f} us alone".format(*tails[1], *alone[1]),
        "{:.2f} and {:.2f} ms in sequence, and {:.0f} and {:.0f} ms with a priority".format(*sequences[0], *first[0]),
        "{:.2f} and {:.2f} ms in sequence, and {:.1f} and {:.1f} ms with a priority".format(*sequences[1], *first[1]),
        "keeps {:.0%} and {:.0%} of its rate on the H200, {:.0%} and {:.0%} on the H100".format(*shares[0], *shares[1]),
        f"the fourth one bounds it by {bounded:.1%}",
        *(f"take {us:.0f} us on the H200, {{:.0f}} and {{:.0f}} us".format(*smalls[1]) for us in smalls[0]),
    ]
    assert [words for words in quoted if words not in studies_page()] == []


def least_and_most(of_cards: Sequence[Sequence[float]]) -> tuple[float, float]:
    values = [value for values in of_cards for value in values]
    return min(values), max(values)


def test_studies_of_several_processes_are_joined_and_the_rest_is_measured_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    studies = importlib.import_module("studies")
    for key, found in {"0-gemm-sigmoid": "a", "1-gemm-sigmoid": "b", "1-mixes": [{"mix": "c"}]}.items():
        (tmp_path / f"{key}.json").write_text(json.dumps({"machine": {"card": "d"}, "found": found}))
    assert studies.joined(tmp_path) == {
        "card": "d",
        "studies": [{"name": "gemm-sigmoid", "title": studies.STUDIES["gemm-sigmoid"].title, "reports": ["a", "b"]}],
        "mixes": [{"process": 1, "mix": "c"}],
        "gemms": [],
    }
    asked = SimpleNamespace(parts=tmp_path, processes=2, only=None)
    assert [studies.missing(asked, number) for number in range(2)] == [
        ["critical-load", "large-small", "mixes"],
        ["critical-load", "large-small", "gemms"],
    ]


def test_each_answer_is_kept_at_once_and_the_rest_is_measured_later(
    dev: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    pairs = importlib.import_module("overlap_pairs")
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(pairs, "PAIRS", {name: lambda torch: ({}, "makespan") for name in ("a", "b")})
    asked: list[int] = []

    def answer(device: Device, work: object, objective: object, seconds: float, seed: int) -> dict[str, object]:
        asked.append(seed)
        if len(asked) == 2:
            raise KeyboardInterrupt
        one = (1.0, 1.0, 1.0)
        return {"choice": "x", "sure": True, "told": one, "found": one, "found_of_streams": one} | {
            "agrees": True,
            "loses": False,
        }

    monkeypatch.setattr(pairs, "answer", answer)
    arguments = SimpleNamespace(out=tmp_path / "pairs.json", only=None, seed=0, seconds=1.0)
    with pytest.raises(KeyboardInterrupt):
        pairs.measure(arguments, float("inf"))
    kept = json.loads(arguments.out.read_text())
    assert (kept["of"], kept["card"], [row["pair"] for row in kept["rows"]]) == (1, dev.name, ["a"])
    pairs.measure(arguments, float("inf"))
    kept = json.loads(arguments.out.read_text())
    assert (kept["of"], kept["agree"], kept["lose"], len(asked)) == (2, 2, 0, 3)


def test_what_the_pages_quote_of_launches_is_in_the_results() -> None:
    result = json.loads((BENCHMARKS / "results" / "h100-80gb-hbm3-driver-13.0-launches.json").read_text())
    ms: dict[str, list[float]] = {}
    for process in result["processes"]:
        for row in process:
            ms.setdefault(row["how"], []).append(row["us_per_mix"] / 1e3)
    threads, one, two, graphs = (
        median(ms[how])
        for how in ("two threads", "one thread, one stream", "one thread, two streams", "CUDA graphs of 30 launches")
    )
    alone = ms["one thread, one stream"]
    busy = [value for value in ms["two threads on a CPU each"] if value > 10]
    quoted = [
        f"gain little over one**, {threads:.1f} ms against {one:.1f} on one stream and {two:.1f} on two",
        f"one thread on one stream, which has nothing to wait for, takes {min(alone):.1f} to {max(alone):.1f} ms",
        f"is worse than any of this: {min(busy):.0f} to {max(busy):.0f} ms",
        f"of 30 launches take {graphs:.1f} ms",
    ]
    assert [words for words in quoted if words not in studies_page()] == []


def test_what_the_pages_quote_of_the_all_reduce_is_in_the_results() -> None:
    result = json.loads((BENCHMARKS / "results" / "h200-driver-13.0-allreduce.json").read_text())
    us = {(row["plan"], row["mebibytes"]): row["us"] for row in result["rows"]}

    def median(plan: str, size: int) -> float:
        return float(us[plan, size]["median"])

    hidden, hinted = "16 + 116 SMs", "8 + 124 SMs, hint of 124"
    quoted = [
        f"takes {median(hidden, 256):.0f} us, {median('in sequence', 256) / median(hidden, 256):.2f} times less",
        f"the all-reduce takes {median('all-reduce alone, 16 SMs', 256):.0f} us",
        f"take {median(hinted, 64):.0f} us, {median('in sequence', 64) / median(hinted, 64):.2f} times less",
        f"plain streams {median('plain streams', 64):.0f} us",
        f"on all SMs ({median('all-reduce alone, 32 SMs', 256):.0f} us for 256 MiB)",
    ]
    assert [words for words in quoted if words not in studies_page()] == []
    steps = [us[hidden, size] for size in (1, 16, 64, 256)]
    assert max(one["median"] for one in steps) < min(one["max"] for one in steps)
    assert min(one["median"] for one in steps) > max(one["min"] for one in steps)
    assert all(10 * median("all-reduce alone, all SMs", size) < us["GEMM alone", None]["median"] for size in (1, 16))


def test_autotune_is_judged_by_what_it_chose_itself_and_identical_calls_are_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    targets = importlib.import_module("collective_targets")
    key = "faster than the best NCCL mode"
    rows = [
        {"tensors": "staged", "chosen": "TWO_EXCHANGE", key: 1.5},
        {"tensors": "staged", "chosen": "TWO_EXCHANGE", key: 0.99},
        {"tensors": "staged", "chosen": "NCCL_ONE", key: 0.95},
        {"tensors": "staged", "variant": "NCCL_ONE again", "same calls": 1.01},
        {"tensors": "staged", "variant": "NCCL_ONE", "us": 3.0},
    ]
    staged, identical = targets.autotune({"autotune": rows})
    assert (
        staged[2]
        == "0.99 to 1.50 times in the 2 of 3 cases where it chose its own kernels, below 0.98 in 0, below 1 in 1"
    )
    assert identical[2] == "0.95 to 1.01 times in 2 cases, off by more than 2% in 1"


def test_a_rank_that_is_missing_is_judged_by_the_latest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    targets = importlib.import_module("collective_targets")
    rows = [{"timeout_s": 3.0, "error after s": one} for one in ([3.0, 3.25], [0.0, 0.01])]
    [row] = targets.missing_ranks({"missing-ranks": [*rows, {"right": [True, False]}]})
    assert row[2] == "within `timeout_s` + 0.2 s in 2 cases; the GPUs did not work afterwards"


@pytest.mark.sim_only
def test_every_call_is_timed_raw_and_with_this_package_and_simulated_times_are_compared_with_nothing(
    tmp_path: Path,
) -> None:
    least = "--rounds", "2", "--imports", "1"
    program = run_program(BENCHMARKS / "calls.py", *least, "--out", tmp_path, CUDA_GCTX_DRIVER="sim:h200@13.0")
    assert program.returncode == 0, program.stderr
    [path] = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert program.stdout.startswith("simulated")
    assert "times of the raw call" not in program.stdout
    assert result["simulated"] is True
    assert not any(call["targets"] for call in result["calls"] + result["imports"])
    calls = {call["name"]: call["contestants"] for call in result["calls"]}
    assert all("ns" in contestants["cuda_gctx"] for contestants in calls.values())
    assert {name for name, contestants in calls.items() if "ns" not in contestants.get("raw", {})} == {"is_green"}
    for contestants in calls.values():
        for contestant in contestants.values():
            if "ns" in contestant:
                assert 0 <= contestant["ns"]["p10"] <= contestant["ns"]["median"] <= contestant["ns"]["p90"]


def test_requests_at_random_times_wait_for_gemms_unless_these_run_in_the_background_partition(tmp_path: Path) -> None:
    program = [BENCHMARKS / "arrivals.py", "--seconds", "0.02", "--out", tmp_path]
    done = run_program(*program, CUDA_GCTX_DRIVER="sim:h200@13.0")
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*-arrivals.json")
    rows = json.loads(path.read_text())["rows"]
    for rate in {row["per_second"] for row in rows}:
        alone, priority, primary, isolated = (row for row in rows if row["per_second"] == rate)
        # The median too: a request that arrives at a random time meets a running GEMM.
        assert isolated["us"]["p50"] < 5 * alone["us"]["p50"] < priority["us"]["p50"] < primary["us"]["p50"]
        assert isolated["us"]["p99"] < 100 < priority["us"]["p99"]
        assert 0.75 < isolated["gemms_per_second"] / priority["gemms_per_second"] < 1


def test_simulated_results_are_kept_out_of_the_pages(copies: Copies, capsys: pytest.CaptureFixture[str]) -> None:
    [path] = copies.results.glob("*-calls.json")
    copies.change(path, '"simulated": false', '"simulated": true')
    assert "simulated" in copies.check(capsys)
