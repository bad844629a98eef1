"""Proof of isolation: what runs where it should passes, what does not is found, and nothing waits for ever."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Context, ContextOptions, CUDAError, Device, IsolationError
from cuda_gctx._core.extension import probe_blocks_per_sm, run_probe
from cuda_gctx.partitions import verification, with_background
from cuda_gctx.partitions.causes import lack_of_concurrency
from cuda_gctx.partitions.verification import verify

from ..common import DRIVERS, green, refusal, split

Machines = Callable[..., Any]


@pytest.mark.alone
def test_partitions_run_on_their_own_sms_and_at_once(dev: Device) -> None:
    with dev.partition(decode=8, prefill=None) as parts:
        report = parts.verify()
        assert [proof.name for proof in report.contexts] == [part.name for part in parts]
        assert [len(proof.sm_ids) for proof in report.contexts] == [part.sm_count for part in parts]
        assert report.problems == ()
        assert report.overlaps == ()
        assert report.outside == ()
        assert report.concurrent is True
        assert report.cause is None
        assert sum(len(proof.sm_ids) for proof in report.contexts) == dev.sm_count
        assert parts.decode.sm_ids == report.contexts[0].sm_ids


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_version_can_be_verified(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    with Device(0).partition(8, 8, 24) as parts:
        assert parts.verify().concurrent is True


@pytest.mark.parametrize("card", ["h100", "a100", "l40s", "rtx4090", "b200", "vr200", "rtx5080", "thor"])
def test_other_cards_can_be_verified(sim: Machines, card: str) -> None:
    sim(card, driver="13.0")
    with Device(0).partition(0.5) as parts:
        assert parts.verify().problems == ()


def test_a_context_proves_itself(dev: Device) -> None:
    [group], _ = split(dev.resources.sm, [8])
    with green(dev, group, name="radio") as context:
        report = context.verify()
        assert report.contexts[0].name == "radio"
        assert len(report.contexts[0].sm_ids) == context.sm_count
        assert report.concurrent is None
    whole = dev.context.verify()
    assert whole.contexts[0].expected == dev.sm_count


def overlapping(dev: Device) -> tuple[Context, Context]:
    """Two contexts out of two splits, which both begin with the same SMs."""
    [small], _ = split(dev.resources.sm, [8])
    [large], _ = split(dev.resources.sm, [16])
    first = dev.create_context(ContextOptions([small]))
    with pytest.warns(Warning, match="SMs"):
        return first, dev.create_context(ContextOptions([large]))


def test_contexts_that_share_sms_are_found(dev: Device) -> None:
    small, large = overlapping(dev)
    with small, large:
        error = refusal(IsolationError, lambda: verify({"small": small, "large": large}))
        report = error.report
        [shared] = report.overlaps
        assert (shared.first, shared.second) == ("small", "large")
        assert set(shared.sm_ids) <= set(report.contexts[0].sm_ids) & set(report.contexts[1].sm_ids)
        assert "small and large both ran on SM" in str(error)
        assert "NOT isolated" in str(report)
        assert "!" in str(report.sm_map())
        assert json.loads(report.to_json())["problems"] == list(report.problems)


def test_sms_outside_are_found(dev: Device) -> None:
    [group], rest = split(dev.resources.sm, [8])
    with green(dev, group) as context:
        error = refusal(IsolationError, lambda: verify({"alone": context}, covers_device=True))
        assert len(error.report.outside) == rest.sm_count
        assert "belong to none of the contexts" in str(error)


@pytest.mark.alone
def test_report_is_json_a_table_and_a_map(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        report = parts.verify()
    assert repr(report) == f"<VerifyReport: isolated; decode, background on {dev.name}>"
    assert report._repr_html_() == report.sm_map().svg()
    written = json.loads(report.to_json())
    assert written["device"] == dev.name
    assert written["problems"] == []
    assert [entry["name"] for entry in written["contexts"]] == ["decode", "background"]
    assert written["contexts"][0]["sm_ids"] == list(report.contexts[0].sm_ids)
    lines = str(report).splitlines()
    assert lines[0].startswith(dev.name)
    assert lines[0].endswith("isolated")
    assert lines[-1] == "all ran at the same time"
    assert str(report.sm_map()).splitlines()[-1] == "A = decode, B = background"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), "1 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for 3 contexts"),
        (None, "try CUDA_MODULE_LOADING=EAGER"),
        (("CUDA_MODULE_LOADING", "EAGER"), "no known cause fits"),
    ],
)
def test_lack_of_concurrency_is_reported_with_the_cause_that_fits(
    sim: Machines, monkeypatch: pytest.MonkeyPatch, setting: tuple[str, str] | None, words: str
) -> None:
    sim("h200", connections=1)
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"):
        monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv(*setting)
    with Device(0).partition(8, 8) as parts:
        report = parts.verify()
    assert report.problems == ()  # isolated all the same
    assert report.concurrent is False
    assert report.cause is not None
    assert words in report.cause
    assert "did not run at the same time" in str(report)


def test_a_cause_is_looked_for_next_to_the_block_of_another_task(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    with dev.context.current():
        assert contextvars.Context().run(lack_of_concurrency, dev, 2) == "no known cause fits"


def test_the_probe_fills_every_sm(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[list[int]] = []

    def watched(streams: Any, blocks: list[int], *rest: Any) -> Any:
        launched.append(blocks)
        return run_probe(streams, blocks, *rest)

    monkeypatch.setattr(verification, "run_probe", watched)
    with dev.partition(8, 16) as parts:
        parts.verify()
        full = [part.sm_count * probe_blocks_per_sm(part.context) for part in with_background(parts)]
        assert full[0] > parts[0].sm_count  # one block on each SM would leave room for a second one on the same
        assert launched[0] == full
        assert launched[-1] == [dev.sm_count * probe_blocks_per_sm(dev.context)]


def test_bad_input_is_refused(dev: Device) -> None:
    with pytest.raises(ValueError, match="contexts is empty"):
        verify({})
    with dev.partition(8) as parts:
        for wrong in ([parts[0].stream], {"a": parts[0]}, {"a": parts[0].stream}, {1: parts[0].context}):
            with pytest.raises(TypeError, match="a mapping of names to contexts"):
                verify(wrong)  # type: ignore[arg-type]
        for timeout in (0, 0.0005, -1, float("nan"), 1e9):
            with pytest.raises(ValueError, match="timeout must be"):
                parts.verify(timeout=timeout)
        with pytest.raises(TypeError, match="timeout must be"):
            parts.verify(timeout="1")  # type: ignore[arg-type]


def test_contexts_of_two_devices_are_refused(sim: Machines) -> None:
    sim("h200", devices=2)
    with Device(0).partition(8) as a, Device(1).partition(8) as b:
        with pytest.raises(ValueError, match="several devices"):
            verify({"a": a[0].context, "b": b[0].context})
        assert a.verify().problems == b.verify().problems == ()


@pytest.mark.parametrize(
    "function", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuMemAlloc", "cuLaunchKernel", "cuMemcpyDtoHAsync"]
)
def test_a_failing_driver_call_is_reported_and_leaves_nothing_behind(sim: Machines, function: str) -> None:
    machine = sim("h200")
    with Device(0).partition(8, 8) as parts:
        machine.fail(function, nth=1)
        error = refusal(CUDAError, parts.verify)
        assert error.call == function
        assert machine.ledger().live_of("stream") == ()
        assert parts.verify().problems == ()


def test_verify_leaves_no_memory_behind(sim: Machines) -> None:
    machine = sim("h200")
    with Device(0).partition(8, None) as parts:
        parts.verify()
        free = machine.memory()["free"]
        for _ in range(20):
            parts.verify()
        assert machine.memory()["free"] == free
        assert machine.ledger().live_of("stream") == ()


HOUR_NS = 3_600_000_000_000  # of virtual time


def test_a_probe_that_does_not_end_is_given_up_and_the_next_one_works(sim: Machines) -> None:
    machine = sim("h200")
    with Device(0).partition(8, 8) as parts:
        parts.verify()
        load = parts[0].context.create_stream()
        # An hour of virtual time, a millisecond of real time.
        error = refusal(RuntimeError, lambda: run_probe([load], [1], HOUR_NS, 1_000_000))
        assert "did not finish within 1 ms" in str(error)
        load.sync()
        assert parts.verify().problems == ()
        load.close()
        assert machine.ledger().live_of("stream") == ()


def test_a_later_run_takes_the_memory_of_runs_that_were_given_up(sim: Machines) -> None:
    machine = sim("h200")
    with Device(0).partition(8, 8) as parts:
        parts.verify()
        free = machine.memory()["free"]
        for _ in range(40):
            stream = parts[0].context.create_stream()
            refusal(RuntimeError, lambda on=stream: run_probe([on], [1], HOUR_NS, 1_000_000))
            stream.sync()
            stream.close()
        parts.verify()
        assert machine.memory()["free"] >= free - 64 * 1024
        assert machine.ledger().live_of("stream") == ()


def test_runs_that_were_given_up_keep_a_bounded_memory_until_they_finish(sim: Machines) -> None:
    machine = sim("h200")
    with Device(0).partition(8, 8) as parts:
        streams = [parts[0].context.create_stream() for _ in range(17)]
        for stream in streams[:16]:
            error = refusal(RuntimeError, lambda on=stream: run_probe([on], [1], HOUR_NS, 1_000_000))
            assert "did not finish within 1 ms" in str(error)
        free = machine.memory()["free"]
        error = refusal(RuntimeError, lambda: run_probe(streams[16:], [1], HOUR_NS, 1_000_000))
        assert "the last 16 abandoned runs of the probe have not finished" in str(error)
        assert machine.memory()["free"] == free
        for stream in streams:
            stream.sync()
        assert parts.verify().problems == ()
        for stream in streams:
            stream.close()
        assert machine.ledger().live_of("stream") == ()
