"""Two unmodified programs on one GPU: in turns, under MPS, with percentages of MPS, and each in a partition.

    python benchmarks/whole_programs.py [--only PART] [--seconds S] [--turns N] [--out DIR]

A control loop next to training, and a short kernel next to GEMMs: the programs in benchmarks/programs, which do not
use this package. Also the cost of a launch with and without the library, by a program in C++ (needs nvcc). Needs a GPU,
torch and nvidia-cuda-mps-control. Takes five minutes or more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import reporting

from cuda_gctx import Device
from cuda_gctx.measure.machine import described

PROGRAMS = Path(__file__).resolve().parent / "programs"
CLI = ["cuda-gctx"]
# Beyond these seconds a program hangs.
LIMIT_S = 90
# The load starts with the latency program, which waits for this long.
WAIT_S = 9.0
LATENCY_SMS = 16
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
# Pairs of programs: a latency program and a load.
PAIRS = {"control": ("control_loop.py", "training.py"), "kernel": ("short_kernel.py", "gemms.py")}

Row = dict[str, Any]


def limited(command: Sequence[str]) -> list[str]:
    return ["timeout", "-s", "KILL", str(LIMIT_S), *command]


def answer_of(process: subprocess.Popen[str]) -> Any:
    """The JSON of a program, or the end of its errors."""
    said, errors = process.communicate()
    try:
        return json.loads(said.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": process.returncode, "errors": errors[-300:]}


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        limited(command),
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def commands_of(pair: str, seconds: float) -> tuple[list[str], list[str]]:
    latency, load = PAIRS[pair]
    return (
        [sys.executable, str(PROGRAMS / latency), str(WAIT_S), str(seconds)],
        [sys.executable, str(PROGRAMS / load), str(seconds + WAIT_S + 4)],
    )


def judged(latency: Any, load: Any) -> Row:
    """The row of two programs. Says so if the load did not run for as long as latencies were measured."""
    row = {"latency": latency, "load": load}
    windows = [answer.pop("window", None) for answer in (latency, load)]
    if None not in windows:
        (begin, end), (load_begin, load_end) = windows
        row["ran_at_once"] = load_begin <= begin and end <= load_end
    return row


def side_by_side(pair: str, seconds: float, latency: Mapping[str, str], load: Mapping[str, str]) -> Row:
    """Both programs with their variables in the environment."""
    first, second = commands_of(pair, seconds)
    started = [start(second, **load), start(first, **latency)]
    answers = [answer_of(process) for process in started]
    return judged(answers[1], answers[0])


def alone(pair: str, seconds: float) -> Row:
    first, second = commands_of(pair, seconds)
    answers = {"latency": answer_of(start(first)), "load": answer_of(start(second))}
    for answer in answers.values():
        answer.pop("window", None)
    return answers


def shared(pair: str, seconds: float) -> Row:
    """Both programs in partitions, by one command that starts MPS too."""
    first, second = commands_of(pair, seconds)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("latency", "load")]
        words = [
            ["sh", "-c", 'out=$1; shift; exec "$@" > "$out"', "sh", str(file), *command]
            for file, command in zip(files, (first, second), strict=True)
        ]
        done = subprocess.run(
            limited([*CLI, "share", f"latency={LATENCY_SMS}", "--", *words[0], ":", "rest", "--", *words[1]]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        said = [file.read_text().strip().splitlines() if file.exists() else [] for file in files]
    try:
        latency, load = (json.loads(lines[-1]) for lines in said)
    except (IndexError, ValueError):
        return {"failed": done.returncode, "errors": done.stderr[-600:]}
    return {**judged(latency, load), "table": done.stderr.strip().splitlines()[-4:]}


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A daemon of MPS in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **variables}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=30)
        try:
            yield variables
        finally:
            subprocess.run(
                ["nvidia-cuda-mps-control"], env=environment, input="quit\n", text=True, check=False, timeout=30
            )


def rows_of(pair: str, seconds: float, sm_count: int) -> Iterator[tuple[str, Row]]:
    yield "alone", alone(pair, seconds)
    yield "turns, without MPS", side_by_side(pair, seconds, {}, {})
    percentage = round(100 * LATENCY_SMS / sm_count)
    with mps() as variables:
        yield "MPS", side_by_side(pair, seconds, variables, variables)
        own, others = ({**variables, PERCENTAGE: str(share)} for share in (percentage, 100 - percentage))
        yield f"MPS, percentages {percentage} and {100 - percentage}", side_by_side(pair, seconds, own, others)
    yield f"cuda-gctx share, {LATENCY_SMS} SMs and the rest", shared(pair, seconds)


def launch_costs(turns: int) -> Row:
    """The medians of launches with and without the library, by turns on one core. The partition has the whole card."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return {"skipped": "no nvcc"}
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "launches"))
        source = str(PROGRAMS / "launches.cu")
        stubs = Path(compiler).resolve().parents[1] / "lib64" / "stubs"
        subprocess.run([compiler, "-O2", "-o", program, source, "-L", str(stubs), "-lcuda"], check=True)
        ways = {
            "plain": [program],
            "in a partition": [*CLI, "run", "--layout", "a=rest", "--as", "a", "--", program],
            "in a green context of the program": [program, "green"],
        }
        found: dict[str, list[Row]] = {way: [] for way in ways}
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})  # the programs inherit it
        for turn in range(turns):
            for way, command in list(ways.items())[:: -1 if turn % 2 else 1]:
                found[way].append(answer_of(start(command)))
        os.sched_setaffinity(0, cores)
    costs: Row = {"turns": turns}
    for name in ("driver_ns", "runtime_ns"):
        times = {way: [row[name] for row in rows] for way, rows in found.items()}
        plain, inside, green = times.values()
        costs[name] = {way: round(statistics.median(values), 1) for way, values in times.items()}
        for other, values in (("plain", plain), ("a green context", green)):
            ratios = [one / two for one, two in zip(inside, values, strict=True)]
            costs[name][f"ratio to {other}, quartiles"] = [round(one, 4) for one in statistics.quantiles(ratios)]
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row (default: 5)")
    parser.add_argument("--turns", type=int, default=20, help="of the launch costs (default: 20)")
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--only", choices=[*PAIRS, "launches"], help="a pair of programs, or the launch costs")
    options = parser.parse_args()
    device = Device(0)
    head = described(device, "Two unmodified programs, by benchmarks/whole_programs.py", reporting.REPOSITORY)
    if head["simulated"]:
        parser.error("needs a GPU: the software driver simulates no contention between processes")
    rows = []
    for pair in PAIRS:
        if options.only not in (None, pair):
            continue
        for how, row in rows_of(pair, options.seconds, device.sm_count):
            rows.append({"pair": pair, "how": how, **row})
            print(json.dumps(rows[-1]), flush=True)
    result: Row = {**head, "rows": rows}
    if options.only in (None, "launches"):
        result["launches"] = launch_costs(options.turns)
        print(json.dumps(result["launches"]), flush=True)
    print(reporting.write(result, "whole-programs", options.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
