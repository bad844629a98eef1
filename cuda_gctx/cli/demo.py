"""``cuda-gctx demo``: partition a device, verify where work runs, and measure how isolation affects latency."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from cuda_gctx import CUDAError, Device, IsolationError, Layout, Partitions
from cuda_gctx.cli import _on_a_card, _sum_kernel
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import device_number, device_of, driver_options, open_driver
from cuda_gctx.cli._output import ResultTable, console, heading, on_what, write_json
from cuda_gctx.cli.sim import is_installed, simulated
from cuda_gctx.extending import Progress
from cuda_gctx.measure.latencies import (
    LOAD_BLOCK_NS,
    LOAD_WAVES,
    SHORT_BLOCKS,
    SHORT_NS,
    LatencyRow,
    SharedQueueError,
    measure_latencies,
)
from cuda_gctx.partitions import BACKGROUND, open_layout, with_background

SIMULATED = "*** simulated: a software driver answers. No GPU is used, and no number here is a measurement of one. ***"
NEXT = "Next: {}cuda-gctx run --layout control=16,rest --as control -- python YOUR_PROGRAM.py"
LATENCY = "from just before the host launches the kernel until it completes, timed by events of the device"


@dataclass(frozen=True)
class Verdict:
    """The effect of isolation, as ratios of the p99 of two rows."""

    isolated_to_alone: float  # in the same partition
    priority_to_isolated: float

    @classmethod
    def of(cls, rows: tuple[LatencyRow, ...]) -> Verdict:
        p99 = {row.key: row.us["p99"] for row in rows}
        return cls(round(p99["isolated"] / p99["partition_alone"], 2), round(p99["priority"] / p99["isolated"], 1))


@contextmanager
def _device(number: int | None, profile: str | None, version: str | None) -> Iterator[tuple[Device, str | None]]:
    """The device, and the reason if it is simulated: no driver was selected, and none works."""
    asked = os.environ.get("CUDA_GCTX_DRIVER")
    reason: str | None = None
    with ExitStack() as closing:
        if profile is not None:
            closing.enter_context(simulated(profile, version))
            reason = f"--profile {profile}"
        else:
            try:
                open_driver()
                Device(0)
            except CUDAError as error:
                if asked or not is_installed():
                    raise
                reason = str(error)
                closing.enter_context(simulated("h200", None))
        device = device_of(number)
        if reason is None and device.is_simulated:
            reason = f"CUDA_GCTX_DRIVER={asked}" if asked else "it is the driver that programs find here"
        yield device, reason


def _layout(device: Device) -> Layout:
    """Request an eighth of the SMs, rounded up if necessary. The other SMs become the background partition."""
    return Layout(control=max(1, device.sm_count // 8))


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
        for part in with_background(parts)
    ]


class _Story:
    """Prints the device, the answer, and then the steps. Prints nothing if a document is requested."""

    def __init__(self, silent: bool) -> None:
        self._out = None if silent else console()
        self._steps: list[tuple[Any, bool]] = []

    def say(self, *what: Any) -> None:
        if self._out is not None:
            for one in what:
                self._out.print(one)

    def step(self, *what: Any, preformatted: bool = False) -> None:
        """Keep the output of `tell` for the place below the answer."""
        self._steps += [(one, preformatted) for one in what]

    def tell(self) -> None:
        if self._out is not None:
            for one, preformatted in self._steps:
                self._out.print(one, soft_wrap=preformatted)

    def device(self, device: Device, reason: str | None) -> None:
        if reason is not None:
            self.say(SIMULATED, f"Reason: {reason}", "")
        self.say(heading(device), "")

    def partitioned(self, layout: Layout, partitions: list[dict[str, Any]]) -> None:
        asked = ", ".join(f"{name}={spec.sms}" for name, spec in zip(layout.names, layout.specs, strict=True))
        rows = [
            (part["name"], "" if part["name"] == BACKGROUND else str(part["asked"]), part["sm_count"])
            for part in partitions
        ]
        self.step(
            f"1. Partition: device.partition({asked})", "", ResultTable(("partition", "requested", "SMs"), rows), ""
        )

    def verified(self, report: Any) -> None:
        result = "each SM was used by one partition only" if not report.problems else "; ".join(report.problems)
        self.step(f"2. Verify: a kernel on every SM reports where it runs: {result}")
        if self._out is not None:
            self.step(report.sm_map().text(self._out.width), preformatted=True)
        self.step("")

    def computed(self, results: dict[str, _sum_kernel.SumResult]) -> None:
        right = all(result.total == result.expected for result in results.values())
        where = ", ".join(f"{name} on {result.sms} SMs" for name, result in results.items())
        foreign = sum(result.foreign_sms for result in results.values())
        self.step(f"3. Compute: sums are {'right' if right else 'wrong'}: {where}, {foreign} foreign", "")

    def measured(self, rows: tuple[LatencyRow, ...], simulated: bool) -> None:
        header = ("short kernel on", "load on", "p50, us", "p99, us", "max, us")
        body = []
        for row in rows:
            body.append(
                (row.short_kernel_on, row.load_on, *(round(row.us[name], 1) for name in ("median", "p99", "max")))
            )
        verdict = Verdict.of(rows)
        self.say(
            "Next to a load in the background partition, the p99 latency of a short kernel in a partition is "
            f"{verdict.isolated_to_alone:.2f}x its p99 without load. On a stream of the highest priority, next to the "
            f"same load, it is {verdict.priority_to_isolated:.0f}x as long as in the partition.",
            "",
        )
        if simulated:
            self.say(
                f"On a card ({_on_a_card.WHERE}), next to GEMMs and with {_on_a_card.REQUESTS_PER_SECOND} requests per "
                f"second, its p99 was {_on_a_card.ISOLATED} in the partition, {_on_a_card.ALONE} on the idle GPU, and "
                f"{_on_a_card.PRIORITY} on a stream of the highest priority.",
                "",
            )
        self.step(
            "4. Measure: the latency of a short kernel while a background load occupies all SMs that it may use "
            f"(launches of {LOAD_WAVES * LOAD_BLOCK_NS / 1e6:g} ms, always some queued)",
            ResultTable(header, body),
            "",
            "A partition alone reserves nothing: work outside of partitions uses all SMs. Run it in the background "
            "partition.",
        )

    def end(self, reason: str | None) -> None:
        self.tell()
        if reason is not None:
            self.say("A real card shares its memory and caches too, which adds to the latency.", SIMULATED)
        # Without a driver, only the demo chooses the simulated one by itself.
        chosen = "" if reason is None or os.environ.get("CUDA_GCTX_DRIVER") else "CUDA_GCTX_DRIVER=sim "
        self.say(NEXT.format(chosen))


def _measured(parts: Partitions, samples: int) -> tuple[LatencyRow, ...]:
    try:
        with Progress(None) as bar:
            return measure_latencies(parts.control.context, parts.background.context, samples, bar.show)
    except SharedQueueError as error:
        raise Failure(str(error)) from None


def _document(rows: tuple[LatencyRow, ...]) -> dict[str, Any]:
    return {
        "us": LATENCY,
        "short_kernel": {"blocks": SHORT_BLOCKS, "block_ns": SHORT_NS},
        "load": {"waves": LOAD_WAVES, "block_ns": LOAD_BLOCK_NS},
        "rows": [
            {
                "key": row.key,
                "short_kernel_on": row.short_kernel_on,
                "load_on": row.load_on,
                "samples": row.us["samples"],
                "us": {"p50": row.us["median"], **{name: row.us[name] for name in ("p90", "p99", "max")}},
            }
            for row in rows
        ],
        "verdict": asdict(Verdict.of(rows)),
    }


@click.command(short_help="Partition, verify and measure, from end to end.")
@click.option(
    "--samples",
    type=click.IntRange(min=1, max=100_000),
    default=1000,
    show_default=True,
    help="Launch the short kernel this many times per row.",
)
@device_number
@driver_options
def demo(number: int | None, profile: str | None, version: str | None, samples: int, as_json: bool) -> None:
    """Partition a device, verify where work runs, and measure how isolation affects latency.

    Takes a few seconds. Without a GPU, it uses a simulated one and says so. The exit status is 1 if the
    partitions are not isolated.

    \b
    Examples:
      cuda-gctx demo
      cuda-gctx demo --profile b200 --samples 100
    """
    story = _Story(silent=as_json)
    with _device(number, profile, version) as (device, reason):
        document: dict[str, Any] = {**on_what(device), "simulated": device.is_simulated, "reason": reason}
        story.device(device, reason)
        layout = _layout(device)
        with open_layout(device, layout) as parts:
            if BACKGROUND not in parts:
                raise Failure(f"{device.name} has too few SMs for a partition and a background partition: {parts!r}")
            document["partitions"] = _partitions(parts)
            story.partitioned(layout, document["partitions"])
            try:
                report = parts.verify()
            except IsolationError as error:
                report = error.report
            document |= {"isolated": not report.problems, "report": json.loads(report.to_json())}
            story.verified(report)
            if not report.problems:
                sms = {context.name: frozenset(context.sm_ids) for context in report.contexts}
                results = {part.name: _sum_kernel.run(part, sms[part.name]) for part in with_background(parts)}
                document["computed"] = {name: asdict(result) for name, result in results.items()}
                story.computed(results)
                rows = _measured(parts, samples)
                document["latency"] = _document(rows)
                if document["simulated"]:
                    document["latency"]["on_a_card"] = {
                        "where": _on_a_card.WHERE,
                        "requests_per_second": _on_a_card.REQUESTS_PER_SECOND,
                        "p99": {
                            "alone": _on_a_card.ALONE,
                            "isolated": _on_a_card.ISOLATED,
                            "priority": _on_a_card.PRIORITY,
                        },
                    }
                story.measured(rows, document["simulated"])
        story.end(reason)
        if as_json:
            write_json("demo", document)
        if report.problems:
            raise Failure("not isolated: " + "; ".join(report.problems))
