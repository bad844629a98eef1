"""``cuda-gctx demo``: what it shows, what isolation does on the virtual clock and on a GPU, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cuda_gctx import Device, DriverNotFound, IsolationError, Partitions, Stream
from cuda_gctx.cli import demo as module
from cuda_gctx.cli._root import root
from cuda_gctx.measure.latencies import LOAD_BLOCK_NS, LOAD_LAUNCHES, background_load, stream_next_to

from ..common import DRIVERS, run_python

LOAD_BLOCK_US = LOAD_BLOCK_NS / 1000


def demo(*arguments: str) -> Result:
    """The command in this process, on the driver of this process."""
    done = CliRunner().invoke(root, ["demo", "--samples", "20", *arguments], prog_name="cuda-gctx")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def document(*arguments: str) -> dict[str, Any]:
    done = demo("--json", *arguments)
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def p99(result: dict[str, Any]) -> dict[str, float]:
    return {row["key"]: row["us"]["p99"] for row in result["latency"]["rows"]}


# ---- what it shows


@pytest.mark.sim_only
def test_the_whole_job_is_shown_in_order(sim: Callable[..., Any]) -> None:
    sim("h200")
    shown = demo().output
    at = 0
    for words in (
        "*** simulated",
        "NVIDIA H200 (simulated)",
        "in a partition is 1.0",
        "On a card (NVIDIA H200, driver 580.159.04, 2026-11-24)",
        "1. Partition: device.partition(control=16)",
        "2. Verify:",
        "each SM was used by one partition only",
        "A = control",
        "3. Compute:",
        "sums are right: control on 16 SMs, background on 116 SMs, 0 foreign",
        "4. Measure:",
        "background (116 SMs)",
        "*** simulated",
        "cuda-gctx run --layout control=16,rest --as control -- ",
    ):
        at = shown.index(words, at) + 1


@pytest.mark.sim_only
def test_what_was_asked_is_shown_with_what_came(sim: Callable[..., Any]) -> None:
    sim("h200")
    parts = {part["name"]: part for part in document()["partitions"]}
    assert {name: (part["asked"], part["sm_count"]) for name, part in parts.items()} == {
        "control": (16, 16),
        "background": (None, 116),
    }
    assert all(part["stream_sm_count"] == part["sm_count"] and part["green"] for part in parts.values())


@pytest.mark.sim_only
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_sm_is_seen_in_one_partition(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    result = document()
    seen = {context["name"]: context["sm_ids"] for context in result["report"]["contexts"]}
    assert {name: len(sms) for name, sms in seen.items()} == {
        part["name"]: part["sm_count"] for part in result["partitions"]
    }
    assert sorted(sm for sms in seen.values() for sm in sms) == list(range(132))


@pytest.mark.sim_only
def test_kernel_computes_on_all_sms_of_its_partition(sim: Callable[..., Any]) -> None:
    sim("h200")
    assert document()["computed"] == {
        name: {"total": 268369920, "expected": 268369920, "sms": sms, "foreign_sms": 0}
        for name, sms in (("control", 16), ("background", 116))
    }


@pytest.mark.sim_only
def test_the_document_reports_everything_that_the_text_does(sim: Callable[..., Any]) -> None:
    sim("h200")
    result = document()
    assert result["command"] == "demo"
    assert result["simulated"] is True
    assert result["isolated"] is True
    assert sum(context["expected"] for context in result["report"]["contexts"]) == result["device"]["sm_count"]
    rows = result["latency"]["rows"]
    assert [row["key"] for row in rows] == [
        "alone",
        "plain",
        "priority",
        "partition_alone",
        "partition_only",
        "isolated",
    ]
    for row in rows:
        assert row["samples"] == 20
        assert 0 < row["us"]["p50"] <= row["us"]["p90"] <= row["us"]["p99"] <= row["us"]["max"]


# ---- what isolation does


@pytest.mark.sim_only
@pytest.mark.parametrize(("card", "driver"), [("h200", "12.4"), ("h200", "13.0"), ("h200", "13.1"), ("b200", "13.4")])
def test_only_the_background_partition_keeps_the_load_away(sim: Callable[..., Any], card: str, driver: str) -> None:
    sim(card, driver=driver)
    result = document()
    found = p99(result)
    assert found["plain"] >= LOAD_BLOCK_US
    assert found["partition_only"] >= LOAD_BLOCK_US
    # It comes before all blocks that wait, and waits for those that run.
    assert 0.9 * LOAD_BLOCK_US <= found["priority"] < found["plain"]
    assert found["isolated"] <= 2 * found["partition_alone"]
    assert result["latency"]["verdict"]["priority_to_isolated"] >= 30
    assert result["latency"]["verdict"]["isolated_to_alone"] <= 1.3


@pytest.mark.sim_only
def test_a_stream_that_shares_a_hardware_queue_with_the_load_is_skipped(sim: Callable[..., Any]) -> None:
    sim("h200", connections=2)
    device, made = Device(), []

    def make() -> Stream:
        made.append(device.create_stream())
        return made[-1]

    # Queues are dealt out by turns: the third stream gets that of the first.
    with (
        device.create_stream() as busy,
        device.create_stream(),
        background_load(busy) as load,
        stream_next_to(load, make) as stream,
    ):
        assert [one.is_closed for one in made] == [True, False]
        with stream.record() as mark:
            mark.sync()
            assert not load.has_completed_a_call


@pytest.mark.sim_only
def test_streams_that_must_share_a_hardware_queue_are_refused(sim: Callable[..., Any]) -> None:
    sim("h200", connections=1)
    done = demo()
    assert done.exit_code == 1
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in done.stderr


@pytest.mark.sim_only
def test_the_load_keeps_a_few_launches_queued_and_never_more(sim: Callable[..., Any]) -> None:
    machine = sim("h200")
    device = Device()
    with device.create_stream() as stream:
        with background_load(stream) as load:
            for _ in range(3):  # more polls than that let time pass
                load.fill()
            assert machine.calls("cuLaunchKernel") == LOAD_LAUNCHES
            stream.sync()
            load.fill()
            assert machine.calls("cuLaunchKernel") == 2 * LOAD_LAUNCHES
        assert stream.is_done


@pytest.mark.gpu_only
@pytest.mark.alone
def test_a_background_partition_on_a_gpu_is_worth_what_is_promised() -> None:
    result = document("--samples", "1000")
    print(json.dumps(result["latency"], indent=2))  # for the log of the run
    assert result["isolated"]
    assert result["simulated"] is False
    found = p99(result)
    assert min(found["plain"], found["partition_only"]) >= LOAD_BLOCK_US
    assert found["isolated"] <= 2 * found["partition_alone"]
    assert found["isolated"] * 10 <= found["priority"]


# ---- how it ends


@pytest.mark.sim_only
def test_partitions_that_are_not_isolated_end_it_with_status_1(
    sim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim("h200")
    verified = Partitions.verify

    def leaking(parts: Partitions) -> None:
        report = verified(parts)
        object.__setattr__(report, "outside", (7,))
        raise IsolationError(report)

    monkeypatch.setattr(Partitions, "verify", leaking)
    done = demo("--json")
    assert done.exit_code == 1
    assert "not isolated: SM 7 belong to none of the contexts" in done.stderr
    result = json.loads(done.stdout)
    assert result["isolated"] is False
    assert "latency" not in result


@pytest.mark.sim_only
def test_without_a_driver_it_runs_on_a_simulated_gpu_and_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise DriverNotFound("there is no driver here")

    monkeypatch.delenv("CUDA_GCTX_DRIVER")
    monkeypatch.setattr(module, "open_driver", no_driver)
    done = demo()
    assert done.exit_code == 0
    assert done.output.count("*** simulated") == 2
    assert "Reason: there is no driver here" in done.output
    # Other commands choose no simulated driver by themselves.
    assert "Next: CUDA_GCTX_DRIVER=sim cuda-gctx run " in done.output


@pytest.mark.sim_only
def test_a_card_can_be_simulated_by_name() -> None:
    result = document("--profile", "b200", "--driver", "13.1")
    assert (result["device"]["name"], result["driver"]) == ("NVIDIA B200 (simulated)", "13.1")
    assert result["reason"] == "--profile b200"


@pytest.mark.sim_only
def test_the_story_fits_one_screen_of_80_columns(sim: Callable[..., Any]) -> None:
    sim("h200")
    lines = demo().output.splitlines()
    assert len(lines) < 50


def test_a_driver_that_was_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    done = run_python(
        "import sys; from cuda_gctx.cli import main; sys.argv[1:] = ['demo']; main()",
        CUDA_GCTX_DRIVER=str(tmp_path / "libcuda.so.1"),
    )
    assert done.returncode == 3
    assert "libcuda.so.1: cannot open" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_device_that_is_not_there_ends_it_with_status_3() -> None:
    done = demo("--device", "99")
    assert done.exit_code == 3
    assert "there is no device 99" in done.stderr


@pytest.mark.sim_only
def test_a_machine_that_cannot_be_simulated_is_wrong_usage() -> None:
    code = "import sys; from cuda_gctx.cli import main; sys.argv[1:] = ['demo']; main()"
    done = run_python(code, CUDA_GCTX_DRIVER="sim:voodoo")
    assert done.returncode == 2
    assert "no card 'voodoo' is modelled" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("samples", ["0", "-1", "many", "1000000"])
def test_samples_that_cannot_be_taken_are_wrong_usage(samples: str) -> None:
    assert demo("--samples", samples).exit_code == 2
