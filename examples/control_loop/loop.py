"""A control loop next to bulk work on one GPU: the latencies of its steps, and the deadlines that it misses.

    python examples/control_loop/loop.py                      # the control step in a partition of 16 SMs
    python examples/control_loop/loop.py --without            # on the highest priority, without a partition
    python examples/control_loop/loop.py --work torch_work    # with PyTorch: a policy network next to training

Two programs that know nothing of partitions:

    cuda-gctx share --until control control=16 -- python examples/control_loop/loop.py --only control \\
      : rest -- python examples/control_loop/loop.py --only bulk

This file knows no framework. --work names a module next to it with two classes, Control and Bulk. Both take the stream
to use, or None for the framework's default, and have the methods step(), mark(), wait(mark) and is_done(mark); Control
has us(begin, end), too.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cuda_gctx import Device

AHEAD = 2  # bulk steps that are queued at any time


class BulkQueue:
    """Keeps bulk work queued, and counts its steps."""

    def __init__(self, work: Any) -> None:
        self.work, self.steps = work, 0
        self.marks: deque[Any] = deque()

    def fill(self) -> None:
        while self.marks and self.work.is_done(self.marks[0]):
            self.marks.popleft()
        while len(self.marks) < AHEAD:
            self.work.step()
            self.marks.append(self.work.mark())
            self.steps += 1

    def wait(self) -> None:
        self.work.wait(self.marks.popleft())


def paced(control: Any, bulk: BulkQueue | None, count: int, rate: float) -> list[float]:
    """Steps at random times, ``rate`` per second: us from the arrival to the end, on the host."""
    latencies = []
    due = time.perf_counter() + 0.01
    for _ in range(count):
        if bulk:
            bulk.fill()
        while time.perf_counter() < due:
            pass
        control.step()
        control.wait(control.mark())
        latencies.append((time.perf_counter() - due) * 1e6)
        due += random.expovariate(rate)
    return latencies


def back_to_back(control: Any, bulk: BulkQueue | None, count: int) -> list[float]:
    """Steps one after the other: us from the launch to the end, on the device."""
    latencies = []
    for _ in range(count):
        if bulk:
            bulk.fill()
        begin = control.mark()
        control.step()
        end = control.mark()
        control.wait(end)
        latencies.append(control.us(begin, end))
    return latencies


def table(latencies: list[float], deadline: float) -> str:
    ordered = sorted(latencies)
    p50, p99, p999 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 0.999))
    missed = sum(latency > deadline for latency in ordered)
    return f"p50 {p50:.0f} us, p99 {p99:.0f} us, p99.9 {p999:.0f} us; missed {missed} of {len(ordered)} deadlines"


def picture(latencies: list[float], deadline: float, title: str) -> str:
    """An SVG with a bar for each step, and a line at the deadline."""
    most = max(*latencies, 2 * deadline)

    def bars(color: str, are_missed: bool) -> str:
        path = "".join(
            f"M{10 + 580 * at / len(latencies):.1f} 160v-{120 * us / most:.1f}"
            for at, us in enumerate(latencies)
            if (us > deadline) is are_missed
        )
        return f'<path stroke="{color}" d="{path}"/>'

    y = 160 - 120 * deadline / most
    line = f'<line x1="10" x2="590" y1="{y:.1f}" y2="{y:.1f}" stroke="#888" stroke-dasharray="4"/>'
    words = f'<text x="10" y="24">{title}</text><text x="10" y="{y - 4:.1f}" font-size="11">{deadline:.0f} us</text>'
    style = 'viewBox="0 0 600 170" font-family="sans-serif"'
    both = bars("#4a8f00", False) + bars("#c33", True)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>{both}{line}{words}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="spin_work", help="the module of the work (default: spin_work)")
    parser.add_argument("--without", action="store_true", help="use the highest priority, and no partition")
    parser.add_argument("--only", choices=["control", "bulk"], help="run one of the two, on the streams of a whole GPU")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--rate",
        type=float,
        help="steps per second; 0: one after the other, device time (default: 1000, and 0 on a simulated GPU)",
    )
    parser.add_argument("--deadline", type=float, default=500, metavar="US")
    parser.add_argument("--seconds", type=float, default=3600, help="the longest time of --only bulk")
    parser.add_argument("--svg", type=Path, help="write a picture of all latencies there")
    arguments = parser.parse_args()
    work = importlib.import_module(arguments.work)
    device = Device(0)
    # On a simulated GPU, the host's clock says nothing about the device.
    rate = (0 if device.is_simulated else 1000) if arguments.rate is None else arguments.rate

    with ExitStack() as closing:
        control = bulk = where = None
        if arguments.only:
            where = f"{arguments.only} as a program of its own"
        elif arguments.without:
            high = closing.enter_context(device.create_stream({"priority": device.priority_range[1]}))
            plain = closing.enter_context(device.create_stream())
            control, bulk, where = work.Control(high), work.Bulk(plain), "without a partition, on the highest priority"
        else:
            parts = closing.enter_context(device.partition(control=16, rest=None))
            control, bulk = work.Control(parts.control.stream), work.Bulk(parts.rest.stream)
            where = f"control in {parts.control.sm_count} SMs, bulk work in {parts.rest.sm_count}"
        if arguments.only == "control":
            control = work.Control(None)
        elif arguments.only == "bulk":
            bulk = work.Bulk(None)

        queue = BulkQueue(bulk) if bulk else None
        if control is None:
            end = time.monotonic() + arguments.seconds
            while time.monotonic() < end:
                queue.fill()
                queue.wait()
            print(f"{device.name}: {queue.steps} steps of bulk work")
            return
        control.step()  # loads its kernels
        control.wait(control.mark())
        if rate:
            latencies = paced(control, queue, arguments.steps, rate)
        else:
            latencies = back_to_back(control, queue, arguments.steps)
        print(f"{device.name}: {where}")
        print(table(latencies, arguments.deadline))
        if arguments.svg:
            arguments.svg.write_text(picture(latencies, arguments.deadline, f"{device.name}: {where}"))
        while queue and queue.marks:
            queue.wait()


if __name__ == "__main__":
    main()
