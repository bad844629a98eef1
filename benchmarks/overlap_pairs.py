"""The answers of the tuner for four pairs of real work, each held against an independent measurement.

    python benchmarks/overlap_pairs.py [--out FILE] [--processes 3] [--limit SECONDS] [--seconds 10] [--only PAIR]

Each pair is tuned, and then the chosen plan, the sequence and two plain streams run for ten seconds each, by turns in
blocks of 2.5 s of which the first third does not count: by a loop of this program, which shares no code with the
tuner's. What the tuner reports holds if its ratio and the one that is found agree within their two intervals together,
and if no plan is chosen that is slower than the sequence by more than 1%. Each of three processes measures all pairs,
and all results are written. With --out, the file is complete after each pair of each process, and a later run measures
only what is missing in it. A pair takes 25 s to be tuned and 30 s to be measured: twelve of them take eleven minutes.
Where the tuner is undecided, its best estimate is measured, which may be slower.

- product-elementwise: an 8192 x 8192 x 8192 bf16 GEMM and an 8192 x 8192 sigmoid.
- large-small: large GEMMs, and GEMMs of 16 rows, which read weights; a mix of one and four.
- attention-copy: causal attention, and a copy of 512 MiB within the device.
- product-tiny: the GEMM, and 200 kernels of a few microseconds.

Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from math import exp, log, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import reporting
from studies import SIZE, gemm_and_sigmoid, large_and_small

from cuda_gctx import Device, EventOptions, PartitionPool, Stream
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.results import write_result
from cuda_gctx.measure.statistics import student
from cuda_gctx.tune import Plan, Report, Throughput, overlap

Work = Mapping[str, Callable[[Any], object]]

BUDGET_S = 25.0  # with which the tuner has blocks of more than a second
BLOCKS = 4
NOT_COUNTED = 1 / 3
CHUNK_S = 0.5  # long, because nothing runs next to the last calls of a chunk of mixes
QUEUES = "32"  # more than all plans have streams: two streams that share a hardware queue do not overlap
CERTAINTY = 0.975
MOST_LOST = 0.01
RESOLUTION = 1e-3  # of ratios: that of events in a short step
TIMED = EventOptions(timing_enabled=True)


def attention_and_copy(torch: Any) -> tuple[Work, Any]:
    q, k, v = (torch.randn(4, 32, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    source = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    attend = torch.nn.functional.scaled_dot_product_attention
    return {
        "attention": lambda stream: attend(q, k, v, is_causal=True),
        "copy": lambda stream: target.copy_(source),
    }, "makespan"


def product_and_tiny(torch: Any) -> tuple[Work, Any]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.ones(1 << 14, device="cuda")
    out = torch.empty_like(a)

    def tiny(stream: Any) -> None:
        for _ in range(200):
            x.add_(1)

    return {"product": lambda stream: torch.mm(a, b, out=out), "tiny": tiny}, "makespan"


PAIRS: dict[str, Callable[[Any], tuple[Work, Any]]] = {
    "product-elementwise": gemm_and_sigmoid,
    "large-small": large_and_small,
    "attention-copy": attention_and_copy,
    "product-tiny": product_and_tiny,
}


# ---- the independent measurement


def on(stream: Stream) -> AbstractContextManager[Any]:
    """A block in which torch, if it is loaded, works on a stream; it waits for nothing."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream.handle))  # type: ignore[no-any-return]


class Loop:
    """Runs steps of a plan from one host thread: joined ones, or mixes whose parts do not wait for each other."""

    def __init__(self, work: Work, weights: Mapping[str, int] | None, streams: Mapping[str, Stream]) -> None:
        self._work, self._weights, self._streams = work, weights, streams
        self._steps = 1

    def step(self) -> None:
        main, *others = dict.fromkeys(self._streams.values())
        if self._weights is None and others:
            with main.record() as begin:
                for other in others:
                    other.wait(begin)
        for name, function in self._work.items():
            for _ in range(self._weights[name] if self._weights is not None else 1):
                with on(self._streams[name]):
                    function(self._streams[name])
        if self._weights is None:
            self.join()

    def join(self) -> None:
        """Let the first stream wait for the others."""
        main, *others = dict.fromkeys(self._streams.values())
        for other in others:
            with other.record() as end:
                main.wait(end)

    def chunk(self) -> float:
        """The seconds of a step, over as many of them as take half a second."""
        main, *others = dict.fromkeys(self._streams.values())
        with main.record(None, TIMED) as begin:
            for other in others:
                other.wait(begin)
            for _ in range(self._steps):
                self.step()
            self.join()
            with main.record(None, TIMED) as end:
                end.sync()
                seconds = (end - begin) / 1e3 / self._steps
        self._steps = max(1, round(CHUNK_S / seconds))
        return float(seconds)

    def block(self, block_s: float) -> float:
        """The mean time of a step over a block, without its first third."""
        passed, counted = 0.0, []
        while passed < block_s or not counted:
            steps = self._steps
            seconds = self.chunk()
            if passed >= NOT_COUNTED * block_s or steps * seconds >= block_s:
                counted.append(seconds)
            passed += steps * seconds
        return sum(counted) / len(counted)


def independent(
    device: Device, work: Work, weights: Mapping[str, int] | None, plans: Sequence[Plan], seconds: float
) -> dict[Plan, list[float]]:
    """The time of a step with each plan, in each of some blocks by turns."""
    found: dict[Plan, list[float]] = {plan: [] for plan in plans}
    with PartitionPool(device) as pool, ExitStack() as closing:
        loops = {plan: Loop(work, weights, closing.enter_context(plan.open(pool))) for plan in plans}
        for loop in loops.values():
            for _ in range(2):
                loop.chunk()
        for number in range(BLOCKS):
            for plan in plans if number % 2 else reversed(plans):
                found[plan].append(loops[plan].block(seconds / BLOCKS))
        device.sync()
    return found


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """The ratio over pairs of blocks, and its interval."""
    logs = [log(one / other) for one, other in zip(slow, fast, strict=True)]
    mean = sum(logs) / len(logs)
    deviation = sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1) / len(logs))
    within = student((1 - CERTAINTY) / 2, len(logs) - 1) * deviation
    return exp(mean), exp(mean - within), exp(mean + within)


# ---- an answer, and what was found


def held(report: Report, blocks: Mapping[Plan, Sequence[float]]) -> dict[str, Any]:
    """What a report says, what was found, and whether they agree."""
    [sequence] = [plan for plan in blocks if plan.kind == "sequence"]
    streams = next(plan for plan in blocks if plan.kind == "streams")
    measured = report.choice or report.best
    value, low, high = ratio(blocks[sequence], blocks[measured])
    told_low, told_high = (one if one is not None else report.gain for one in (report.gain_low, report.gain_high))
    return {
        "choice": None if report.choice is None else str(report.choice),
        "best": str(report.best),
        "sure": report.sure,
        "horizon_s": report.horizon_s,
        "told": [round(one, 4) for one in (report.gain, told_low, told_high)],
        "found": [round(one, 4) for one in (value, low, high)],
        "found_of_streams": [round(one, 4) for one in ratio(blocks[sequence], blocks[streams])],
        "step_us": {str(plan): [round(one * 1e6, 1) for one in taken] for plan, taken in blocks.items()},
        "agrees": max(low, told_low) <= min(high, told_high) + RESOLUTION,
        "loses": report.choice is not None and value < 1 - MOST_LOST,
        "why": [reason for reason in report.reasons if reason.startswith(("not sure", "to decide", "launch-bound"))],
    }


def answer(device: Device, work: Work, objective: Any, seconds: float, seed: int) -> dict[str, Any]:
    """Tune a pair, and measure what was chosen."""
    report = overlap(
        device=device,
        objective=objective,
        library_sms="off",
        launch="calls",
        budget_s=BUDGET_S,
        seed=seed,
        progress=False,
        **dict(work),
    )
    names = tuple(work)
    plans = dict.fromkeys([Plan("sequence", names), Plan("streams", names), report.choice or report.best])
    weights = objective.weights if isinstance(objective, Throughput) else None
    return held(report, independent(device, work, weights, list(plans), seconds))


def told(name: str, process: int, one: Mapping[str, Any]) -> str:
    """A result as a line."""
    times = "{:.3f} ({:.3f} to {:.3f})".format
    verdict = ("agrees" if one["agrees"] else "DIFFERS") + (", SLOWER THAN THE SEQUENCE" if one["loses"] else "")
    choice = one["choice"] or f"undecided, best {one['best']}"
    return (
        f"{name}, process {process}: {choice}, told {times(*one['told'])}{'' if one['sure'] else ', not sure'}; "
        f"found {times(*one['found'])}, plain streams {times(*one['found_of_streams'])}: {verdict}"
    )


# ---- processes


def present(out: Path | None) -> dict[str, Any]:
    """What was measured earlier."""
    return json.loads(out.read_text()) if out is not None and out.exists() else {}


def with_row(result: dict[str, Any], machine: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A result with another row, and how many of the answers hold."""
    rows = [*result.pop("rows", ()), row]
    counts = {"agree": sum(one["agrees"] for one in rows), "lose": sum(one["loses"] for one in rows), "of": len(rows)}
    return {**(result or machine), **counts, "rows": rows}


def measure(arguments: argparse.Namespace, until: float) -> None:
    """The pairs of one process."""
    import torch

    device = Device(0)
    for name in arguments.only or PAIRS:
        result = present(arguments.out)
        if any((row["pair"], row["process"]) == (name, arguments.seed) for row in result.get("rows", ())):
            continue
        if time.monotonic() + BUDGET_S + 3 * arguments.seconds > until:
            print(f"{name}: not measured, the limit is reached", flush=True)
            continue
        try:
            work, objective = PAIRS[name](torch)
            found = answer(device, work, objective, arguments.seconds, arguments.seed)
        except Exception as error:  # of one pair: the others are measured
            print(f"{name}, process {arguments.seed}: {type(error).__name__}: {error}", flush=True)
            continue
        print(told(name, arguments.seed, found), flush=True)
        machine = described(
            device, "Answers of the tuner, held against an independent measurement", reporting.REPOSITORY
        )
        row = {"pair": name, "process": arguments.seed, "seconds": arguments.seconds, **found}
        write_result(with_row(result, machine, row), arguments.out)
        del work
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the result as JSON to this file, and continue what it has")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--limit", type=float, default=660.0, help="seconds in all; what does not fit is left out")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each plan, in blocks")
    parser.add_argument("--only", choices=PAIRS, action="append", help="only this pair; can be repeated")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.limit
    if arguments.seed is not None:
        measure(arguments, until)
        return 0
    with TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "pairs.json"
        for process in range(arguments.processes):
            left_s = until - time.monotonic()
            command = [sys.executable, __file__, "--seed", str(process), "--out", str(out)]
            command += ["--seconds", str(arguments.seconds), "--limit", str(left_s)]
            command += [word for name in arguments.only or () for word in ("--only", name)]
            try:
                environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": QUEUES}
                subprocess.run(command, check=True, timeout=max(1.0, left_s), env=environment)
            except subprocess.SubprocessError as error:  # what it has measured so far is kept
                print(f"process {process}: {error}", flush=True)
        result = present(out)
    if not result:
        raise SystemExit("nothing was measured")
    for row in result["rows"]:
        print(told(row["pair"], row["process"], row))
    print(f"{result['agree']} of {result['of']} agree; {result['lose']} are slower than the sequence by more than 1%")
    return 1 if result["agree"] < result["of"] - 1 or result["lose"] else 0


if __name__ == "__main__":
    sys.exit(main())
