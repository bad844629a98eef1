"""What small launches cost the host, by how they are enqueued, and how that varies from run to run.

    python benchmarks/launches.py [--out DIR] [--seconds S] [--processes N]

600 launches of a kernel that takes a microsecond: from one thread on one stream or on two, from two threads, free or
each on a given CPU, with other switch intervals of Python's global lock, and as CUDA graphs. Several runs of each, in
random order, in several processes. For threads, a run also has what they cost the host: how often they waited, and
their CPU time.

Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tables

from cuda_gctx import Device
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import described

LAUNCHES, IN_A_ROW, MIXES = 300, 30, 40  # of each of two parts, in a mix; mixes in a run
MOST_ROUNDS, MOST_START_S = 10_000, 120


class Enqueuer:
    """Enqueues mixes in different ways. A way returns what its threads cost, if it has threads."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.tensors = [torch.ones(1 << 10, device="cuda") for _ in range(2)]
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        self.graphs = []
        for number, stream in enumerate(self.streams):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self.some(number)
            self.graphs.append(graph)

    def some(self, number: int, count: int = IN_A_ROW) -> None:
        for _ in range(count):
            self.tensors[number].add_(1)

    def on_one_stream(self) -> list[dict[str, float]]:
        for _ in range(MIXES * 2 * LAUNCHES // IN_A_ROW):
            self.some(0)
        return []

    def on_two_streams(self) -> list[dict[str, float]]:
        for _ in range(MIXES * LAUNCHES // IN_A_ROW):
            for number, stream in enumerate(self.streams):
                with self.torch.cuda.stream(stream):
                    self.some(number)
        return []

    def as_graphs(self) -> list[dict[str, float]]:
        for _ in range(MIXES * LAUNCHES // IN_A_ROW):
            for graph, stream in zip(self.graphs, self.streams, strict=True):
                with self.torch.cuda.stream(stream):
                    graph.replay()
        return []

    def by_threads(self, cpus: Sequence[int] = ()) -> list[dict[str, float]]:
        """Two new threads, each on one of these CPUs if there are any."""
        ready = threading.Barrier(2)
        costs: list[dict[str, float]] = []

        def run(number: int) -> None:
            if cpus:
                os.sched_setaffinity(threading.get_native_id(), {cpus[number]})
            with self.torch.cuda.stream(self.streams[number]):
                self.some(number, 1)
                ready.wait()
                before = resource.getrusage(resource.RUSAGE_THREAD)
                self.some(number, MIXES * LAUNCHES)
                after = resource.getrusage(resource.RUSAGE_THREAD)
            cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            costs.append(
                {
                    "waits_per_launch": (after.ru_nvcsw - before.ru_nvcsw) / MIXES / LAUNCHES,
                    "cpu_us_per_launch": cpu_s / MIXES / LAUNCHES * 1e6,
                }
            )

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return costs


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """A block with another switch interval of Python's global lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def ways_of(enqueuer: Enqueuer) -> dict[str, Callable[[], list[dict[str, float]]]]:
    def with_switches(seconds: float) -> Callable[[], list[dict[str, float]]]:
        def run() -> list[dict[str, float]]:
            with switching(seconds):
                return enqueuer.by_threads()

        return run

    cpus = sorted(os.sched_getaffinity(0))
    first, other = cpus[len(cpus) // 2], cpus[0]
    ways = {
        "one thread, one stream": enqueuer.on_one_stream,
        "one thread, two streams": enqueuer.on_two_streams,
        "two threads": enqueuer.by_threads,
        "two threads, switch interval 50 us": with_switches(50e-6),
        "two threads, switch interval 1 s": with_switches(1.0),
        "two threads on one CPU": lambda: enqueuer.by_threads((first, first)),
        "CUDA graphs of 30 launches": enqueuer.as_graphs,
    }
    if other != first:
        ways["two threads on a CPU each"] = lambda: enqueuer.by_threads((first, other))
    return ways


def measure(torch: Any, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Runs of all ways, for so many seconds: each in microseconds for a mix."""
    ways = ways_of(Enqueuer(torch))
    for way in ways.values():
        way()
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    for number, name in in_rounds(ways, MOST_ROUNDS, random.Random(seed)):
        if time.monotonic() > until:
            break
        torch.cuda.synchronize()
        began = time.perf_counter()
        costs = ways[name]()
        torch.cuda.synchronize()
        us = (time.perf_counter() - began) / MIXES * 1e6
        rows.append({"round": number, "how": name, "us_per_mix": us, "threads": costs})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each process measures")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        import torch

        print(json.dumps(measure(torch, arguments.seconds, arguments.seed)))
        return 0
    result = described(Device(0), "Small launches, written by benchmarks/launches.py", tables.REPOSITORY)
    command = [sys.executable, __file__, "--seconds", str(arguments.seconds), "--seed"]
    result["processes"] = []
    for number in range(arguments.processes):
        limit_s = arguments.seconds + MOST_START_S
        done = subprocess.run([*command, str(number)], stdout=subprocess.PIPE, check=True, timeout=limit_s)
        result["processes"].append(json.loads(done.stdout))
    path = tables.write(result, "launches", arguments.out)
    print(f"{tables.launches_section(result)}\n\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
