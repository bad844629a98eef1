"""``cuda-gctx bench``: raw calls, ours and those of cuda.core in one run, as a document and as a table."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cuda_gctx import CUDAError, Device, FeatureNotSupported
from cuda_gctx.bench import call_costs
from cuda_gctx.bench.call_costs import CALLS, Effort, measure
from cuda_gctx.bench.raw_calls import RawCalls
from cuda_gctx.cli import bench as module
from cuda_gctx.cli._root import root

from ..common import DRIVERS, refusal, run_python

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
LEAST = Effort(rounds=2, context_pairs=1, imports=1)


def run(*arguments: str) -> Result:
    """The command in this process; what measures is a process of its own."""
    done = CliRunner().invoke(root, ["bench", *arguments], prog_name="cuda-gctx")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def shown(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    module._show(result)
    return capsys.readouterr().out


@pytest.fixture
def published() -> dict[str, Any]:
    [path] = RESULTS.glob("*-calls.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


# ---- the command


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of the command in a folder whose modules must not be taken for those that are measured."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "cuda_gctx.py").write_text("raise SystemExit('the wrong module')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run("--quick", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_it_works_from_any_folder_and_says_what_it_measured(output: Any) -> None:
    assert output["command"] == "bench"
    assert output["device"]["name"] == output["report"]["card"]
    assert output["driver"] == output["report"]["cuda"]
    assert output["report"]["imports"]


def test_every_call_is_timed_raw_and_with_this_package(output: Any) -> None:
    calls = {call["name"]: call["contestants"] for call in output["report"]["calls"]}
    assert list(calls) == [call.name for call in CALLS]
    assert all("ns" in contestants["cuda_gctx"] for contestants in calls.values())
    assert {name for name, contestants in calls.items() if "ns" not in contestants.get("raw", {})} == {"is_green"}
    for contestants in calls.values():
        for contestant in contestants.values():
            if "ns" in contestant:
                assert 0 <= contestant["ns"]["p10"] <= contestant["ns"]["median"] <= contestant["ns"]["p90"]


@pytest.mark.sim_only
@pytest.mark.skipif(importlib.util.find_spec("cuda.core") is None, reason="cuda.core is not installed here")
def test_cuda_core_runs_on_the_simulated_card_that_this_package_uses() -> None:
    output = json.loads(run("--quick", "--json", "--profile", "b200", "--driver", "13.1").stdout)["report"]
    assert output["card"] == "NVIDIA B200 (simulated)"
    assert all("ns" in call["contestants"].get("cuda.core", {"ns": {}}) for call in output["calls"])


@pytest.mark.sim_only
def test_calls_can_be_timed_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_GCTX_DRIVER", "sim:h200,devices=2")
    measured = call_costs.measure_in_fresh_process(Effort(rounds=1, context_pairs=1, imports=1, device=1))
    assert all("ns" in call["contestants"]["cuda_gctx"] for call in measured["calls"])


@pytest.mark.sim_only
def test_simulated_times_are_called_so_and_compared_with_nothing() -> None:
    done = run("--quick")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("simulated")
    assert "SM count of a stream" in done.stdout
    assert "/ raw" not in done.stdout


def test_times_of_a_gpu_are_compared(published: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    output = shown(published, capsys)
    [head] = [line for line in output.splitlines() if line.startswith("call ")]
    titles = ["call", "raw, in C", "cuda_gctx", "/ raw", "cuda.core", "/ cuda.core"]
    assert " ".join(head.split()) == " ".join(titles)
    [row] = [line for line in output.splitlines() if line.startswith("SM count of a stream")]
    [call] = [call for call in published["calls"] if call["title"] == "SM count of a stream"]
    ns = {name: contestant["ns"] for name, contestant in call["contestants"].items()}
    raw = ns["raw"]
    assert f"{raw['median']:.0f} ns ({raw['p10']:.0f} ns to {raw['p90']:.0f} ns)" in row
    for peer in ("raw", "cuda.core"):
        assert f"{ns['cuda_gctx']['median'] / ns[peer]['median']:.2f}" in row


def test_who_refused_what_is_reported_in_its_own_words(
    published: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    output = shown(published, capsys)
    assert "refused" in output
    assert "Refused by cuda.core, uneven split 8, 16, 24: " in output


# ---- how it ends


@pytest.mark.sim_only
def test_without_green_contexts_it_says_what_is_needed(sim: Callable[..., Any]) -> None:
    sim("h200", driver="12.3")
    done = run()
    assert done.exit_code == 1
    assert "12.4" in done.stderr


def test_without_a_driver_it_ends_with_status_3(tmp_path: Path) -> None:
    done = run_python(
        "import sys; from cuda_gctx.cli import main; sys.argv[1:] = ['bench']; main()",
        CUDA_GCTX_DRIVER=str(tmp_path / "libcuda.so.1"),
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sim_only
def test_a_machine_that_cannot_be_simulated_is_wrong_usage() -> None:
    code = "import sys; from cuda_gctx.cli import main; sys.argv[1:] = ['bench']; main()"
    done = run_python(code, CUDA_GCTX_DRIVER="sim:voodoo")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.sim_only
def test_a_measurement_that_breaks_off_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(effort: Effort, driver: str | None) -> dict[str, Any]:
        raise subprocess.CalledProcessError(-9, "python")

    monkeypatch.setattr(module, "measure_in_fresh_process", broken)
    done = run()
    assert done.exit_code == 1
    assert "-9" in done.stderr


# ---- what is measured


@pytest.mark.sim_only
def test_calls_are_compared_in_the_same_rounds() -> None:
    """On a host with two speeds, of which ours met the slow one once more often."""
    call = next(call for call in CALLS if call.name == "is_current")
    fast, slow = (100.0, 160.0), (200.0, 300.0)  # the raw call, and ours: the limits are 180 and 310
    rounds = [fast, fast, slow, slow, slow]
    samples = {"raw": [raw for raw, _ in rounds], "cuda_gctx": [ours for _, ours in rounds], "cuda.core": [170.0] * 5}
    to_raw, to_core = call_costs.targets(call, samples)
    assert (to_raw["met"], to_raw["over_ns"]) == (True, -10)
    assert (to_core["met"], to_core["over_ns"]) == (False, 130)
    assert call_costs.ratios(samples) == {"raw": 1.5, "cuda.core": round(300 / 170, 3)}
    assert call_costs.targets(call, {"raw": [1.0]}) == [{"what": "runs", "met": False}]
    assert call_costs.ratios({"raw": [1.0]}) == {}


@pytest.mark.parametrize("driver", DRIVERS)
def test_measuring_leaves_nothing_behind(sim: Callable[..., Any], driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(number: int) -> dict[str, object]:
        raise ImportError("not here")

    monkeypatch.setattr(call_costs, "names_of_core", absent)
    sim("h200", driver=driver)
    calls = {call["name"]: call["contestants"] for call in measure(LEAST)["calls"]}
    assert calls["query"]["cuda.core"]["refused"] == "ImportError: not here"
    assert "ns" in calls["stream"]["raw"]


def test_every_raw_call_has_its_row() -> None:
    assert {call.raw_name or call.name for call in CALLS if call.raw} == set(RawCalls.names())


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("query", "cuDeviceGetDevResource"),
        ("split_one", "cuDevSmResourceSplitByCount"),
        ("context", "cuGreenCtxDestroy"),
        ("stream", "cuStreamDestroy"),
        ("stream_sm_count", "cuCtxGetDevResource"),
        ("push_pop", "cuCtxPushCurrent"),
        ("record_wait", "cuStreamWaitEvent"),
        ("context_record_wait", "cuGreenCtxWaitEvent"),
        ("stream_is_done", "cuStreamQuery"),
        ("event_is_done", "cuEventQuery"),
        ("priority", "cuStreamGetPriority"),
        ("elapsed", "cuEventElapsedTime"),
    ],
)
def test_a_raw_call_is_made_as_often_as_asked(sim: Callable[..., Any], name: str, function: str) -> None:
    machine = sim("h200", driver="13.0")
    with RawCalls(Device()) as raw:
        before = machine.calls(function)
        assert raw.time(name, 7) > 0
        assert machine.calls(function) - before == 7
        raw.settle()


@pytest.mark.sim_only
@pytest.mark.parametrize("driver", ["12.4", "13.0"])
@pytest.mark.parametrize(
    "function",
    ["cuDevSmResourceSplitByCount", "cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuEventCreate"],
)
def test_raw_calls_are_set_up_whole_or_not_at_all(sim: Callable[..., Any], driver: str, function: str) -> None:
    machine = sim("h200", driver=driver)
    device = Device()
    _ = device.context
    machine.fail(function, nth=1)
    assert refusal(CUDAError, lambda: RawCalls(device)).call == function


@pytest.mark.sim_only
def test_raw_calls_report_what_is_missing(sim: Callable[..., Any]) -> None:
    sim("h200", driver="12.3")
    assert "12.4" in str(refusal(FeatureNotSupported, lambda: RawCalls(Device())))


def test_raw_calls_that_are_unknown_or_closed_are_refused(dev: Device) -> None:
    raw = RawCalls(dev)
    with pytest.raises(ValueError, match="no raw call 'nothing'"):
        raw.time("nothing", 1)
    raw.close()
    raw.close()
    with pytest.raises(RuntimeError, match="closed"):
        raw.time("query", 1)
    with pytest.raises(RuntimeError, match="closed"):
        raw.settle()
