"""``cuda-gctx demo``: the main job from end to end: split, fence, prove, and measure what the fence is worth."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from cuda_gctx import CUDAError, Device, IsolationError, Layout, Partitions, SMResourceOptions, SplitError
from cuda_gctx.bench.background import (
    HOG_BLOCK_NS,
    HOG_WAVES,
    SHORT_BLOCKS,
    SHORT_NS,
    Latency,
    SharedQueueError,
    measure_fence,
)
from cuda_gctx.cli._exit import Failure, NoDevice
from cuda_gctx.cli._options import json_option, open_driver
from cuda_gctx.cli._output import console, heading, on_what, table, write_json
from cuda_gctx.measure.machine import is_simulated
from cuda_gctx.partitions.split import FENCE

SIMULATED = "*** simulated: a software driver answers. No GPU is used, and nothing here is a measurement of one. ***"
LATENCY = "from just before the host launches the kernel until the kernel is over, by timing events of the device"
SHORT = f"{SHORT_BLOCKS} blocks of {SHORT_NS / 1000:g} us, one launch after the other"
HOG = f"all SMs that it may use, {HOG_WAVES * HOG_BLOCK_NS / 1e6:g} ms a launch in blocks of {HOG_BLOCK_NS / 1e6:g} ms"


@dataclass(frozen=True)
class Verdict:
    """What the rows say of the fence, as ratios of their p99."""

    fenced_to_alone: float  # in the same partition
    priority_to_fenced: float

    @classmethod
    def of(cls, rows: tuple[Latency, ...]) -> Verdict:
        p99 = {row.key: row.us.p99 for row in rows}
        return cls(round(p99["fenced"] / p99["partition_alone"], 2), round(p99["priority"] / p99["fenced"], 1))


@contextmanager
def _found(number: int) -> Iterator[tuple[Device, str | None]]:
    """The GPU; or, where nobody asked for a driver by name, a simulated one. And why it is simulated, if it is."""
    asked = os.environ.get("CUDA_GCTX_DRIVER")
    try:
        open_driver()
        device = Device(number)
    except ValueError as error:
        raise NoDevice(str(error)) from None
    except CUDAError as error:
        if asked:
            raise
        reason = str(error)
    else:
        why = f"CUDA_GCTX_DRIVER={asked} asks for it" if asked else "it is the driver that programs find here"
        yield device, why if is_simulated(device) else None
        return
    from cuda_gctx.sim import session

    with session("h200", check=False):
        yield Device(0), reason


def _layout(device: Device) -> Layout:
    """About 1/16 and 1/12 of the SMs, which the split rounds up; all others are the fence."""
    return Layout(comm=max(1, device.sm_count // 16), decode=max(1, device.sm_count // 12))


def _partitions(parts: Partitions) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name,
            "asked": part.requested,
            "sm_count": part.sm_count,
            "stream_sm_count": part.stream.resources.sm.sm_count,
            "cluster_sms": part.coscheduled_alignment,
            "strategy": part.strategy,
            "green": part.stream.context.is_green,
        }
        for part in parts
    ]


def _refusal(device: Device) -> str:
    whole = device.resources.sm
    try:
        whole.split(SMResourceOptions([whole.sm_count, whole.min_partition_size]), dry_run=True)
    except SplitError as error:
        return str(error)
    raise AssertionError("more SMs than there are were given")


class _Teller:
    """Prints each part of the demo as soon as it is known; nothing where a document is asked for."""

    def __init__(self, silent: bool) -> None:
        self._out = None if silent else console()

    def say(self, *what: Any) -> None:
        if self._out is None:
            return
        for one in what:
            self._out.print(one, soft_wrap=isinstance(one, str))

    def device(self, device: Device, reason: str | None) -> None:
        if reason is not None:
            self.say(SIMULATED, f"Reason: {reason}", "")
        self.say(heading(device), "")

    def split(self, layout: Layout, partitions: list[dict[str, Any]]) -> None:
        asked = ", ".join(f"{name}={spec.sms}" for name, spec in zip(layout.names, layout.specs, strict=True))
        header = ("partition", "asked", "got", "stream.resources.sm.sm_count", "clusters", "strategy", "green")
        rows = [
            (
                part["name"],
                "the fence" if part["name"] == FENCE else str(part["asked"]),
                part["sm_count"],
                part["stream_sm_count"],
                f"up to {part['cluster_sms']} SMs",
                part["strategy"],
                "yes" if part["green"] else "no",
            )
            for part in partitions
        ]
        self.say(f"Split: device.partition({asked})", "", table(header, rows), "")

    def proof(self, report: Any) -> None:
        self.say("Prove: a kernel on every SM tells where it runs", "", str(report), "", str(report.sm_map()), "")

    def measuring(self) -> None:
        self.say(
            "Measure: a short kernel, and a hog that leaves no SM free",
            "",
            f"The short kernel: {SHORT}.",
            f"The hog: {HOG}, some launches always queued.",
            f"Latency: {LATENCY}.",
        )

    def latency(self, rows: tuple[Latency, ...]) -> None:
        header = ("short kernel on", "hog on", "p50, us", "p90, us", "p99, us", "largest, us", "samples")
        body = [
            (row.short_kernel_on, row.hog_on, *(round(us, 1) for us in asdict(row.us).values()), row.samples)
            for row in rows
        ]
        verdict = Verdict.of(rows)
        self.say(
            "",
            table(header, body),
            "",
            f"At p99: fenced, {verdict.fenced_to_alone:.2f} times as long as alone in the same partition; "
            f"on a stream of the highest priority, {verdict.priority_to_fenced:.0f} times as long as fenced.",
            "A partition alone is no reservation: other work uses its SMs too, unless a fence keeps it out.",
            "",
        )

    def end(self, refusal: str, reason: str | None) -> None:
        self.say("A request that does not fit says what would:", "", f"SplitError: {refusal}", "")
        self.say("All streams and partitions are closed.")
        if reason is not None:
            self.say("", SIMULATED)


def _measured(parts: Partitions, samples: int) -> tuple[Latency, ...]:
    try:
        return measure_fence(parts, parts.decode, samples)
    except SharedQueueError as error:
        raise Failure(str(error)) from None


def _document(rows: tuple[Latency, ...]) -> dict[str, Any]:
    return {
        "us": LATENCY,
        "short_kernel": {"blocks": SHORT_BLOCKS, "block_ns": SHORT_NS},
        "hog": {"waves": HOG_WAVES, "block_ns": HOG_BLOCK_NS},
        "rows": [asdict(row) for row in rows],
        "verdict": asdict(Verdict.of(rows)),
    }


@click.command()
@click.option("--device", "number", type=click.IntRange(min=0), default=0, metavar="N", help="Which device (0).")
@click.option(
    "--samples",
    type=click.IntRange(min=1, max=100_000),
    default=1000,
    show_default=True,
    help="How often the short kernel is launched for each row.",
)
@json_option
def demo(number: int, samples: int, as_json: bool) -> None:
    """Splits the device, proves who has which SMs, and measures what a fence is worth. Takes some seconds.

    Without a GPU it runs on a simulated one, and says so. Ends with status 1 if the partitions are not isolated.
    """
    tell = _Teller(silent=as_json)
    with _found(number) as (device, reason):
        told: dict[str, Any] = {**on_what(device), "simulated": is_simulated(device), "reason": reason}
        tell.device(device, reason)
        layout = _layout(device)
        with device.partition(layout) as parts:
            if parts.rest is None:
                raise Failure(f"{device.name} has too few SMs for two partitions and a fence: {parts!r}")
            told["partitions"] = _partitions(parts)
            tell.split(layout, told["partitions"])
            try:
                report = parts.verify()
            except IsolationError as error:
                report = error.report
            told |= {"isolated": not report.problems, "report": json.loads(report.to_json())}
            tell.proof(report)
            if not report.problems:
                tell.measuring()
                rows = _measured(parts, samples)
                told["latency"] = _document(rows)
                tell.latency(rows)
        told["refusal"] = _refusal(device)
        tell.end(told["refusal"], reason)
        if as_json:
            write_json("demo", told)
        if report.problems:
            raise Failure("not isolated: " + "; ".join(report.problems))
