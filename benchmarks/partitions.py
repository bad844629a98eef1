"""What partitions cost: creating, looking up, switching, device memory; and what they are worth: isolation, latency.

    python benchmarks/partitions.py [--out DIR]

Needs the module raw_calls: see benchmarks/raw/CMakeLists.txt.
Every layout that is drawn is verified by the SM ids that a kernel saw. Peers (cuda.core, torch) run in this process.
Latency needs torch, whose GEMM fills the card. On the software driver the times say nothing about a GPU, and peers are
left out. Takes about a minute, and about 5 GiB of device memory, most of
which the driver does not give back before the process ends.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import reporting
from call_costs import one_line
from raw_calls import RawSwitch

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    Layout,
    Partition,
    PartitionPool,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    Stream,
    StreamOptions,
    system,
)
from cuda_gctx.measure.loop import CallTimer, Load
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.statistics import median
from cuda_gctx.measure.summaries import summary
from cuda_gctx.partitions import with_background
from cuda_gctx.tune import Plan, spin

LOOK_UPS = 10_000
SWITCHES = 1000
WAITS, STREAMS = 200, (1, 4, 16)  # fewer waits than a queue of the driver takes
PENDING_NS = 100_000  # longer than a switch, and short enough for a thousand of them
OPENINGS = 10_000
LAYOUTS = 200
PEER_PAIRS = 30
LATENCY_SAMPLES = 1000
LATENCY_SECONDS = 8.0
LOAD_DEPTH = 4
NEEDS_TORCH = "needs torch on a real GPU"


def free_bytes(device: Device) -> int:
    return system.memory()[device.device_id].free_bytes


def timed_ns(action: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def measure_creation(device: Device) -> dict[str, Any]:
    """A first opening, which creates contexts, and later ones, which find them idle."""
    layout = Layout(a=8, b=16, c=None)
    first = timed_ns(lambda: device.partition(layout).close())
    later = [timed_ns(lambda: device.partition(layout).close()) for _ in range(200)]
    return {"contexts": system.idle_contexts, "first_us": first / 1000, "again_us": summary(later, 1000)}


def empty_ns() -> float:
    """What reading the clock takes."""
    return median([timed_ns(lambda: None) for _ in range(LOOK_UPS)])


def measure_preparing(device: Device) -> dict[str, Any]:
    """Building six layouts of a pool, looking them up, and device memory before and after."""
    grain = device.resources.sm.min_partition_size
    layouts: list[Any] = [
        {"decode": grain, "prefill": None},
        {"decode": 2 * grain, "prefill": None},
        {"decode": 4 * grain, "prefill": None},
        (grain, grain, None),
        Layout(a=0.25, b=0.5),
        Layout(half=0.5),
    ]
    with PartitionPool(device) as pool:
        built = [timed_ns(lambda layout=layout: pool.prepare(layout)) for layout in layouts]
        before = free_bytes(device)
        samples = []
        gc.disable()
        for number in range(LOOK_UPS):
            layout = layouts[number % 6]
            start = time.perf_counter_ns()
            pool.prepare(layout)
            samples.append(time.perf_counter_ns() - start)
        clock = empty_ns()
        gc.enable()
        after = free_bytes(device)
    return {
        "layouts": len(layouts),
        "built_us": summary(built, 1000),
        "prepare_ns": summary([max(sample - clock, 0) for sample in samples]),
        "look_ups": LOOK_UPS,
        "memory_change_bytes": before - after,
    }


def lend(places: Iterable[Partition | Stream]) -> list[Stream]:
    """Streams whose handles other code knows: two of each partition."""
    known = [
        stream
        for place in places
        for stream in ((place.stream, *place.stream_pool(1)) if isinstance(place, Partition) else (place,))
    ]
    assert all(stream.handle for stream in known)
    return known


@dataclass
class Target:
    """A switch.

    streams: those on which there is work after it. known: those whose handles other code knows. places: where each part
    then runs.
    """

    switch: Callable[[], object]
    streams: Sequence[Stream]
    known: Sequence[Stream]
    places: Mapping[str, Partition | Stream]


def may_share(one: Partition | Stream, other: Partition | Stream) -> bool:
    """Whether they share SMs, or may."""
    ids = [place.sm_ids if isinstance(place, Partition) else None for place in (one, other)]
    return ids[0] is None or ids[1] is None or not set(ids[0]).isdisjoint(ids[1])


def waiting_place(place: Partition | Stream) -> Context | Stream:
    return place.context if isinstance(place, Partition) else place


class PairsInC:
    """The driver calls of a switch in C: each part waits for the earlier parts whose SMs it may share.

    by_ids: a part shares SMs with another one if verify() saw both on the same SM, and not whenever it is possible.
    """

    def __init__(self, old: Target, new: Target, by_ids: bool) -> None:
        waits = [
            (waiting_place(after), waiting_place(before))
            for part, before in old.places.items()
            for later, after in new.places.items()
            if new.places[part] != before and old.places[later] != after
            if part == later or not by_ids or may_share(before, after)
        ]
        asked = {stream.handle: stream for stream in (*new.known, *old.known)}
        self.calls = [RawSwitch(asked.values(), waits)]

    def time(self) -> float:
        return sum(calls.time() for calls in self.calls)

    def close(self) -> None:
        for calls in self.calls:
            calls.close()


class RelayInC(PairsInC):
    """The same in C, by one relay: one new part waits for all old ones, and the other new parts wait for its stream."""

    def __init__(self, old: Target, new: Target) -> None:
        first, *others = new.places.values()
        assert isinstance(first, Partition)
        asked = {stream.handle: stream for stream in (*new.known, *old.known)}
        gathered = [(waiting_place(first), waiting_place(before)) for before in old.places.values()]
        self.calls = [
            RawSwitch(asked.values(), gathered),
            RawSwitch([], [(waiting_place(other), first.stream) for other in others]),
        ]


def times_of_switches(
    targets: Sequence[Target], device: Device, pending: bool, raw: Mapping[str, Sequence[PairsInC]]
) -> tuple[list[int], dict[str, list[float]]]:
    """The time of each of many switches, to each target in turn, and before each one those of driver calls in C.

    pending: with work on the streams of the one before. raw: by name, driver calls that switch to each target.
    """
    for target in targets:
        target.switch()
    clock = empty_ns()
    samples: list[float] = []
    raw_samples: dict[str, list[float]] = {name: [] for name in raw}
    for number in range(SWITCHES):
        at, before = number % len(targets), targets[(number - 1) % len(targets)]
        for name in (*raw, None):
            device.sync()
            if pending:
                for stream in before.streams:
                    spin(stream, 1, PENDING_NS)
            if name is not None:
                raw_samples[name].append(raw[name][at].time())
            else:
                samples.append(timed_ns(targets[at].switch) - clock)
    device.sync()
    return [max(round(sample), 0) for sample in samples], raw_samples


def measure_switching(device: Device) -> list[dict[str, Any]]:
    """What a switch costs the host, between layouts of some partitions, and between plans of two parts.

    Two streams of each partition are lent, and other code knows their handles. verified: after verify() in both, which
    shows what shares SMs. In turn with the switches, driver calls in C: raw_us, with a wait for each pair of parts that
    share SMs, or may share them; raw_relay_us, with the relay that a pool uses where all parts wait for all.
    """
    grain = device.resources.sm.min_partition_size
    rows = []

    def row(what: str, parts: int, targets: Sequence[Target], verified: bool) -> None:
        raw: dict[str, list[PairsInC]] = {}
        pairs = [(targets[at - 1], target) for at, target in enumerate(targets)] if len(targets) == 2 else []
        if pairs and (parts == 2 or verified):
            raw["raw_us"] = [PairsInC(old, new, verified) for old, new in pairs]
        if pairs and verified:
            raw["raw_relay_us"] = [RelayInC(old, new) for old, new in pairs]
        for pending in (False, True):
            samples, raw_samples = times_of_switches(targets, device, pending, raw)
            rows.append(
                {
                    "switch": what,
                    "partitions": parts,
                    "verified": verified,
                    "work": "pending" if pending else "done",
                    "us": summary(samples, 1000),
                    **{name: summary(found, 1000, 3) for name, found in raw_samples.items()},
                }
            )
        for calls in (calls for known in raw.values() for calls in known):
            calls.close()

    for parts in range(2, 7):
        names = "abcdef"[: parts - 1]
        layouts = [Layout(**dict.fromkeys(names, size), rest=None) for size in (grain, 2 * grain)]
        if 2 * grain * len(names) >= device.sm_count:
            break  # a small device
        for verified in (False, True):
            with PartitionPool(device) as pool:
                targets: list[Target] = []
                for layout in layouts:
                    opened = pool.prepare(layout)
                    known = lend(opened)
                    places = {part.name: part for part in opened}
                    targets.append(Target(partial(pool.switch, layout), known, known, places))
                    if verified:
                        pool.prepare(layout).verify()
                row("other layout", parts, targets, verified)
                if parts == 2 and not verified:
                    row("same layout", parts, targets[:1], verified)

    names = ("a", "b")
    narrow, wide = Layout(a=grain, b=None), Layout(a=4 * grain, b=None)
    overlay = Plan("overlay", names, narrow, {"b": "b"}, first="a")
    apart, apart_wide = (Plan("partitions", names, layout, {"a": "a", "b": "b"}) for layout in (narrow, wide))
    for what, plans in (
        ("plans: overlay and partitions of one layout", (overlay, apart)),
        ("plans: overlay and partitions of another layout", (overlay, apart_wide)),
        ("plans: partitions of two layouts", (apart, apart_wide)),
        ("plans: the same plan", (apart,)),
    ):
        with PartitionPool(device) as pool:
            row(what, 2, [target_of(plan, pool) for plan in plans], False)
    return rows


def target_of(plan: Plan, pool: PartitionPool) -> Target:
    streams = plan.switch(pool)
    assert plan.layout is not None
    parts = pool.prepare(plan.layout)
    places = {part: parts[plan.places[part]] if part in plan.places else stream for part, stream in streams.items()}
    return Target(partial(plan.switch, pool), list(streams.values()), lend(places.values()), places)


def measure_waits(device: Device) -> list[dict[str, Any]]:
    """What recording an event of a whole context and waiting for it take the host, by the number of its streams."""
    grain = device.resources.sm.min_partition_size
    groups, _ = device.resources.sm.split(SMResourceOptions([grain, grain]))
    rows = []
    for count in STREAMS:
        with ExitStack() as closing:
            first, second = (closing.enter_context(device.create_context(ContextOptions([group]))) for group in groups)
            streams = [
                closing.enter_context(context.create_stream()) for context in (first, second) for _ in range(count)
            ]
            event = closing.enter_context(first.record_event())
            for pending in (False, True):
                for stream in streams if pending else ():
                    spin(stream, 1, WAITS * PENDING_NS)
                times = {
                    "record_ns": [timed_ns(partial(first.record_event, event)) for _ in range(WAITS)],
                    "wait_ns": [timed_ns(partial(second.wait_event, event)) for _ in range(WAITS)],
                }
                device.sync()
                clock = empty_ns()
                rows.append(
                    {
                        "streams": count,
                        "work": "pending" if pending else "done",
                        **{what: summary([max(ns - clock, 0) for ns in samples]) for what, samples in times.items()},
                    }
                )
    return rows


def measure_openings(device: Device) -> dict[str, Any]:
    """Opening and closing the same partitions over and over, streams included."""
    layout = Layout(decode=device.resources.sm.min_partition_size, prefill=None)

    def open_and_close() -> None:
        with device.partition(layout) as parts:
            parts.decode.stream  # noqa: B018  made at first use

    open_and_close()
    before = free_bytes(device)
    samples = [timed_ns(open_and_close) for _ in range(OPENINGS)]
    return {"openings": OPENINGS, "us": summary(samples, 1000), "memory_change_bytes": before - free_bytes(device)}


def random_layout(order: random.Random, device: Device) -> Layout:
    grain = device.resources.sm.coscheduled_alignment
    requests: list[Any] = []
    for _ in range(order.randint(1, 4)):
        kind = order.random()
        if kind < 0.6:
            requests.append(order.randint(1, device.sm_count // 3))
        elif kind < 0.8:
            requests.append(round(order.uniform(1.01 * grain / device.sm_count, 0.3), 3))
        else:
            requests.append(SMResourceOptions(2 * order.randint(1, device.sm_count // 6), backfill=True))
    if order.random() < 0.4:
        requests[order.randrange(len(requests))] = None
    return Layout(*requests)


def measure_isolation(device: Device, seed: int) -> dict[str, Any]:
    """Random layouts, each verified by SM id: IsolationError ends the benchmark."""
    order = random.Random(seed)
    refused = concurrent = contexts = 0
    verified: set[Layout] = set()
    times = []
    while len(verified) < LAYOUTS and refused < 10 * LAYOUTS:
        layout = random_layout(order, device)
        if layout in verified:
            continue
        try:
            parts = device.partition(layout)
        except SplitError:
            refused += 1
            continue
        with parts:
            start = time.perf_counter_ns()
            report = parts.verify()
            times.append(time.perf_counter_ns() - start)
            contexts += len(with_background(parts))
            concurrent += report.concurrent is not False
        verified.add(layout)
    return {
        "seed": seed,
        "layouts": len(verified),
        "contexts": contexts,
        "refused": refused,
        "concurrent": concurrent,
        "verify_ms": summary(times, 1e6),
    }


def measure_peer(device: Device, create: Callable[[], Any], close: Callable[[Any], object]) -> dict[str, Any]:
    close(create())
    gc.collect()
    before = free_bytes(device)
    created, closed = [], []
    for _ in range(PEER_PAIRS):
        start = time.perf_counter_ns()
        made = create()
        middle = time.perf_counter_ns()
        close(made)
        del made
        gc.collect(0)
        created.append(middle - start)
        closed.append(time.perf_counter_ns() - middle)
    lost = before - free_bytes(device)
    return {
        "create_us": summary(created, 1000),
        "close_us": summary(closed, 1000),
        "lost_bytes_per_pair": lost / PEER_PAIRS,
    }


def ours(device: Device) -> dict[str, Any]:
    [group], _ = device.resources.sm.split(SMResourceOptions([8]))
    options = ContextOptions([group])
    return measure_peer(device, lambda: device.create_context(options), lambda context: context.close())


def cuda_core(device: Device) -> dict[str, Any]:
    from cuda import core

    peer = core.Device(0)
    peer.set_current()
    [group], _ = peer.resources.sm.split(core.SMResourceOptions(count=8))
    options = core.ContextOptions(resources=[group])
    return measure_peer(device, lambda: peer.create_context(options), lambda context: context.close())


def torch_green(device: Device) -> dict[str, Any]:
    import torch

    torch.cuda.init()
    green = torch.cuda.green_contexts.GreenContext
    return measure_peer(device, lambda: green.create(num_sms=8, device_id=0), lambda context: None)


def measured_or_reason(measure: Callable[[Device], dict[str, Any]], device: Device) -> dict[str, Any] | str:
    try:
        return measure(device)
    except Exception as error:  # a peer that is missing or refuses is an entry of the result
        return one_line(error)


class ShortKernel:
    """A sigmoid whose latency is measured, and the GEMM of the background load."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn_like(self.a)
        self.out = torch.empty_like(self.a)
        self.x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
        self.y = torch.empty_like(self.x)
        torch.cuda.synchronize()

    def latencies(self, short_stream: Stream, load_stream: Stream | None) -> dict[str, Any]:
        torch = self.torch
        short_current = torch.cuda.ExternalStream(short_stream.handle)

        def multiply() -> None:
            assert load_stream is not None
            with torch.cuda.stream(torch.cuda.ExternalStream(load_stream.handle)):
                torch.matmul(self.a, self.b, out=self.out)

        def short() -> None:
            torch.sigmoid(self.x, out=self.y)

        samples = []
        with torch.cuda.stream(short_current), ExitStack() as closing:
            load = closing.enter_context(Load(load_stream, multiply, LOAD_DEPTH)) if load_stream is not None else None
            timer = closing.enter_context(CallTimer(short_stream))
            for _ in range(20):
                timer.seconds(short)
            end = time.perf_counter() + LATENCY_SECONDS
            while len(samples) < LATENCY_SAMPLES and time.perf_counter() < end:
                if load is not None:
                    load.fill()
                samples.append(timer.seconds(short))
        found = summary(samples, 1e-6)
        found["p50"] = found.pop("median")
        return found


def measure_background(device: Device) -> list[dict[str, Any]]:
    """What a background partition is worth: the latency of a short kernel next to a load on other streams."""
    kernel = ShortKernel()
    rows: list[dict[str, Any]] = []
    with ExitStack() as closing:
        parts = closing.enter_context(device.partition(radio=16))
        partition, background = parts.radio.stream, parts.background.stream
        plain, other = (closing.enter_context(device.create_stream()) for _ in range(2))
        urgent = closing.enter_context(device.create_stream(StreamOptions(priority=device.priority_range[1])))
        for short_on, short, load_on, load in (
            ("plain stream", plain, "(none)", None),
            ("plain stream", plain, "plain stream", other),
            ("highest-priority stream", urgent, "plain stream", other),
            ("16-SM partition", partition, "(none)", None),
            ("16-SM partition only", partition, "plain stream", other),
            ("16-SM partition", partition, "background partition", background),
        ):
            rows.append({"short_kernel_on": short_on, "load_on": load_on, "us": kernel.latencies(short, load)})
    return rows


def report(result: dict[str, Any]) -> str:
    lines = [f"{result['card']}, CUDA driver {result['cuda']}, {result['date']}" + " (simulated)" * result["simulated"]]
    creation, preparing, openings = result["creation"], result["preparing"], result["openings"]
    lines.append(f"open and close: first {creation['first_us']:.0f} us, again {creation['again_us']['median']:.1f} us")
    lines.append(
        f"look up {preparing['layouts']} layouts: {preparing['prepare_ns']['median']:.0f} ns median, memory "
        f"changed by {preparing['memory_change_bytes']} bytes over {preparing['look_ups']} look-ups"
    )
    for row in result["switching"]:
        lines.append(
            f"switch, {row['switch']}, {row['partitions']} partitions{' (verified)' * row['verified']}, "
            f"work {row['work']}: {row['us']['median']:.2f} us median, {row['us']['p99']:.2f} us p99"
            + "".join(
                f"; {words} {row[name]['median']:.2f} and {row[name]['p99']:.2f}"
                for name, words in (("raw_us", "in C"), ("raw_relay_us", "in C by a relay"))
                if name in row
            )
        )
    lines.append(
        f"open and close {openings['openings']} times: {openings['us']['median']:.1f} us median, memory changed by "
        f"{openings['memory_change_bytes']} bytes"
    )
    for name, peer in result["create_and_close"].items():
        if isinstance(peer, str):
            lines.append(f"{name}: {peer}")
        else:
            lost = peer["lost_bytes_per_pair"] / 2**20
            lines.append(f"{name}: create {peer['create_us']['median']:.0f} us, {lost:.1f} MiB lost per pair")
    isolation = result["isolation"]
    lines.append(
        f"{isolation['layouts']} random layouts ({isolation['contexts']} contexts) verified by SM id, "
        f"{isolation['concurrent']} ran at once; {isolation['refused']} draws were refused by the split"
    )
    if isinstance(result["background"], str):
        lines.append(f"background partition: {result['background']}")
    else:
        lines += [
            f"{row['short_kernel_on']:24} load on {row['load_on']:21} "
            f"p50 {row['us']['p50']:7.1f} us  p99 {row['us']['p99']:7.1f} us"
            for row in result["background"]
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON file (default: benchmarks/results; simulated: none)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random layouts")
    arguments = parser.parse_args()
    # Contexts of the rows overlap on purpose, one after the other.
    warnings.simplefilter("ignore", ResourceOverlapWarning)

    device = Device(0)
    head = described(
        device,
        "What partitions cost and what a background partition is worth, written by benchmarks/partitions.py",
        reporting.REPOSITORY,
    )
    simulated = head["simulated"]
    result: dict[str, Any] = {
        **head,
        "creation": measure_creation(device),
        "preparing": measure_preparing(device),
        "switching": measure_switching(device),
        "waits": measure_waits(device),
        "openings": measure_openings(device),
        "create_and_close": {
            "cuda_gctx": ours(device),
            "cuda.core": NEEDS_TORCH.replace("torch on ", "") if simulated else measured_or_reason(cuda_core, device),
            "torch": NEEDS_TORCH if simulated else measured_or_reason(torch_green, device),
        },
        "isolation": measure_isolation(device, arguments.seed),
    }
    background: Any = NEEDS_TORCH
    if not simulated:
        try:
            background = measure_background(device)
        except Exception as error:  # no torch: the other results are worth keeping
            background = one_line(error)
    result["background"] = background
    print(report(result))
    if arguments.out is not None or not simulated:
        path = reporting.write(result, "partitions", arguments.out)
        print(f"\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
