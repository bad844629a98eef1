"""The raw calls do what the benchmarks say that they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import partitions
import pytest
from call_costs import CALLS
from raw_calls import RawCalls

from cuda_gctx import Device

Machines = Callable[..., Any]


def calls_of(machine: Any, action: Callable[[], object]) -> dict[str, int]:
    """The driver calls of an action, by name."""
    before = machine.calls()
    action()
    after = machine.calls()
    return {name: number - before.get(name, 0) for name, number in after.items() if number != before.get(name, 0)}


def test_every_raw_call_has_its_row() -> None:
    assert {call.raw_name or call.name for call in CALLS if call.raw} == set(RawCalls.names())


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
def test_a_raw_call_is_made_as_often_as_asked(sim: Machines, name: str, function: str) -> None:
    machine = sim("h200", driver="13.0")
    with RawCalls(Device()) as raw:
        before = machine.calls(function)
        assert raw.time(name, 7) > 0
        assert machine.calls(function) - before == 7
        raw.settle()


@pytest.mark.parametrize("driver", ["12.4", "13.0"])
@pytest.mark.parametrize(
    "function", ["cuDevSmResourceSplitByCount", "cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuEventCreate"]
)
def test_raw_calls_are_set_up_whole_or_not_at_all(sim: Machines, driver: str, function: str) -> None:
    machine = sim("h200", driver=driver)
    device = Device()
    _ = device.context
    machine.fail(function, nth=1)
    with pytest.raises(RuntimeError, match=f"{function} answered CUDA_ERROR"):
        RawCalls(device)


def test_raw_calls_report_a_driver_without_green_contexts(sim: Machines) -> None:
    sim("h200", driver="12.3")
    with pytest.raises(RuntimeError, match=r"12\.4"):
        RawCalls(Device())


def test_raw_calls_that_are_unknown_or_closed_are_refused(sim: Machines) -> None:
    sim("h200", driver="13.0")
    raw = RawCalls(Device())
    with pytest.raises(ValueError, match="no raw call 'nothing'"):
        raw.time("nothing", 1)
    raw.close()
    raw.close()
    with pytest.raises(RuntimeError, match="closed"):
        raw.time("query", 1)
    with pytest.raises(RuntimeError, match="closed"):
        raw.settle()


def test_a_raw_switch_makes_the_driver_calls_of_the_switch_beside_it(
    sim: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = sim("h200")
    compared: dict[int, list[int]] = {}

    def compare(targets: Any, device: Device, pending: bool, raw: Any) -> tuple[list[int], dict[str, list[float]]]:
        for target in (*targets, *targets):
            target.switch()
        parts = len(targets[0].places)
        # With SM ids, which a pool does not use, pairs of two parts have fewer waits.
        has_ids = "raw_relay_us" in raw
        name = "raw_relay_us" if parts > 2 else "raw_us"
        for target, calls in zip(targets, raw.get(name, ()) if has_ids == (parts > 2) else (), strict=False):
            device.sync()
            raw_calls = calls_of(machine, calls.time)
            device.sync()
            assert calls_of(machine, target.switch) == raw_calls
            compared.setdefault(parts, []).append(sum(raw_calls.values()))
        return [1], {name: [1] for name in raw}

    monkeypatch.setattr(partitions, "times_of_switches", compare)
    partitions.measure_switching(Device(0))
    of_plans = [8, 7] * 2 + [14, 13] * 2 + [14, 14] * 2
    assert compared.pop(2) == [14, 14] * 2 + of_plans
    assert sorted(compared) == [3, 4, 5, 6]
