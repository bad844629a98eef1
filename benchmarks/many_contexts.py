"""What many contexts cost: waiting for a device that has up to 1,024 of them, and random requests for free SMs.

    python benchmarks/many_contexts.py [--contexts 1024] [--rounds 500] [--seed 0] [--out DIR]

Takes about 6 GiB of device memory for 1,024 contexts, and less than a minute. The rounds verify by SM ids that no two
open partitions share SMs, and note the free memory of the device. On the software driver the times say nothing about a
GPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import reporting

from cuda_gctx import ContextOptions, Device, Partitions, ResourceOverlapWarning, SMResourceOptions, SplitError, system
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.summaries import summary

SYNCS = 200
STEPS = (1, 16, 128)  # numbers of contexts, in addition to the largest one
READINGS = 5  # of the free memory, during the rounds


def timed_ns(action: Any) -> int:
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def measure_sync(device: Device, most: int) -> list[dict[str, Any]]:
    """The time of Device.sync() without work, by the number and the state of the contexts.

    open: with a lease. idle: closed. exposed: idle, and the raw value of the context has left the package.
    """
    grain = device.resources.sm.min_partition_size
    groups, _ = device.resources.sm.split(SMResourceOptions([grain] * min(16, device.sm_count // grain)))
    rows: list[dict[str, Any]] = []

    def row(state: str, contexts: int) -> None:
        device.sync()
        times = [timed_ns(device.sync) for _ in range(SYNCS)]
        free = system.memory()[device.device_id].free_bytes
        rows.append({"state": state, "contexts": contexts, "us": summary(times, 1000), "free": free})

    def create(number: int) -> Any:
        return device.create_context(ContextOptions([groups[number % len(groups)]]))

    with ExitStack() as closing:
        number = 0
        for count in (*(step for step in STEPS if step < most), most):
            while number < count:
                closing.enter_context(create(number))
                number += 1
            row("open", count)
    row("idle", most)
    with ExitStack() as closing:
        for again in range(most):
            assert closing.enter_context(create(again)).handle
    row("idle, exposed", most)
    return rows


def free_rounds(device: Device, rounds: int, seed: int) -> dict[str, Any]:
    """Opens and closes random partitions among the free SMs of a device, and verifies what is open by SM ids."""
    order = random.Random(seed)
    opened: list[Partitions] = []
    refused = overlaps = 0
    readings: list[dict[str, int]] = []

    def read(number: int) -> None:
        use = system.memory()[device.device_id]
        readings.append({"round": number, "contexts": use.contexts, "free": use.free_bytes})

    device.partition(device.resources.sm.min_partition_size).close()  # the memory of devices with contexts is known
    for number in range(rounds):
        if number % max(rounds // READINGS, 1) == 0:
            read(number)
        while opened and order.random() < 0.5:
            opened.pop(order.randrange(len(opened))).close()
        request = [order.randint(1, device.sm_count // 3) for _ in range(order.randint(1, 3))]
        try:
            parts = device.partition(*request, among="free", exclusive=True)
        except SplitError:
            refused += 1
            continue
        parts.verify()
        opened.append(parts)
        seen = [sm for known in opened for part in known for sm in part.sm_ids or ()]
        overlaps += len(seen) != len(set(seen))
    for parts in opened:
        parts.close()
    read(rounds)
    free = device.resources.sm.free.sm_count
    return {"seed": seed, "rounds": rounds, "refused": refused, "overlaps": overlaps, "free": free, "memory": readings}


def report(result: dict[str, Any]) -> str:
    lines = [f"{result['card']}, CUDA driver {result['cuda']}, {result['date']}" + " (simulated)" * result["simulated"]]
    for row in result["sync"]:
        lines.append(
            f"Device.sync(), {row['contexts']} contexts, {row['state']}: {row['us']['median']:.1f} us median, "
            f"{row['us']['p99']:.1f} us p99; {row['free'] / 2**20:.0f} MiB free"
        )
    rounds = result["free_rounds"]
    lines.append(
        f"{rounds['rounds']} rounds of among='free': {rounds['refused']} refused, {rounds['overlaps']} overlaps, "
        f"{rounds['free']} SMs free at the end"
    )
    for reading in rounds["memory"]:
        lines.append(
            f"  round {reading['round']}: {reading['contexts']} contexts, {reading['free'] / 2**20:.0f} MiB free"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON file (default: benchmarks/results; simulated: none)"
    )
    parser.add_argument("--contexts", type=int, default=1024, help="the largest number of contexts")
    parser.add_argument("--rounds", type=int, default=500, help="of requests for free SMs")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    arguments = parser.parse_args()
    # The contexts share SMs on purpose, and more than 512 are idle at the end.
    warnings.simplefilter("ignore", ResourceOverlapWarning)

    device = Device(0)
    head = described(
        device,
        "What many contexts cost, and random requests for free SMs, written by benchmarks/many_contexts.py",
        reporting.REPOSITORY,
    )
    measured = {
        "free_rounds": partial(free_rounds, device, arguments.rounds, arguments.seed),
        "sync": partial(measure_sync, device, arguments.contexts),
    }
    result: dict[str, Any] = {**head}
    for name, measure in measured.items():
        result[name] = measure()
        system.release_contexts()
    print(report(result))
    if arguments.out is not None or not result["simulated"]:
        path = reporting.write(result, "many-contexts", arguments.out)
        print(f"\n{path}")
    return 0 if result["free_rounds"]["overlaps"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
