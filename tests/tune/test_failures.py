"""What parts raise, what they leave capturing, and what other users of the device see of the tuner."""

from __future__ import annotations

import ctypes
import re
import warnings

import pytest

from cuda_gctx import CUDAError, Device, Layout, PartitionPool, Stream, tune
from cuda_gctx.tune import spin

from ..common import refusal
from ..raw import Raw
from .pairs import (
    MS,
    Failing,
    Machines,
    captured,
    chain,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize(("nth", "where"), [(1, "alone"), (60, "in sequence")])
def test_what_a_part_raises_comes_out_with_its_name_and_the_plan(dev: Device, nth: int, where: str) -> None:
    failing = Failing(nth, KeyError("no such layer"))
    error = refusal(RuntimeError, lambda: tune.overlap(left=work(1, MS), right=failing, device=dev))
    assert str(error) == f"right failed ({where}): KeyError: 'no such layer'"
    assert isinstance(error.__cause__, KeyError)
    error.__cause__.with_traceback(None)


def test_a_part_that_works_on_another_stream_is_refused(dev: Device) -> None:
    with dev.create_stream() as other:

        def split(stream: Stream) -> None:
            spin(stream, 8, MS)
            spin(other, 8, 2 * MS)

        error = refusal(tune.PartError, lambda: tune.overlap(split, left=work(8, MS), device=dev))
    assert str(error).startswith("split puts work on another stream, where no plan can place it")


def test_partitions_in_which_a_part_fails_are_left_out(sim: Machines) -> None:
    machine = sim("h200")

    def cooperative(stream: Stream) -> None:
        if stream.resources.sm.sm_count < 32:
            raise OSError("too few SMs")
        spin(stream, 64, MS)

    report = tune.overlap(cooperative, chain=chain, device=Device(0), budget_s=4)
    assert report.complete
    assert min(result.plan.sm_counts.get("cooperative", 132) for result in report.results) == 32
    [reason] = [reason for reason in report.reasons if "excluded" in reason]
    assert reason.startswith("cooperative=")
    assert reason.endswith(" and 2 more excluded: cooperative failed: OSError: too few SMs")
    assert not machine.ledger().live_of("event")


def test_the_only_partitions_in_which_a_part_fails_are_named_alone(dev: Device) -> None:
    def cooperative(stream: Stream) -> None:
        if stream.resources.sm.sm_count < 32:
            raise OSError("too few SMs")
        spin(stream, 64, MS)

    report = tune.overlap(cooperative, chain=chain, device=dev, sizes=[16], budget_s=2)
    [reason] = [reason for reason in report.reasons if "excluded" in reason]
    assert reason == "cooperative=16, chain=116 excluded: cooperative failed: OSError: too few SMs"


def test_an_error_of_the_device_comes_out_with_the_plan(sim: Machines) -> None:
    machine = sim("h200")
    for nth, plan in ((1, "left alone"), (600, r"in sequence|plain streams|first|=")):
        machine.fail("cuEventRecord", nth=nth, code="CUDA_ERROR_UNKNOWN")
        error = refusal(CUDAError, lambda: tuned("each fills half"))
        machine.clear_faults()
        assert re.search(rf"\(.*({plan}).*\)$", str(error))
        assert error.name == "CUDA_ERROR_UNKNOWN"


def test_only_events_that_cannot_be_subtracted_are_reported_as_that(sim: Machines) -> None:
    machine = sim("h200")
    machine.fail("cuEventElapsedTime", nth=1, code="CUDA_ERROR_INVALID_HANDLE")
    assert "cannot time work on streams of different contexts" in str(
        refusal(RuntimeError, lambda: tuned("each fills half"))
    )
    machine.fail("cuEventElapsedTime", nth=1, code="CUDA_ERROR_LAUNCH_FAILED")
    error = refusal(CUDAError, lambda: tuned("each fills half"))
    assert "CUDA_ERROR_LAUNCH_FAILED" in str(error)
    assert "cannot be timed" not in str(error)


def test_a_part_that_leaves_its_stream_capturing_in_partitions_is_named(dev: Device) -> None:
    def cap(stream: Stream) -> None:
        if stream.resources.sm.sm_count <= 64:
            Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 2)
        spin(stream, 8, MS)

    error = refusal(RuntimeError, lambda: tune.overlap(cap, right=work(1, MS), device=dev))
    assert str(error).startswith("cap leaves its stream capturing a graph (cap=")


def test_what_the_caller_enqueued_before_is_waited_for(dev: Device) -> None:
    done = []
    with dev.create_stream() as stream:
        spin(stream, 1, 50 * MS)
        with stream.record() as event:

            def reads(stream: Stream) -> None:
                done.append(event.is_done)
                spin(stream, 8, MS)

            tune.overlap(reads, other=work(8, MS), device=dev, sizes=[8], budget_s=1)
    assert done[0]


def test_a_second_tuning_at_the_same_time_is_refused(dev: Device) -> None:
    reported: list[str] = []

    def tuning(stream: Stream) -> None:
        if not reported:
            reported.append(str(refusal(RuntimeError, lambda: tuned("each fills half"))))
        spin(stream, 8, MS)

    assert tune.overlap(tuning, other=work(8, MS), device=dev, sizes=[8], budget_s=1).complete
    assert reported[0].startswith("another tuning of NVIDIA H200 (simulated) is in progress")


def test_contexts_of_the_caller_are_no_warning_of_the_tuner(dev: Device) -> None:
    with PartitionPool(dev) as pool, warnings.catch_warnings():
        pool.prepare(Layout(decode=16))
        warnings.simplefilter("error")
        choice = tuned("a chain").choice
        assert choice is not None
        assert choice.kind == "partitions"


def test_tuning_during_a_capture_is_refused(dev: Device) -> None:
    part = Failing(0, Exception())
    with dev.create_stream() as stream, captured(stream):
        error = refusal(RuntimeError, lambda: tune.overlap(part=part, other=work(1, MS), device=dev))
        assert "is capturing a graph" in str(error)
    assert part.calls == 0


def test_a_part_that_leaves_its_stream_capturing_is_refused(dev: Device) -> None:
    def left(stream: Stream) -> None:
        Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 2)

    error = refusal(RuntimeError, lambda: tune.overlap(left, right=work(1, MS), device=dev))
    assert "left leaves its stream capturing a graph" in str(error)
