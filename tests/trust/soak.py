"""Hours of everything at once on a GPU: is any answer wrong, does anything hang, does memory grow?

    python tests/trust/soak.py --seconds 540 --seed 1 [--alone] [--out FILE]

A round opens one of some layouts in a pool or by itself. Four threads work in its partitions with torch, on integers in
floats, so that each result is known to the bit whatever the order of sums; a chain of steps goes on across the switches
of the pool, so that work that is not ordered changes its number; a graph that was captured once is replayed in the
partitions; results are copied to pinned memory while their partitions close; a trace has the kernels of each partition;
every eighth round, partitions are ranks that reduce over their SMs. torch allocates in expandable segments. With
--programs, two programs beside it share the card by "cuda-gctx share" in every 32nd round, with results checked.

Every fifteen seconds a line of JSON says what was checked, what was wrong, which memory is in use by torch, the
contexts of the driver, malloc and Python, and during which operations it grew. torch keeps a workspace of cuBLAS for
each thread and stream, and memory for each stream, which grow for minutes and then stay. So at each quarter of the run,
everything that may be given back is, and the line is marked "settled". From the half to the end, settled memory must
not grow: the exit code is 1 if it has, or if anything was wrong. A driver of CUDA 13.0 keeps 4 MiB of each context that
is destroyed, and CUPTI 0.6 MiB of the card for each trace, so both happen in the first half only.

A round that takes longer than 90 seconds ends the run with the stacks of all threads. Several soaks may share a card:
what the driver has of a process is then known only where NVML reports processes. On the software driver, which computes
no numbers, the same calls are made with kernels that only take time: that shows that the program runs, and that the
package leaves nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cuda_gctx
from cuda_gctx import Device, Graph, GraphSet, Layout, PartitionPool, Stream, system
from cuda_gctx.partitions import with_background
from cuda_gctx.tune import spin

if __name__ == "__main__":  # torch and the driver read these once
    # Ranks that wait for each other must not share a hardware queue with what they wait for.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.setdefault(name, "expandable_segments:True")

MIB = 2**20
THREADS = 4
RANKS = (2, 4)
ROUND_LIMIT_S = 90
ROW_S = 15.0
CHAIN_MODULUS = 65521
MOST_WRONG = 20
# The parts of a run after which memory settles. What is compared is the second with the last, if the first half had
# this many rounds.
QUARTERS = (0.25, 0.5, 0.75, 1.0)
LEAST_ROUNDS = 16
# More users than one set of SMs has at once: partitions that have closed with work in flight are among them.
MOST_USERS = 6
# A program that shares the card with another one: the SMs that it sees, and what it computes.
PROGRAM = """
import sys, torch
numbers = torch.arange(1 << 20, device="cuda") % 97
total = sum(int((numbers * factor % 31).sum()) for factor in range(200))
print(torch.cuda.get_device_properties(0).multi_processor_count, total, file=open(sys.argv[1], "w"))
"""
SIMULATED_PROGRAM = """
import sys
from cuda_gctx import Device
print(Device(0).sm_count, 0, file=open(sys.argv[1], "w"))
"""
# What settled memory may grow by from the half to the end. Contexts are counted: none may be made or destroyed.
MOST_GROWN = {
    "torch_mib": 1.0,
    "torch_reserved_mib": 40.0,  # pages of expandable segments, 20 MiB each, that a small tensor keeps
    "driver_mib": 16.0,
    "pinned_mib": 4.0,
    "malloc_mib": 4.0,
    "host_mib": 32.0,
    "contexts": 2.0,  # two users of one set of SMs at once have a context each
}


class Simulated:
    """Kernels that take time and compute nothing."""

    is_simulated = True
    program, computed = SIMULATED_PROGRAM, 0

    def __init__(self, dev: Device) -> None:
        self.dev = dev
        self.graphs = GraphSet(captures="once")

    def work(self, part: Any, rng: random.Random, thread: int) -> Callable[[], int]:
        stream = part.stream
        spin(stream, 1 + rng.randrange(4), rng.randrange(200_000))
        done = stream.record()
        return lambda: done.sync() or 1

    def chain(self, part: Any, factor: int) -> None:
        spin(part.stream, 1, 1000 * factor)

    def chain_is_right(self, expected: int) -> bool:
        self.dev.sync()
        return True

    def set_chain(self, value: int) -> None:
        pass

    def replay(self, part: Any) -> bool:
        self.graphs.capture(part, "step", lambda place: spin(getattr(place, "stream", place), 2, 5000))
        self.graphs.replay(part, "step")
        return True

    def collective(self, rng: random.Random, size: int) -> int:
        return 0

    def memory(self) -> dict[str, float]:
        return {}

    def card_bytes(self) -> int:
        return 0

    def give_back(self) -> None:
        self.graphs.drop()

    def synchronize(self) -> None:
        self.dev.sync()

    def close(self) -> None:
        self.graphs.drop()


class Torch:
    """torch itself, on integers, whose products and sums are exact in float32."""

    is_simulated = False
    program = PROGRAM

    def __init__(self, dev: Device, alone: bool) -> None:
        import torch

        self.torch, self.dev, self.alone = torch, dev, alone
        torch.backends.cuda.matmul.allow_tf32 = False
        self.device = f"cuda:{dev.device_id}"
        generator = torch.Generator().manual_seed(0)
        self.inputs = [torch.randint(-3, 4, (256, 512), generator=generator).float() for _ in range(8)]
        self.weights = [torch.randint(-3, 4, (512, 384), generator=generator).float() for _ in range(4)]
        self.on_device = [one.to(self.device) for one in self.inputs], [one.to(self.device) for one in self.weights]
        self.expected = {
            (i, w): self.function(self.inputs[i].double(), self.weights[w].double()).float()
            for i in range(8)
            for w in range(4)
        }
        self.expected_on_device = {key: value.to(self.device) for key, value in self.expected.items()}
        numbers = torch.arange(1 << 20) % 97
        self.computed = sum(int((numbers * factor % 31).sum()) for factor in range(200))  # by the program
        self.state = torch.ones(4096, dtype=torch.int64, device=self.device)
        # What is current outside of the blocks of each thread: on the default stream, the blocks would take turns.
        self.sides = [torch.cuda.Stream(self.device) for _ in range(THREADS)]
        self.graphs = GraphSet(framework="torch", captures="once")
        torch.cuda.synchronize()

    @staticmethod
    def function(x: Any, w: Any) -> Any:
        y = x @ w  # at most 512 * 9
        return y.relu() - 2 * y.abs() + y.sum(-1, keepdim=True)  # at most 384 * 4608 + 13824, below 2 ** 24

    def work(self, part: Any, rng: random.Random, thread: int) -> Callable[[], int]:
        """Enqueues work in a partition; what it returns waits for it and says how many results are right."""
        torch = self.torch
        kept: list[tuple[tuple[int, int], Any, Any]] = []
        with torch.cuda.stream(self.sides[thread]), part.torch():
            spin(part.stream, 1 + rng.randrange(8), rng.randrange(300_000))
            for _ in range(1 + rng.randrange(4)):
                i, w = rng.randrange(8), rng.randrange(4)
                result = self.function(self.on_device[0][i], self.on_device[1][w])
                to_host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
                to_host.copy_(result, non_blocking=True)
                kept.append(((i, w), result, to_host))
            again = self.inputs[0].pin_memory().to(self.device, non_blocking=True)
            same = torch.equal(again, self.on_device[0][0]) if rng.random() < 0.2 else True
            done = torch.cuda.current_stream().record_event()

        def right() -> int:
            done.synchronize()
            for key, result, to_host in kept:
                if not torch.equal(to_host, self.expected[key]):
                    raise AssertionError(f"a result in pinned memory is wrong: {key}")
                if not torch.equal(result, self.expected_on_device[key]):
                    raise AssertionError(f"a result on the device is wrong: {key}")
            if not same:
                raise AssertionError("a copy from pinned memory is wrong")
            return 2 * len(kept)

        return right

    def chain(self, part: Any, factor: int) -> None:
        # On torch's own terms the stream is another one: the order is that of the switch alone.
        stream = self.torch.cuda.ExternalStream(part.stream.handle, device=self.device)
        with self.torch.cuda.stream(stream):
            spin(part.stream, 1, 20_000)
            self.state.mul_(factor).add_(factor).remainder_(CHAIN_MODULUS)

    def chain_is_right(self, expected: int) -> bool:
        self.torch.cuda.synchronize()
        return bool((self.state == expected).all())

    def set_chain(self, value: int) -> None:
        self.state.fill_(value)
        self.torch.cuda.synchronize()

    def replay(self, part: Any) -> bool:
        torch = self.torch
        with torch.inference_mode():
            self.graphs.capture(part, "step", lambda _: self.function(self.on_device[0][0], self.on_device[1][0]))
            output = self.graphs.replay(part, "step")
            part.sync()
            same = bool(torch.equal(output, self.expected_on_device[0, 0]))
            output.zero_()
            torch.cuda.synchronize()
        return same

    def collective(self, rng: random.Random, size: int) -> int:
        from cuda_gctx.comm import MixedCommOp, local_world, run_mixed_comm

        torch = self.torch
        shapes = [(rng.choice((1, 8, 64)), 1024) for _ in range(4)]

        def rank_works(rank: Any) -> int:
            right = 0
            with rank.partition.torch(), rank.handler(torch.bfloat16, local_tp_size=size) as handler:
                for shape in shapes:
                    x = torch.full(shape, float(rank.rank + 1), dtype=torch.bfloat16, device=handler.device)
                    y = run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x)
                    torch.cuda.current_stream().synchronize()
                    if not bool((y == size * (size + 1) // 2).all()):
                        raise AssertionError(f"the sum of {size} ranks is wrong for {shape}")
                    right += 1
            return right

        with local_world(size, self.dev, sms=16, timeout_s=30.0) as world:
            return sum(world.run(rank_works))

    def memory(self) -> dict[str, float]:
        """What torch has, and what else the driver has for this process, where that can be known."""
        cuda = self.torch.cuda
        in_use, reserved, of_processes = self.card_bytes() / MIB, cuda.memory_reserved() / MIB, process_mib(self.dev)
        own = of_processes.get(os.getpid())
        if own is None and len(of_processes) == 1:  # in a container, its number there is another one
            own = next(iter(of_processes.values()))
        if self.alone:
            own = in_use
        return {
            "torch_mib": round(cuda.memory_allocated() / MIB, 1),
            "torch_reserved_mib": round(reserved, 1),
            "pinned_mib": round(cuda.host_memory_stats().get("allocated_bytes.current", 0) / MIB, 1),
            "card_mib": round(in_use, 1),
            "processes": len(of_processes),
            **({} if own is None else {"driver_mib": round(own - reserved, 1)}),
        }

    def card_bytes(self) -> int:
        """What is in use of the card, by whomever."""
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free)

    def give_back(self) -> None:
        torch = self.torch
        self.graphs.drop()  # first: they use the workspaces
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def close(self) -> None:
        self.graphs.drop()


class MallocUse(ctypes.Structure):
    """struct mallinfo2 of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def malloc_bytes() -> int:
    """What malloc has handed out, on the heap and by mmap."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallocUse
    use = mallinfo()
    return int(use.uordblks + use.hblkhd)


def host_memory() -> dict[str, float]:
    """Resident memory, what of it was handed out by malloc, and the number of Python's own blocks."""
    return {
        "host_mib": round(resident_bytes() / MIB, 1),
        "malloc_mib": round(malloc_bytes() / MIB, 1),
        "python_blocks": sys.getallocatedblocks(),
    }


class ProcessUse(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def process_mib(dev: Device) -> dict[int, float]:
    """The memory that each process has on a device, as far as NVML says so."""
    found: Any = (ProcessUse * 64)()
    count, handle = ctypes.c_uint(len(found)), ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        answers = [
            nvml.nvmlInit_v2(),
            nvml.nvmlDeviceGetHandleByPciBusId_v2(dev.pci_bus_id.encode(), ctypes.byref(handle)),
            nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found),
        ]
    except (OSError, AttributeError):
        return {}
    # All ones where the driver does not know how much one has.
    return {} if any(answers) else {one.pid: one.used / MIB for one in found[: count.value] if one.used + 1 < 2**64}


def layouts_of(dev: Device) -> list[Layout]:
    """Some layouts, the same ones each time: what a framework has seen is kept, one context for each set of SMs."""
    grain, sms = dev.resources.sm.min_partition_size, dev.sm_count
    small, third = grain * max(1, sms // grain // 8), grain * max(2, sms // grain // 3)
    return [
        Layout(a=small, b=None),
        Layout(b=small, a=None),
        Layout(a=third, b=third, c=None),
        Layout(a=small, b=small, c=third),
        Layout(c=small, a=None),
    ]


def growth(settled: list[dict[str, Any]]) -> dict[str, Any]:
    """By what settled memory has grown from the half to the end, and which part of it by too much."""
    if len(settled) < len(QUARTERS) or settled[1]["rounds"] < LEAST_ROUNDS:
        return {"grown": f"not measured: fewer than {LEAST_ROUNDS} rounds in the first half", "too_much": []}
    half, end = settled[1], settled[-1]
    grown = {name: round(end[name] - half[name], 1) for name in MOST_GROWN if name in half and name in end}
    return {"grown": grown, "too_much": [name for name, by in grown.items() if by > MOST_GROWN[name]]}


class Soak:
    def __init__(self, dev: Device, seed: int, alone: bool, out: Any, programs: bool) -> None:
        self.dev, self.random, self.out, self.programs = dev, random.Random(seed), out, programs
        self.work: Any = Simulated(dev) if is_simulated() else Torch(dev, alone)
        self.pool, self.layouts = PartitionPool(dev), layouts_of(dev)
        self.right: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.host_grown: Counter[str] = Counter()
        self.card_grown: Counter[str] = Counter()
        self.chain = 1
        self.settled: list[dict[str, Any]] = []
        self.begin = time.monotonic()

    def attempt(self, what: str, action: Callable[[], int]) -> None:
        """Counts what was right; anything else is noted, and the soak goes on if the device still answers."""
        on_host, on_card = resident_bytes(), self.work.card_bytes()
        try:
            self.right[what] += action()
        except Exception as error:
            self.wrong.append(f"{what}: {type(error).__name__}: {error}"[:500])
            print(self.wrong[-1], file=sys.stderr, flush=True)
            self.work.synchronize()
        self.host_grown[what] += resident_bytes() - on_host
        self.card_grown[what] += self.work.card_bytes() - on_card

    def side_by_side(self, parts: list[Any], rng: random.Random) -> list[Callable[[], int]]:
        """Four threads work in the partitions; returns what checks their results."""
        checks: list[Callable[[], int]] = []
        seeds = [rng.random() for _ in range(THREADS)]

        def run(number: int) -> None:
            own = random.Random(seeds[number])
            try:
                for _ in range(3):
                    checks.append(self.work.work(own.choice(parts), own, number))
            except Exception as error:
                self.wrong.append(f"work: {type(error).__name__}: {error}"[:500])

        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return checks

    def check(self, checks: list[Callable[[], int]]) -> int:
        return sum(check() for check in checks)

    def switches(self) -> int:
        """A chain of steps across switches of the pool, each in the partition of one name."""
        with_a = [layout for layout in self.layouts if "a" in layout.names]
        for _ in range(6):
            parts, factor = self.pool.switch(self.random.choice(with_a)), self.random.randrange(2, 9)
            self.work.chain(parts.a, factor)
            self.chain = (self.chain * factor + factor) % CHAIN_MODULUS
        if not self.work.chain_is_right(self.chain):
            self.work.set_chain(self.chain)
            raise AssertionError("a step ran before the one before the switch")
        return 6

    def graphs(self) -> int:
        parts = self.pool.switch(self.random.choice(self.layouts))
        places = self.random.sample(list(with_background(parts)), 2)
        if not all(self.work.replay(place) for place in places):
            raise AssertionError("a replayed graph gave another result")
        return len(places)

    def in_the_pool(self) -> int:
        parts = self.pool.switch(self.random.choice(self.layouts))
        return self.check(self.side_by_side(list(with_background(parts)), self.random))

    def by_itself(self) -> int:
        """Partitions that close while their work runs and its results are on their way to pinned memory."""
        layout, verified = self.random.choice(self.layouts), 0
        with self.dev.partition(layout) as parts:
            if self.random.random() < 0.2:
                parts.verify()
                verified = 1
            checks = self.side_by_side(list(with_background(parts)), self.random)
        gc.collect()
        return self.check(checks) + verified

    def moved(self) -> int:
        """A graph of the package's own capture, in a partition that closes behind its launch."""
        with self.dev.create_stream() as stream:
            spin(stream, 1, 0)  # what is loaded at its first use cannot be loaded in a capture
            with stream.capture() as capture:
                spin(stream, 2, 20_000)
            with capture.graph as graph, self.dev.partition(self.random.choice(self.layouts)) as parts:
                return self.launched(graph, parts[0].context.create_stream(), parts[0])

    def launched(self, graph: Graph, stream: Stream, part: Any) -> int:
        with graph.in_partition(part) as moved:
            moved.launch(stream)
            if self.random.random() < 0.3:
                moved.verify()
            stream.sync()
        stream.close()
        return 1

    def traced(self) -> int:
        """A trace has as many kernels of each partition as were launched there."""
        with self.dev.partition(self.random.choice(self.layouts)) as parts:
            counts = {part.name: self.random.randrange(1, 50) for part in parts}
            with cuda_gctx.trace() as found:
                for part in parts:
                    for _ in range(counts[part.name]):
                        spin(part.stream, 1, 1000)
                parts.sync()
        kernels = {lane.partition: lane.kernels for lane in found.summary().lanes if lane.kernels}
        if kernels != counts:
            raise AssertionError(f"the trace has {kernels} kernels, not {counts}")
        return len(counts)

    def side_programs(self) -> int:
        """Two unmodified programs at once, each in its part: the SMs that they see, and their results."""
        small = self.dev.resources.sm.min_partition_size * 2
        with tempfile.TemporaryDirectory() as folder:
            seen = [Path(folder, name) for name in ("small", "rest")]
            one, other = ([sys.executable, "-c", self.work.program, str(file)] for file in seen)
            share = [
                *f"{sys.executable} -m cuda_gctx.cli share small={small} --".split(),
                *one,
                *[":", "rest", "--"],
                *other,
            ]
            environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
            done = subprocess.run(
                share, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=environment, timeout=ROUND_LIMIT_S - 10, check=False,
            )  # fmt: skip
            if done.returncode:
                raise AssertionError(f"exit code {done.returncode}: {done.stdout[-300:]}")
            found = [file.read_text().split() for file in seen]
        wanted = [[str(sms), str(self.work.computed)] for sms in (small, self.dev.sm_count - small)]
        if found != wanted:
            raise AssertionError(f"programs saw SMs and results {found}, not {wanted}")
        return len(found)

    def round(self, number: int) -> None:
        faulthandler.dump_traceback_later(ROUND_LIMIT_S, exit=True)
        self.attempt("results in a pool", self.in_the_pool)
        self.attempt("results of partitions that close", self.by_itself)
        self.attempt("steps across switches", self.switches)
        self.attempt("replays", self.graphs)
        self.attempt("moved graphs", self.moved)
        if len(self.settled) < 2:
            self.attempt("traces", self.traced)
        if self.programs and number % 32 == 2:
            self.attempt("programs", self.side_programs)
        if number % 8 == 0:
            self.attempt("sums of ranks", lambda: self.work.collective(self.random, self.random.choice(RANKS)))
        if number % 16 == 15:
            self.attempt("drops", self.dropped)

    def dropped(self) -> int:
        """Graphs and layouts go, and are made anew; in the first half, contexts that nothing needs go too."""
        self.work.synchronize()
        self.work.graphs.drop()
        current = self.pool.current.layout
        for layout in self.pool.layouts:
            if layout != current:
                self.pool.drop(layout)
        if len(self.settled) < 2:
            system.release_contexts()
        return 1

    def settle(self) -> int:
        """Everything that is kept for later is given back, but for the contexts of all layouts."""
        # A context with work in flight, or with a lease that garbage keeps, is lent to nobody, and another one is made.
        gc.collect()
        self.work.synchronize()
        for layout in self.layouts:  # the same contexts each time, whatever was dropped before
            self.pool.switch(layout)
        for layout in self.layouts:
            with ExitStack() as opened:
                for _ in range(MOST_USERS):
                    opened.enter_context(self.dev.partition(layout))
        for size in RANKS:
            self.work.collective(self.random, size)
        self.work.synchronize()
        gc.collect()
        self.work.give_back()
        ctypes.CDLL(None).malloc_trim(0)
        return 1

    def row(self, rounds: int, **marks: Any) -> dict[str, Any]:
        use = system.memory()[self.dev.device_id]
        row = {
            "seconds": round(time.monotonic() - self.begin, 1),
            "rounds": rounds,
            **marks,
            "right": dict(self.right),
            "wrong": len(self.wrong),
            **self.work.memory(),
            **host_memory(),
            "contexts": use.contexts,
            "contexts_lingering": use.lingering,
            "contexts_idle": use.idle,
            "host_grown_mib": {what: round(by / MIB, 1) for what, by in self.host_grown.items()},
            "card_grown_mib": {what: round(by / MIB, 1) for what, by in self.card_grown.items()},
            "threads": threading.active_count(),
            "files": len(os.listdir("/proc/self/fd")),
        }
        print(json.dumps(row), file=self.out, flush=True)
        return row

    def run(self, seconds: float) -> dict[str, Any]:
        rounds, next_row = 0, ROW_S
        while (passed := time.monotonic() - self.begin) < seconds and len(self.wrong) < MOST_WRONG:
            self.round(rounds)
            rounds += 1
            is_quarter = passed > QUARTERS[len(self.settled)] * seconds
            if is_quarter or passed > next_row:
                next_row = passed + ROW_S
                self.row(rounds)
            if is_quarter:
                self.attempt("settlings", self.settle)
                self.settled.append(self.row(rounds, settled=True))
        self.row(rounds)
        self.attempt("settlings", self.settle)
        self.settled.append(self.row(rounds, settled=True))
        faulthandler.dump_traceback_later(ROUND_LIMIT_S, exit=True)
        self.pool.close()
        self.work.close()
        faulthandler.cancel_dump_traceback_later()
        return {"wrong": self.wrong, **growth(self.settled), "simulated": self.work.is_simulated}


def is_simulated() -> bool:
    return os.environ.get("CUDA_GCTX_DRIVER", "").split(":")[0] == "sim"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="receives the lines too")
    parser.add_argument("--alone", action="store_true", help="all memory in use on the card is that of this process")
    parser.add_argument("--programs", action="store_true", help="other programs share the card from time to time")
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(ROUND_LIMIT_S, exit=True)
    with open(options.out, "w", buffering=1) if options.out else sys.stdout as out:
        dev = Device(0)
        first = {
            "soak": 1,
            "seed": options.seed,
            "seconds": options.seconds,
            "alone": options.alone,
            "card": dev.name,
            "driver": system.driver_version,
            "package": cuda_gctx.__version__,
        }
        print(json.dumps(first), file=out, flush=True)
        soak = Soak(dev, options.seed, options.alone, out, options.programs)
        try:
            result = soak.run(options.seconds)
        except Exception as error:  # of a device that does not answer any more
            result = {"wrong": [*soak.wrong, f"it ended with {type(error).__name__}: {error}"], "too_much": []}
        print(json.dumps(result), file=out, flush=True)
    if options.out:
        print(json.dumps(result), flush=True)
    return 1 if result["wrong"] or result["too_much"] else 0


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    sys.exit(main())
