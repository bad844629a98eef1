"""The cost of each call of the package, compared with raw driver calls, cuda.core and torch, in one process.

A sample is one loop over one call. The benchmark takes samples in rounds: the calls in random order, and in turn the
contestants of each call in random order, so that disturbances affect all of them. It turns the garbage collector off,
and subtracts the empty loop. On real drivers, a destroyed green context loses 4 MiB of device memory, so it makes few.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from raw_calls import Nothing, RawCalls

from cuda_gctx import ContextOptions, Device, EventOptions, SMResourceOptions, system
from cuda_gctx.measure import summaries
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.statistics import median

SAMPLE_NS = 200_000  # a loop long enough for the clock, short enough to fall between interruptions
RAW_FACTOR, RAW_ALLOWANCE_NS = 1.3, 50
STREAM_SM_COUNT_NS = 100
IMPORT_NS = 50e6
IMPORTS = ("import cuda_gctx", "from cuda_gctx import Device")
FRAMEWORKS = {"numpy", "torch", "cupy", "numba", "cuda", "jax", "tensorflow"}


@dataclass(frozen=True)
class Effort:
    """How much to measure: samples per call, pairs of contexts created and closed, and processes per import."""

    rounds: int = 200
    context_pairs: int = 50
    imports: int = 20
    seed: int = 0  # of the order of the samples
    device: int = 0


@dataclass(frozen=True)
class Call:
    """One row: the call of each contestant, all with the same effect. Those of cuda_gctx and cuda.core are Python."""

    name: str
    title: str
    raw: str  # what RawCalls does under this name; empty: no such call
    ours: str
    core: str  # empty: no such call
    torch: str = ""
    python: str = ""  # what Python itself takes for a statement of this shape, with the GIL given up as often
    raw_name: str = ""  # if it is another than `name`
    most: int = 2000  # calls in one sample
    makes_contexts: bool = False  # so it is sampled in few rounds
    settle: bool = False  # leaves work on the device, which is waited for after each sample
    limit_ns: float | None = None


CALLS = (
    Call(
        "query",
        "query the device's SMs",
        raw="cuDeviceGetDevResource",
        ours="device.resources.sm",
        core="device.resources.sm",
    ),
    Call(
        "query_new_device",
        "the same, from a new Device",
        raw="cuDeviceGetDevResource",
        raw_name="query",
        ours="Device(number).resources.sm",
        core="Device(number).resources.sm",
    ),
    Call(
        "split_one",
        "split off one group of 8",
        raw="cuDevSmResourceSplitByCount",
        ours="sm.split(one)",
        core="sm.split(one)",
    ),
    Call(
        "split_uneven",
        "uneven split 8, 16, 24",
        raw="cuDevSmResourceSplit, else cuDevSmResourceSplitByCount into 6 units of 8",
        ours="sm.split(uneven)",
        core="sm.split(uneven)",
    ),
    Call(
        "context",
        "create and close a context",
        raw="cuDevResourceGenerateDesc, cuGreenCtxCreate, cuCtxFromGreenCtx, cuGreenCtxDestroy",
        ours="device.create_context(options).close()",
        core="device.create_context(options).close()",
        torch="GreenContext.create(num_sms=8, device_id=number)",
        most=1,
        makes_contexts=True,
    ),
    Call(
        "stream",
        "create and close a stream",
        raw="cuGreenCtxStreamCreate, cuStreamDestroy",
        ours="context.create_stream().close()",
        core="context.create_stream().close()",
        most=100,
    ),
    Call(
        "stream_sm_count",
        "SM count of a stream",
        raw="cuStreamGetDevResource, else cuStreamGetCtx and cuCtxGetDevResource",
        ours="stream.resources.sm.sm_count",
        core="stream.resources.sm.sm_count",
        limit_ns=STREAM_SM_COUNT_NS,
        python="nothing.itself.itself.itself",
    ),
    Call("is_green", "is_green", raw="", ours="context.is_green", core="context.is_green"),
    Call(
        "push_pop",
        "make a context current, and undo it",
        raw="cuCtxPushCurrent, cuCtxPopCurrent",
        ours="with context.current(): pass",
        core="device.set_current(device.set_current(context))",
        torch="green.set_context(); green.pop_context()",
        python="with nothing.block(): pass",
        settle=True,
    ),
    Call(
        "is_current",
        "whether a context is current",
        raw="cuCtxGetCurrent",
        ours="context.is_current",
        core="",
        python="nothing.itself",
    ),
    Call(
        "record_wait",
        "record an event, wait for it on another stream",
        raw="cuEventRecord, cuStreamWaitEvent",
        ours="stream.record(event); other.wait(event)",
        core="stream.record(event); other.wait(event)",
        torch="event.record(stream); other.wait_event(event)",
        most=100,
        settle=True,
        python="nothing.call_without_gil(nothing); nothing.call_without_gil(nothing)",
    ),
    Call(
        "context_record_wait",
        "the same, for whole contexts",
        raw="cuGreenCtxRecordEvent, cuGreenCtxWaitEvent",
        ours="context.record_event(event); other_context.wait_event(event)",
        core="",
        most=100,
        settle=True,
        python="nothing.call_without_gil(nothing); nothing.call_without_gil(nothing)",
    ),
    Call(
        "stream_wait",
        "make a stream wait for another one",
        raw="cuEventRecord, cuStreamWaitEvent",
        raw_name="record_wait",
        ours="other.wait(stream)",
        core="other.wait(stream)",
        torch="other.wait_stream(stream)",
        most=100,
        settle=True,
        python="nothing.call_without_gil(nothing)",
    ),
    Call(
        "context_wait",
        "make a context wait for another one",
        raw="cuGreenCtxRecordEvent, cuGreenCtxWaitEvent",
        raw_name="context_record_wait",
        ours="other_context.wait_context(context)",
        core="",
        most=100,
        settle=True,
        python="nothing.call_without_gil(nothing)",
    ),
    Call(
        "stream_is_done",
        "whether a stream is done",
        raw="cuStreamQuery",
        ours="stream.is_done",
        core="",
        torch="stream.query()",
        python="nothing.without_gil",
    ),
    Call(
        "event_is_done",
        "whether an event is done",
        raw="cuEventQuery",
        ours="start.is_done",
        core="start.is_done",
        torch="start.query()",
        python="nothing.without_gil",
    ),
    Call(
        "priority",
        "the priority of a stream",
        raw="cuStreamGetPriority",
        ours="stream.priority",
        core="stream.priority",
        python="nothing.itself",
    ),
    Call(
        "elapsed",
        "the time between two events",
        raw="cuEventElapsedTime",
        ours="end - start",
        core="end - start",
        torch="start.elapsed_time(end)",
        python="nothing.without_gil",
    ),
)


@dataclass
class Contestant:
    """One side of a row: a timer of a number of calls, or the reason why there is none; the samples in ns per call."""

    does: str
    time_calls: Callable[[int], float] | None = None
    refused: str | None = None
    in_python: bool = True
    count: int = 1
    samples: list[float] = field(default_factory=list)

    def prepare(self, most: int) -> None:
        """Run the call once, because a first call costs more, and choose the length of its loop."""
        assert self.time_calls is not None
        try:
            once = self.time_calls(1)
            if most > 1:
                once = min(once, self.time_calls(10) / 10)
        except Exception as error:  # a contestant without the call is an entry of the table
            self.refused = one_line(error)
            return
        self.count = max(1, min(most, int(SAMPLE_NS / max(once, 1))))

    def sample(self) -> None:
        assert self.time_calls is not None
        self.samples.append(self.time_calls(self.count) / self.count)


def statement_timer(statement: str, names: Mapping[str, object]) -> Callable[[int], float]:
    """A loop around the statement. The names are local variables, as in a handwritten function."""
    setup = "; ".join(f"{name} = names[{name!r}]" for name in names if re.search(rf"\b{name}\b", statement)) or "pass"
    timer = timeit.Timer(statement, setup, time.perf_counter_ns, {"names": names})
    return timer.timeit


def names_of_ours(number: int) -> dict[str, object]:
    device = Device(number)
    # Three groups of one split are disjoint, so that no call warns that contexts share SMs.
    groups, _ = device.resources.sm.split(SMResourceOptions(count=[8, 8, 8]))
    context = device.create_context(ContextOptions(resources=[groups[0]]))
    other_context = device.create_context(ContextOptions(resources=[groups[1]]))
    stream = context.create_stream()
    start, end = (stream.record(options=EventOptions(timing_enabled=True)) for _ in range(2))
    end.sync()
    return {
        "Device": Device,
        "number": number,
        "device": device,
        "sm": device.resources.sm,
        "one": SMResourceOptions(count=8),
        "uneven": SMResourceOptions(count=[8, 16, 24]),
        "options": ContextOptions(resources=[groups[2]]),
        "context": context,
        "other_context": other_context,
        "stream": stream,
        "other": other_context.create_stream(),
        "event": context.create_event(),
        "start": start,
        "end": end,
    }


def names_of_core(number: int) -> dict[str, object]:
    core: Any = import_module("cuda.core")
    device = core.Device(number)
    device.set_current()
    sm = device.resources.sm
    single = core.SMResourceOptions(count=8)
    # It offers one group per split on every driver, and accepts that the contexts share SMs.
    [group], _ = sm.split(single)
    options = core.ContextOptions(resources=[group])
    context = device.create_context(options)
    stream = context.create_stream()
    start, end = (stream.record(options=core.EventOptions(timing_enabled=True)) for _ in range(2))
    end.sync()
    return {
        "Device": core.Device,
        "number": number,
        "device": device,
        "sm": sm,
        "one": single,
        "uneven": core.SMResourceOptions(count=[8, 16, 24]),
        "options": options,
        "context": context,
        "stream": stream,
        "other": device.create_context(options).create_stream(),
        "event": stream.record(),
        "start": start,
        "end": end,
    }


def names_of_torch(number: int) -> dict[str, object]:
    torch: Any = import_module("torch")
    green_context: Any = import_module("torch.cuda.green_contexts").GreenContext
    torch.cuda.init()
    torch.cuda.set_device(number)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    end.synchronize()
    return {
        "GreenContext": green_context,
        "number": number,
        "green": green_context.create(num_sms=8, device_id=number),
        "stream": torch.cuda.Stream(),
        "other": torch.cuda.Stream(),
        "event": torch.cuda.Event(),
        "start": start,
        "end": end,
    }


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def names_or_reason(names_of: Callable[[int], dict[str, object]], number: int) -> dict[str, object] | str:
    try:
        return names_of(number)
    except Exception as error:  # a peer that is not installed or does not run here is an entry of the table
        return one_line(error)


def time_in_rounds(contestants: dict[str, dict[str, Contestant]], raw: RawCalls, effort: Effort) -> float:
    """Fill the samples of every contestant; returns the cost of one turn of the empty Python loop."""
    order = random.Random(effort.seed)
    nothing = Contestant("pass", statement_timer("pass", {}), count=10_000)
    rows: list[tuple[Call | None, list[Contestant]]] = [(None, [nothing])]
    for call in CALLS:
        for contestant in contestants[call.name].values():
            if contestant.refused is None:
                contestant.prepare(call.most)
        rows.append((call, [one for one in contestants[call.name].values() if one.refused is None]))
    gc.collect()
    gc.disable()
    try:
        for number, (call_of_row, side_by_side) in in_rounds(rows, effort.rounds, order):
            if call_of_row is not None and call_of_row.makes_contexts and number >= effort.context_pairs:
                continue
            # One after the other: what they are compared by is as fast as the host was at that moment.
            for contestant in order.sample(side_by_side, len(side_by_side)):
                contestant.sample()
                if call_of_row is not None and call_of_row.settle:
                    raw.settle()
    finally:
        gc.enable()
    return median(nothing.samples)


def without(samples: Sequence[float], subtract: float) -> list[float]:
    """The samples without what the empty loop takes."""
    return [max(0.0, sample - subtract) for sample in samples]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """The median, the 10th and the 90th percentile in ns."""
    found = summaries.summary(samples, digits=2)
    return {name: found[name] for name in ("median", "p10", "p90")}


def ratios(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The ratios of the times of this package to those of the others, in the same rounds."""
    ours = samples.get("cuda_gctx", ())
    return {
        side: round(median([one / other for one, other in zip(ours, samples[side], strict=True)]), 3)
        for side in ("raw", "cuda.core")
        if ours and side in samples and min(samples[side]) > 0
    }


def targets(call: Call, samples: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The targets of the row, and whether they are met; empty if there is nothing to compare with.

    samples: of each contestant, by round. The median of the ratios of each round counts. Hosts run at two speeds, so
    the median of one contestant alone depends on how often it ran at which speed.
    """
    if "cuda_gctx" not in samples:
        return [{"what": "runs", "met": False}]
    ours = samples["cuda_gctx"]

    def verdict(what: str, limits: Sequence[float]) -> dict[str, Any]:
        over = median([one - limit for one, limit in zip(ours, limits, strict=True)])
        return {"what": what, "limit_ns": round(median(limits), 2), "over_ns": round(over, 2), "met": over <= 0}

    verdicts = []
    if "raw" in samples:
        limits = [RAW_FACTOR * one + RAW_ALLOWANCE_NS for one in samples["raw"]]
        verdicts.append(verdict(f"{RAW_FACTOR} x raw + {RAW_ALLOWANCE_NS} ns", limits))
    if "cuda.core" in samples:
        verdicts.append(verdict("faster than cuda.core", samples["cuda.core"]))
    if call.limit_ns is not None:
        verdicts.append(verdict(f"under {call.limit_ns:g} ns", [call.limit_ns] * len(ours)))
    return verdicts


def raw_timer(raw: RawCalls, name: str) -> Callable[[int], float]:
    return lambda count: raw.time(name, count)


def measure_calls(raw: RawCalls, effort: Effort, simulated: bool) -> list[dict[str, Any]]:
    sides: dict[str, dict[str, object] | str] = {
        "cuda_gctx": names_of_ours(effort.device),
        "cuda.core": names_or_reason(names_of_core, effort.device),
        "torch": "needs a real GPU" if simulated else names_or_reason(names_of_torch, effort.device),
        "python": {"nothing": Nothing()},
    }
    contestants: dict[str, dict[str, Contestant]] = {}
    for call in CALLS:
        row = contestants[call.name] = {}
        if call.raw:
            row["raw"] = Contestant(call.raw, raw_timer(raw, call.raw_name or call.name), in_python=False)
        statements = {"cuda_gctx": call.ours, "cuda.core": call.core, "torch": call.torch, "python": call.python}
        for side, statement in statements.items():
            names = sides[side]
            if not statement:
                continue
            if isinstance(names, str):
                row[side] = Contestant(statement, refused=names)
            else:
                row[side] = Contestant(statement, statement_timer(statement, names))
    empty_loop = time_in_rounds(contestants, raw, effort)

    calls = []
    for call in CALLS:
        entries: dict[str, dict[str, Any]] = {}
        samples: dict[str, list[float]] = {}
        for side, contestant in contestants[call.name].items():
            entry = entries[side] = {"does": contestant.does}
            if contestant.refused is not None:
                entry["refused"] = contestant.refused
                continue
            samples[side] = without(contestant.samples, empty_loop if contestant.in_python else 0.0)
            entry["ns"] = summary(samples[side])
            entry["samples"], entry["calls_per_sample"] = len(contestant.samples), contestant.count
        judged = [] if simulated else targets(call, samples)
        compared = {} if simulated else ratios(samples)
        row_of_call = {"name": call.name, "title": call.title, "contestants": entries}
        calls.append({**row_of_call, "ratios": compared, "targets": judged})
    return calls


def child(code: str, *arguments: str, **environment: str) -> str:
    """The output of a fresh interpreter with the module search path of this one, in any current folder."""
    found = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    command = [sys.executable, "-c", found, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | environment).stdout


def process_time(code: str) -> int:
    start = time.perf_counter_ns()
    child(code)
    return time.perf_counter_ns() - start


def measure_imports(rounds: int, simulated: bool) -> list[dict[str, Any]]:
    """The times of fresh processes, minus the times of bare interpreters that ran between them."""
    times: dict[str, list[float]] = {statement: [] for statement in ("pass", *IMPORTS)}
    for _, statement in in_rounds(times, rounds):
        times[statement].append(process_time(statement))
    bare = median(times["pass"])
    rows = []
    for statement in IMPORTS:
        code = f"before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
        frameworks = sorted(FRAMEWORKS & {module.split(".")[0] for module in child(code).split()})
        ns = summary(without(times[statement], bare))
        goals = [
            {"what": f"under {IMPORT_NS / 1e6:g} ms", "limit_ns": IMPORT_NS, "met": ns["median"] < IMPORT_NS},
            {"what": "no framework", "met": not frameworks},
        ]
        rows.append({"does": statement, "ns": ns, "frameworks": frameworks, "targets": [] if simulated else goals})
    return rows


def measure(effort: Effort) -> dict[str, Any]:
    """Measure everything in this process. Earlier work in the process and the driver that the peers find affect it."""
    device = Device(effort.device)
    machine = described(device)
    simulated = bool(machine["simulated"])
    # As in a program with a framework.
    with device.context.current(), RawCalls(device) as raw:
        calls = measure_calls(raw, effort, simulated)
    return {
        **machine,
        "rounds": effort.rounds,
        "seed": effort.seed,
        "calls": calls,
        "imports": measure_imports(effort.imports, simulated),
    }


def measure_in_fresh_process(effort: Effort, driver: str | None = None) -> dict[str, Any]:
    """Measure everything in a fresh process, in which the peers find the driver that this package uses.

    driver: the value of CUDA_GCTX_DRIVER in that process; None: the value in this process.
    """
    environment = {} if driver is None else {"CUDA_GCTX_DRIVER": driver}
    if driver or os.environ.get("CUDA_GCTX_DRIVER"):
        # Peers open libcuda.so.1 by name, and do not read this variable.
        folders = [str(Path(system.driver_path).resolve().parent), os.environ.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    code = "from call_costs import main; main()"
    result: dict[str, Any] = json.loads(child(code, json.dumps(asdict(effort)), **environment))
    return result


def main() -> None:
    """The fresh process: measure with the effort of its argument, and print the result."""
    print(json.dumps(measure(Effort(**json.loads(sys.argv[1])))))
