"""Asks a card whether "cuda-gctx trace" puts work into the right lanes, what it loses, and what it costs.

    python tests/hardware/trace_on_card.py [--out FOLDER] [QUESTION ...]

Needs a GPU, torch and the command line (click, rich). share needs nvidia-cuda-mps-control. RECORDS is the number of
kernels of the question "many" (default: 3000000). Each answer lists the checks that failed under "wrong".
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from asking import Answer, Question, main, say

ANSWERS = "TRACE_ANSWERS"  # the folder of the answers of traced processes
OUTSIDE = "outside of all partitions"
LAYOUT = "control=16,rest"
IN_CONTROL, IN_REST, STRAYS = 100, 50, 7
MOVED_NODES, REPLAYS = 20, 30
# The work that a killed process may lose: one interval between flushes, and as much again for a busy host.
LOST_S = 0.4


def answer(**values: Any) -> None:
    """Note an answer of a traced process. The last answer of each process counts."""
    file = Path(os.environ[ANSWERS], f"{os.getpid()}.json")
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"time": time.time(), **values}))
    os.replace(part, file)


# ---- the traced programs


def in_two_partitions() -> None:
    """sin in control, cos in rest, both at once for a time; exp outside, on purpose."""
    import torch

    from cuda_gctx import Device
    from cuda_gctx.interop.torch import fork

    x, y, z = (torch.ones(1 << 20, device="cuda") for _ in range(3))
    torch.cuda.synchronize()
    with Device(0).partition(control=16, rest=None) as parts:
        # Blocks outside of a fork wait for each other.
        with fork() as start:
            for part, sleep in ((parts.control, 200_000_000), (parts.rest, 100_000_000)):
                with part.torch(after=start):
                    torch.cuda._sleep(sleep)
        with parts.control.torch():
            for _ in range(IN_CONTROL):
                x.sin_()
        with parts.rest.torch():
            for _ in range(IN_REST):
                y.cos_()
        torch.cuda.synchronize()
        for _ in range(STRAYS):
            z.exp_()
        torch.cuda.synchronize()
    answer()


def moved_graph() -> None:
    """A graph that torch captured outside, moved into control."""
    import torch

    from cuda_gctx import Device, Graph

    x = torch.ones(1 << 16, device="cuda")
    x.sin_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(MOVED_NODES):
            x.sin_()
    with (
        Device(0).partition(control=16, rest=None) as parts,
        Graph(graph).in_partition(parts.control) as moved,
    ):
        ms = []
        for _ in range(REPLAYS):
            begin = time.perf_counter()
            moved.launch(parts.control.stream)
            parts.control.sync()
            ms.append((time.perf_counter() - begin) * 1e3)
    answer(first_ms=round(ms[0], 3), later_ms=round(statistics.median(ms[1:]), 3))


def paced(seconds: float) -> int:
    """Run one kernel each millisecond; notes the count every tenth time."""
    import torch

    x = torch.ones(1 << 16, device="cuda")
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        x.sin_()
        torch.cuda.synchronize()
        count += 1
        if count % 10 == 0:
            answer(count=count)
        time.sleep(0.001)
    answer(count=count)
    return count


def killed() -> None:
    """Work until SIGKILL comes from this process."""
    paced(2)
    os.kill(os.getpid(), signal.SIGKILL)


def exits_without_handlers() -> None:
    """Leave as forked workers do: no handler runs at exit."""
    paced(1)
    time.sleep(LOST_S)
    os._exit(0)


def loop() -> None:
    paced(3)


def with_children() -> None:
    """Two children that are started, next to work of the parent."""
    children = [subprocess.Popen(program("loop")) for _ in range(2)]
    paced(1)
    for child in children:
        child.wait()


def with_profiler() -> None:
    """torch.profiler around some of the work."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(1 << 16, device="cuda")
    x.cos_()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(IN_CONTROL):
            x.sin_()
        torch.cuda.synchronize()
    answer(profiled=sum(event.count for event in profiled.key_averages() if "sin_kernel" in event.key))


def in_a_block() -> None:
    """cuda_gctx.trace() in a process that uses CUDA already, what it leaves behind, and explain() with it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    import cuda_gctx
    from cuda_gctx import Device, tune

    x = torch.ones(1 << 16, device="cuda")

    def us_of_launches() -> float:
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(2000):
                x.sin_()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / 2000 * 1e6)
        return round(statistics.median(times[2:]), 2)

    def profiled() -> int:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            for _ in range(IN_CONTROL):
                x.sin_()
            torch.cuda.synchronize()
        return sum(event.count for event in found.key_averages() if "sin_kernel" in event.key)

    us = [us_of_launches()]
    kernels = []
    with Device(0).partition(control=16, rest=None) as parts:
        for _ in range(2):
            with cuda_gctx.trace() as found:
                with parts.control.torch():
                    for _ in range(IN_CONTROL):
                        x.sin_()
                torch.cuda.synchronize()
            kernels.append([[one.partition, one.count] for one in found.summary().kernels if "sin" in one.name])
            us.append(us_of_launches())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.pftrace")
            found.perfetto(file)
            has_waits = b"\x04wait" in file.read_bytes()  # the name of a slice, behind its length

        def leaves(stream: object) -> None:
            x.sin_()
            with torch.cuda.stream(torch.cuda.default_stream()):
                x.exp_()

        causes = tune.explain((parts.control, leaves), (parts.rest, lambda stream: x.cos_())).causes
        with cuda_gctx.trace():  # its end does not wait for the work
            for _ in range(20_000):
                x.sin_()
        torch.cuda.synchronize()
        profiles = [profiled()]
        with cuda_gctx.trace() as found:
            x.sin_()
            torch.cuda.synchronize()
        after_profiler = [one.count for one in found.summary().kernels]
        profiles.append(profiled())
    answer(
        kernels=kernels,
        us=us,
        has_waits=has_waits,
        causes=causes,
        profiles=profiles,
        after_profiler=after_profiler,
        right=float(x.abs().max()) <= 1,
    )


def costs() -> None:
    """Microseconds of launches and of graphs, with kernels of about 10 us and with short ones."""
    import torch

    x = torch.ones(1024, device="cuda")

    def long() -> None:
        torch.cuda._sleep(17_000)

    def short() -> None:
        x.add_(1)

    def graph_of_20(kernel: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                kernel()
        return graph.replay

    def us_of(work: Callable[[], None], count: int) -> dict[str, float]:
        enqueued, finished = [], []
        for _ in range(7):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                work()
            enqueued.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
            finished.append(time.perf_counter() - begin)
        # The first rounds warm up.
        return {
            "to enqueue": round(statistics.median(enqueued[2:]) / count * 1e6, 2),
            "to finish": round(statistics.median(finished[2:]) / count * 1e6, 2),
        }

    long()
    short()
    answer(
        us={
            "eager, 10 us": us_of(long, 5000),
            "eager, short": us_of(short, 20000),
            "graph of 20, 10 us": us_of(graph_of_20(long), 500),
            "graph of 20, short": us_of(graph_of_20(short), 2000),
        }
    )


def many() -> None:
    """RECORDS kernels, in graphs of 1000."""
    import torch

    wanted = int(os.environ.get("RECORDS", "3000000"))
    x = torch.ones(1024, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            x.add_(1)
    free = torch.cuda.mem_get_info()[0]
    least, begin = free, time.perf_counter()
    for number in range(wanted // 1000):
        graph.replay()
        if number % 100 == 99:
            torch.cuda.synchronize()
            least = min(least, torch.cuda.mem_get_info()[0])
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    answer(kernels=wanted // 1000 * 1000, seconds=seconds, device_mib=(free - least) >> 20)


PROGRAMS = {
    function.__name__: function
    for function in (
        in_two_partitions,
        moved_graph,
        killed,
        exits_without_handlers,
        loop,
        with_children,
        with_profiler,
        in_a_block,
        costs,
        many,
    )
}


# ---- tracing them


class Traced(NamedTuple):
    """A trace of a program. end: when the command ended. peak_mib: the largest memory of the command itself."""

    status: int
    document: dict[str, Any]
    errors: str
    answers: list[dict[str, Any]]
    end: float
    peak_mib: float

    def lane(self, name: str) -> dict[str, Any]:
        """The lane of a partition, or an empty one."""
        found = [lane for lane in self.document["lanes"] if lane["partition"] == name]
        return found[0] if len(found) == 1 else {"kernels": None, "sm_count": None, "graphs": None}

    def ran(self, word: str, partition: str) -> int:
        """Counts the kernels in a partition whose names contain a word."""
        kernels = self.document["kernels"]
        return sum(kernel["count"] for kernel in kernels if word in kernel["name"] and kernel["partition"] == partition)

    @property
    def kernels(self) -> int:
        return sum(lane["kernels"] for lane in self.document["lanes"])

    @property
    def dropped(self) -> int:
        return sum(process["dropped"] for process in self.document["processes"])

    def lanes(self) -> list[list[Any]]:
        columns = [
            "partition",
            "sm_count",
            "kernels",
            "graphs",
            "copies",
            "busy_ns",
            "queueing_p50_ns",
            "queueing_p99_ns",
        ]
        return [[lane[column] for column in columns] for lane in self.document["lanes"]]


def program(name: str) -> list[str]:
    return [sys.executable, __file__, "--program", name]


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "cuda_gctx.cli", *words]


def peak_of(pid: int) -> float:
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return 0.0


def started(command: Sequence[str], folder: Path) -> tuple[int, float]:
    """Run a command; returns its status and the largest memory of its process. Output goes into the folder."""
    peak = 0.0
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, ANSWERS: str(folder)})
        while process.poll() is None:
            peak = max(peak, peak_of(process.pid))
            time.sleep(0.05)
    return process.returncode, peak


def answers_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def trace(command: Sequence[str], *options: str) -> Traced:
    """Trace a command. Raises RuntimeError with the errors if there is no summary."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status, peak = started(command_line("trace", "--json", *options, "--", *command), folder)
        end = time.time()
        errors = (folder / "err").read_text(errors="replace")
        out = (folder / "out").read_text(errors="replace")
        # The document is the last thing that is printed, and begins on a line of its own.
        at = out.rfind("\n{\n") + 1
        try:
            document = json.loads(out[at:])
        except ValueError:
            raise RuntimeError(f"status {status}, no summary: {out[-300:]} {errors[-1500:]}") from None
        return Traced(status, document, errors, answers_in(folder), end, round(peak, 1))


def judged(found: Traced, checks: dict[str, bool], **more: Any) -> Answer:
    wrong = [check for check, holds in checks.items() if not holds]
    result: Answer = {"wrong": wrong, "lanes": found.lanes(), "dropped": found.dropped, **more}
    if wrong:
        result |= {"status": found.status, "errors": found.errors[-1500:], "document": found.document}
    return result


# ---- the questions


def partitions() -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.pftrace")
        found = trace(program("in_two_partitions"), "-o", str(file))
        size = file.stat().st_size
    strays = [stray for stray in found.document["strays"] if "exp_kernel" in stray["kernel"]]
    [pair] = found.document["pairs"] or [{"together_ns": 0}]
    return judged(
        found,
        {
            "the program succeeded": found.status == 0,
            "sin is in control alone": found.ran("sin_kernel", "control") == IN_CONTROL,
            "cos is in rest alone": found.ran("cos_kernel", "rest") == IN_REST,
            "control has 16 SMs": found.lane("control")["sm_count"] == 16,
            "exp is named as a stray": sum(stray["count"] for stray in strays) == STRAYS,
            "exp is in the lane outside": found.ran("exp_kernel", OUTSIDE) == STRAYS,
            "both partitions ran at once": pair["together_ns"] > 1_000_000,
            "queueing is known": found.lane("control").get("queueing_p99_ns") is not None,
            "nothing was dropped": found.dropped == 0,
            "there is a file": size > 0,
        },
        pair=pair,
        file_bytes=size,
    )


def graph() -> Answer:
    nodes = trace(program("moved_graph"))
    whole = trace(program("moved_graph"), "--graphs", "whole")
    return judged(
        nodes,
        {
            "the nodes are in control": nodes.ran("sin_kernel", "control") == MOVED_NODES * REPLAYS,
            "the queueing of nodes is known": nodes.lane("control").get("queueing_p50_ns") is not None,
            "launches of the whole graph are counted": sum(lane["graphs"] for lane in whole.document["lanes"])
            == REPLAYS,
        },
        whole=whole.lanes(),
        ms=nodes.answers[0],
        ms_untraced=run("moved_graph")[0][0],
    )


def worker() -> Answer:
    """A process that is killed, and one that leaves by os._exit()."""
    dead, left = trace(program("killed")), trace(program("exits_without_handlers"))
    [said], [of_left] = dead.answers, left.answers
    lost = said["count"] - dead.ran("sin_kernel", OUTSIDE)
    return judged(
        dead,
        {
            "the status names the signal": dead.status == 128 + signal.SIGKILL,
            "little was lost": lost <= LOST_S * 1000,
            "the summary says so": not any(process["has_ended"] for process in dead.document["processes"]),
            "os._exit loses nothing old": left.ran("sin_kernel", OUTSIDE) == of_left["count"],
        },
        ran=said["count"],
        lost=lost,
        left=left.lanes(),
    )


def children() -> Answer:
    found = trace(program("with_children"))
    counts = sum(one["count"] for one in found.answers)
    return judged(
        found,
        {
            "three processes are traced": len(found.document["processes"]) == 3,
            "all kernels are there": found.ran("sin_kernel", OUTSIDE) == counts,
        },
        processes=[[process["pid"], process["error_ns"]] for process in found.document["processes"]],
    )


def profiler() -> Answer:
    found = trace(program("with_profiler"))
    alone, _ = run("with_profiler")
    [profiled] = [one["profiled"] for one in found.answers]
    return judged(
        found,
        {
            "the program succeeded": found.status == 0,
            "the program's profiler sees all": profiled == alone[0]["profiled"] == IN_CONTROL,
            "the report says so": any(process["was_replaced"] for process in found.document["processes"]),
        },
        profiled=profiled,
        sentence=found.errors[-400:],
    )


def block() -> Answer:
    """A trace from Python, twice in a process, and what a launch costs before and after it."""
    [[said], status] = run("in_a_block")
    checks = {
        "the program succeeded": status == 0,
        "each block has its kernels in control": said["kernels"] == [[["control", IN_CONTROL]]] * 2,
        "waits of the host are recorded": said["has_waits"],
        "explain names the kernel outside": any("exp" in cause for cause in said["causes"]),
        "torch.profiler sees all afterwards": said["profiles"] == [IN_CONTROL] * 2,
        "a block after it sees its kernel": said["after_profiler"] == [1],
        "launches cost what they did": max(said["us"]) < 1.25 * said["us"][0],
    }
    return {"wrong": [check for check, holds in checks.items() if not holds], **said}


def metrics() -> Answer:
    """Metrics in a file, while a program runs in two partitions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "metrics.prom")
        found = trace(program("in_two_partitions"), "--metrics", str(file))
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    kernels = [line for line in lines if line.startswith("cuda_gctx_kernels_total")]
    counts = {
        name: sum(float(line.split()[-1]) for line in kernels if f'partition="{name}"' in line)
        for name in ("control", "rest")
    }
    return judged(
        found,
        {"the metrics count the kernels": all(counts[name] == found.lane(name)["kernels"] for name in counts)},
        metrics=[line for line in lines if "bucket" not in line],
    )


def in_part() -> Answer:
    """An unmodified program in a partition."""
    found = trace(command_line("run", "--layout", LAYOUT, "--as", "control", "--", *program("loop")))
    return judged(
        found,
        {
            "the lane is control": found.ran("sin_kernel", "control") == found.answers[0]["count"],
            "with 16 SMs": found.lane("control")["sm_count"] == 16,
            "nothing is outside": found.ran("sin_kernel", OUTSIDE) == 0,
        },
    )


def share() -> Answer:
    """Two unmodified programs under MPS."""
    words = command_line("share", "control=16", "--", *program("loop"), ":", "rest", "--", *program("loop"))
    found = trace(words)
    lanes = {lane["partition"]: lane for lane in found.document["lanes"]}
    counts = sorted(one["count"] for one in found.answers)
    return judged(
        found,
        {
            "the programs succeeded": found.status == 0,
            "the lanes are control and rest": {"control", "rest"} <= set(lanes),
            "of different processes": len({lane["pid"] for lane in lanes.values()}) == 2,
            "all kernels are there": sorted(found.ran("sin_kernel", name) for name in ("control", "rest")) == counts,
        },
        pairs=found.document["pairs"],
        errors_ns=[process["error_ns"] for process in found.document["processes"]],
        said=found.errors[-600:],
    )


def run(name: str) -> tuple[list[dict[str, Any]], int]:
    """Run a program without a trace."""
    with tempfile.TemporaryDirectory() as folder:
        status, _ = started(program(name), Path(folder))
        return answers_in(Path(folder)), status


def cost() -> Answer:
    """Medians of three runs of each mode, which take turns, and their ratios to runs without a trace."""
    times: dict[str, list[dict[str, dict[str, float]]]] = {"off": [], "nodes": [], "whole": []}
    for _ in range(3):
        times["off"].append(run("costs")[0][0]["us"])
        for mode in ("nodes", "whole"):
            times[mode].append(trace(program("costs"), "--graphs", mode).answers[0]["us"])
    result: Answer = {}
    for what in times["off"][0]:
        for kind in ("to enqueue", "to finish"):
            us = {mode: statistics.median(one[what][kind] for one in runs) for mode, runs in times.items()}
            ratios = {mode: round(us[mode] / us["off"], 3) for mode in ("nodes", "whole")}
            result[f"{what}, us {kind}"] = {**us, "ratio": ratios}
        say(result)
    return result


def records() -> Answer:
    """Measures the records that are kept per second, the dropped ones, and the time to read them."""
    untraced = run("many")[0][0]
    found = trace(program("many"))
    [said] = found.answers
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.pftrace")
        written = trace(program("many"), "-o", str(file)) if said["kernels"] <= 5_000_000 else None
        size = file.stat().st_size if written is not None else None
    return judged(
        found,
        {
            "each kernel is recorded or dropped": 0 <= found.kernels + found.dropped - said["kernels"] <= 10,
            # The middle one of 1000 nodes that run one after the other.
            "nodes count from the launch of torch's graph": found.lane(OUTSIDE)["queueing_p50_ns"] > 100_000,
        },
        kernels=said["kernels"],
        recorded=found.kernels,
        kernels_per_s=round(said["kernels"] / said["seconds"]),
        kernels_per_s_untraced=round(untraced["kernels"] / untraced["seconds"]),
        device_mib=[untraced["device_mib"], said["device_mib"]],
        seconds_to_summary=round(found.end - said["time"], 1),
        seconds_to_summary_and_file=round(written.end - written.answers[0]["time"], 1) if written else None,
        file_bytes=size,
        peak_mib=found.peak_mib,
    )


QUESTIONS = {
    "partitions": Question(partitions, 60),
    "graph": Question(graph, 60),
    "worker": Question(worker, 60),
    "children": Question(children, 60),
    "profiler": Question(profiler, 60),
    "block": Question(block, 60),
    "metrics": Question(metrics, 60),
    "in_part": Question(in_part, 60),
    "share": Question(share, 90),
    "cost": Question(cost, 240),
    "records": Question(records, 500),
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        PROGRAMS[sys.argv[2]]()
    else:
        main(__file__, __doc__ or "", "trace", QUESTIONS)
