"""The tuner on a GPU: that it measures what a clock of the host sees, and finds what was measured before.

Work is the kernel that spins, or torch where it is installed. Budgets are as short as the statements allow, 40 s
together.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from cuda_gctx import Device, Layout, PartitionPool, Stream, tune
from cuda_gctx.measure.loop import TIMED, seconds_between
from cuda_gctx.measure.machine import memory_of
from cuda_gctx.tune import Plan, Report, TailLatency, Throughput, spin

from ..common import refusal
from .conftest import host_takes

# What the frameworks warn of is not the matter here.
pytestmark = [pytest.mark.gpu_only, pytest.mark.alone, pytest.mark.filterwarnings("default")]

US = 1_000
MS = 1_000_000
# What little is measured where the divisions of the SMs are not the matter.
FEW: dict[str, Any] = {"sizes": [64], "library_sms": "off"}


def whole(dev: Device) -> int:
    """Blocks that fill the device."""
    return 2 * dev.sm_count


def work(blocks: int, ns: int) -> Callable[[Stream], None]:
    return lambda stream: spin(stream, blocks, ns)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[Report], Report]:
    """Prints a report also where the test passes."""

    def show(report: Report) -> Report:
        with capsys.disabled():
            print(f"\n{report}")
        return report

    return show


def test_events_of_two_contexts_can_be_subtracted(dev: Device) -> None:
    with dev.partition(one=16) as parts, ExitStack() as closing, dev.create_stream() as plain:
        start = closing.enter_context(plain.record(options=TIMED))
        start.sync()
        ends = []
        for part in (parts.one, parts.background):
            spin(part.stream, 2, MS)
            ends.append(closing.enter_context(part.stream.record(options=TIMED)))
            ends[-1].sync()
        # How long the host took in between is not known, so the differences are compared with each other.
        first, second = seconds_between(start, ends[0]), seconds_between(ends[0], ends[1])
        assert min(first, second) > 1e-3
        assert seconds_between(start, ends[1]) == pytest.approx(first + second, abs=1e-5)


def test_halves_go_side_by_side(dev: Device, shown: Any) -> None:
    half = work(dev.sm_count, 500 * US)
    report = shown(tune.overlap(left=half, right=half, device=dev, budget_s=3, **FEW))
    assert report.best.kind in {"streams", "priority"}  # equally good
    assert report.gain == pytest.approx(2, rel=0.1)
    assert report.gain_low is None or report.gain_low > 1.5


def test_what_fills_the_device_stays_in_sequence(dev: Device, shown: Any) -> None:
    product, sigmoid = work(4 * whole(dev), 200 * US), work(whole(dev), 200 * US)
    report = shown(tune.overlap(product=product, sigmoid=sigmoid, device=dev, budget_s=2.5, **FEW))
    assert report.result(report.choice or report.best).relative <= 1.03
    assert report.gain < 1.1


def test_a_short_kernel_next_to_bulk_work_gets_a_partition(dev: Device, shown: Any) -> None:
    report = shown(
        tune.overlap(
            bulk=work(whole(dev), 1 * MS),
            critical=work(16, 5 * US),
            objective=TailLatency("critical", quantile=0.9, rate=500),
            device=dev,
            sizes=[16],
            library_sms="off",
            budget_s=6,
        )
    )
    # The overlay leaves SMs to the short kernel, as partitions do.
    assert report.best.kind in ("overlay", "partitions")
    best = report.result(report.best)
    assert best.relative <= 0.25
    first = next(result for result in report.results if result.plan.kind == "priority")
    assert first.seconds >= 10 * best.seconds


def test_launches_that_bind_are_reported(dev: Device, shown: Any) -> None:
    short = work(1, 100)
    report = shown(tune.overlap(a=short, b=short, device=dev, budget_s=1.5, **FEW))
    assert any(reason.startswith("launch-bound") for reason in report.reasons)
    graphs = shown(tune.overlap(a=short, b=short, device=dev, budget_s=1.5, launch="graphs", **FEW))
    assert graphs.launch == "graphs"


def test_a_gain_is_not_one_of_the_gate(dev: Device, shown: Any) -> None:
    # The parts overlap on the device, but one host thread needs 4 ms for both, and more on a slow host.
    def part(stream: Stream) -> None:
        host_takes(2 * MS)
        spin(stream, dev.sm_count, 2_600 * US)

    report = shown(tune.overlap(a=part, b=lambda s: part(s), device=dev, budget_s=3, launch="calls", **FEW))
    streams = next(result for result in report.results if result.plan.kind == "streams")
    assert streams.seconds > 3.9e-3
    assert report.gain < 1.4


def test_a_mix_of_more_launches_than_the_queue_holds_is_not_launch_bound(dev: Device, shown: Any) -> None:
    # 44 ms of short kernels in each mix: the host waits for the device, and not the other way round.
    report = shown(
        tune.overlap(
            long=work(whole(dev), 500 * US),
            short=work(16, 40 * US),
            objective=Throughput(long=1, short=1100),
            device=dev,
            budget_s=2,
            **FEW,
        )
    )
    assert not any(reason.startswith("launch-bound") for reason in report.reasons)


def test_what_the_caller_enqueued_before_is_waited_for(dev: Device) -> None:
    done = []
    with dev.create_stream() as stream:
        spin(stream, 1, 300 * MS)
        with stream.record() as event:

            def reads(stream: Stream) -> None:
                done.append(event.is_done)
                spin(stream, 8, 100 * US)

            tune.overlap(reads, other=work(8, 100 * US), device=dev, budget_s=1, **FEW)
    assert done[0]


def test_a_second_run_takes_no_device_memory(dev: Device) -> None:
    half = work(dev.sm_count, 100 * US)
    assert tune.overlap(left=half, right=half, device=dev, budget_s=4, **FEW).complete
    free, _ = memory_of(dev)
    tune.overlap(left=half, right=half, device=dev, budget_s=1.5, **FEW)
    assert memory_of(dev)[0] >= free


# ---- torch


def test_torch_next_to_torch(torch: Any, dev: Device, shown: Any) -> None:
    a, b, x = (torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16) for _ in range(3))
    out, y = torch.empty_like(a), torch.empty_like(x)
    report = shown(
        tune.overlap(
            product=lambda stream: torch.mm(a, b, out=out),
            sigmoid=lambda stream: torch.sigmoid(x, out=y),
            device=dev,
            sizes=[64],
            budget_s=4,
        )
    )
    assert {result.plan.library_sms for result in report.results} == {False, True}
    assert report.result(report.choice or report.best).relative <= 1.03
    assert not any("waits for the device" in reason for reason in report.reasons)
    torch.cuda.synchronize()


def test_a_mix_of_torch(torch: Any, dev: Device, shown: Any) -> None:
    weights = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
    many, few = (torch.randn(rows, 8192, device="cuda:0", dtype=torch.bfloat16) for rows in (2048, 16))
    shown(
        tune.overlap(
            prefill=lambda stream: torch.mm(many, weights),
            decode=lambda stream: torch.mm(few, weights),
            objective=Throughput(prefill=1, decode=4),
            device=dev,
            sizes=[64],
            budget_s=2.5,
        )
    )
    torch.cuda.synchronize()
    gc.collect()


def test_torch_on_another_stream_is_refused(torch: Any, dev: Device) -> None:
    x = torch.randn(4096, 4096, device="cuda:0")

    def elsewhere(stream: Stream) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            x.sigmoid_()

    error = refusal(ValueError, lambda: tune.overlap(elsewhere, other=work(1, MS), device=dev, budget_s=2))
    assert "part 'elsewhere' enqueued no work on the stream that it received" in str(error)


def test_torch_that_works_on_two_streams_is_refused(torch: Any, dev: Device) -> None:
    x, y = (torch.randn(8192, 8192, device="cuda:0") for _ in range(2))

    def split(stream: Stream) -> None:
        x.sigmoid_()
        with torch.cuda.stream(torch.cuda.default_stream()):
            for _ in range(3):
                y.sigmoid_()

    error = refusal(tune.PartError, lambda: tune.overlap(split, other=work(1, MS), device=dev, budget_s=2))
    assert "split puts work on another stream" in str(error)


def test_torch_that_waits_is_reported(torch: Any, dev: Device) -> None:
    x = torch.randn(4096, 4096, device="cuda:0")

    def waiting(stream: Stream) -> None:
        x.sum().item()

    report = tune.overlap(waiting, other=work(132, MS // 10), device=dev, budget_s=1.5, **FEW)
    assert any(reason.startswith("waiting waits for the device inside its function") for reason in report.reasons)


OVERLAY = Plan("overlay", ("a", "b"), Layout(b=64), {"b": "b"}, first="a")


@pytest.mark.parametrize("kinds", [("streams", "overlay"), ("overlay", "partitions"), ("partitions", "streams")])
def test_switches_between_kinds_of_plans_are_ordered(dev: Device, kinds: tuple[str, str]) -> None:
    plans = {
        "streams": Plan("streams", ("a", "b")),
        "overlay": OVERLAY,
        "partitions": Plan("partitions", ("a", "b"), Layout(a=16, b=None), {"a": "a", "b": "b"}),
    }
    before, after = (plans[kind] for kind in kinds)
    with PartitionPool(dev) as pool, ExitStack() as closing:
        old = before.switch(pool)
        ends = {}
        for part, stream in old.items():
            spin(stream, 8, 20 * MS)
            ends[part] = closing.enter_context(stream.record(options=TIMED))
        new = after.switch(pool)
        starts = {part: closing.enter_context(stream.record(options=TIMED)) for part, stream in new.items()}
        for stream in (*old.values(), *new.values()):
            stream.sync()
        for part, start in starts.items():
            if new[part] not in old.values():
                assert all(seconds_between(e, start) >= 0 for p, e in ends.items() if old[p] not in new.values())
