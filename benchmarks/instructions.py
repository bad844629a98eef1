"""How many instructions each call of the package takes, on the software driver: the same on a busy machine.

    python benchmarks/instructions.py            measure, and compare with the record
    python benchmarks/instructions.py --record   measure, and write the record of this Python and compiler

Needs valgrind, and the package installed, not editable. Counted is everything but the software driver itself: the C++
core, Cython, the interpreter, the C library. Records are kept in instructions.json by what decides the numbers: the
interpreter, the compilers, Cython and the C library. tests/house/test_instructions.py compares with them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import cuda_gctx
from cuda_gctx import ContextOptions, Device, Layout, PartitionPool, SMResourceOptions, Stream
from cuda_gctx.measure.results import write_result
from cuda_gctx.tune import Plan, Policy
from cuda_software_driver import session

PACKAGE = Path(cuda_gctx.__file__).parent
CORE = PACKAGE / "libcuda_gctx.so"
RECORDS = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.03
FEW = 15  # instructions: smaller differences are ignored, in calls of a few hundred

WARM_UP = 40  # calls: after these the interpreter has specialised its bytecode
CALLS = 200
# A function of the C library that nothing else here calls: callgrind writes what it has counted whenever it is entered.
mark = os.getppid
MARK = "getppid"
SOFTWARE_DRIVER = "libcuda_gctx_sim.so"


def cases(dev: Device, pool: PartitionPool) -> dict[str, Callable[[], object]]:
    """The calls, each with nothing to look up but what it is about."""
    whole = dev.resources.sm
    one, three = SMResourceOptions([8]), SMResourceOptions([8, 16, 24])
    groups, _ = whole.split(SMResourceOptions([16, 16, 8]))
    a, b, c = (dev.create_context(ContextOptions([group])) for group in groups)
    stream, other, event = a.create_stream(), b.create_stream(), a.create_event()
    stream.record(event)
    # Other code knows the handle of this one, and could make it capture.
    known, known_event = c.create_stream(), c.create_event()
    same = Stream.from_handle(known.handle)
    layout, positions, value = {"decode": 16, "prefill": 104}, (16, 104), Layout(decode=16, prefill=104)
    parts = pool.prepare(layout)
    pool.prepare(positions)
    part = parts.decode
    elsewhere = Device(1)

    streams, placed = Plan("streams", ("a", "b")), Plan("priority", ("a", "b"), first="a")
    loads = [{"batch": batch, "context": context} for batch in (8, 32, 64) for context in (4096, 12288)]
    rows = [(load, plan, 0.02, rate) for load in loads for plan, rate in ((streams, 1.0), (placed, 1.01))]
    policy = Policy.of(rows, latency="a", bulk="b")
    used = policy.plans[0]

    def push_pop() -> None:
        with a.current():
            pass

    def record_wait() -> None:
        stream.record(event)
        other.wait(event)

    def record_wait_of_contexts() -> None:
        a.record_event(event)
        b.wait_event(event)

    def record_wait_of_known_contexts() -> None:
        c.record_event(known_event)
        c.wait_event(known_event)

    return {
        "an empty function": lambda: None,
        "whole.split(8)": lambda: whole.split(one),
        "whole.split(8, 16, 24)": lambda: whole.split(three),
        "ctx.is_green": lambda: a.is_green,
        "ctx.handle": lambda: a.handle,
        "ctx.create_stream()": lambda: a.create_stream(),
        "ctx.create_event()": lambda: a.create_event(),
        "stream.resources.sm.sm_count": lambda: stream.resources.sm.sm_count,
        "with ctx.current()": push_pop,
        "stream.record, stream.wait": record_wait,
        "ctx.record_event, ctx.wait_event": record_wait_of_contexts,
        "the same, a handle is known": record_wait_of_known_contexts,
        "stream.handle": lambda: known.handle,
        "stream.__cuda_stream__()": lambda: known.__cuda_stream__(),
        "pool.prepare(dict)": lambda: pool.prepare(layout),
        "pool.prepare(name=...)": lambda: pool.prepare(decode=16, prefill=104),
        "pool.prepare((16, 104))": lambda: pool.prepare(positions),
        "pool.prepare(Layout)": lambda: pool.prepare(value),
        "pool.prepare(dict).decode.stream": lambda: pool.prepare(layout).decode.stream,
        "dev.partition(), close()": lambda: elsewhere.partition(value).close(),
        "parts.decode": lambda: parts.decode,
        "part.stream": lambda: part.stream,
        "stream.is_done": lambda: stream.is_done,
        "Stream.from_handle": lambda: Stream.from_handle(known.handle),
        "stream == stream": lambda: known == same,
        "Device(0)": lambda: Device(0),
        "Device(0).resources.sm": lambda: Device(0).resources.sm,
        "ctx.is_current": lambda: a.is_current,
        "dev.set_current(ctx)": lambda: dev.set_current(a),
        "stream.sync()": lambda: stream.sync(),
        "stream.sync(), its handle is known": lambda: known.sync(),
        "stream.wait(stream)": lambda: other.wait(stream),
        "policy.choose(limit, batch=, context=)": lambda: policy.choose(0.025, batch=20, context=5000),
        "policy.choose(limit, plan, batch=, context=)": lambda: policy.choose(0.025, used, batch=20, context=5000),
    }


def start_counting() -> None:
    """What is before, imports for the most part, would take ten times as long if it were counted."""
    asking = subprocess.Popen(["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"], stdout=subprocess.DEVNULL)
    while asking.poll() is None:  # valgrind looks for questions while it runs code, not in system calls that wait
        pass
    if asking.returncode != 0:
        raise RuntimeError(f"vgdb, a part of valgrind, ended with {asking.returncode}")


def run_cases(names_to: Path) -> None:
    """Runs each call some times between two marks; under valgrind, in a process of its own."""
    with session("h200", driver="13.0", devices=2, check=False):
        calls = cases(Device(0), PartitionPool(Device(0)))
        names_to.write_text(json.dumps(list(calls)))
        gc.collect()
        gc.disable()
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        start_counting()
        for call in calls.values():
            mark()
            for _ in range(CALLS):
                call()
            mark()
        sys.stdout.flush()
        os._exit(0)  # what follows is not measured


def instructions_of(dump: str) -> int:
    """What one of callgrind's files counts outside the software driver. Costs of callees are lines of their own."""
    total, counted, of_a_call = 0, True, False
    ids: dict[str, str] = {}
    for line in dump.splitlines():
        if line.startswith("ob="):
            number, _, name = line[3:].partition(" ")
            if name:
                ids[number] = name
            counted = not ids.get(number, "").endswith(SOFTWARE_DRIVER)
        elif line.startswith("cob="):
            number, _, name = line[4:].partition(" ")
            if name:
                ids[number] = name
        elif line.startswith("calls="):
            of_a_call = True
        elif re.match(r"[+*\-\d]", line):
            if counted and not of_a_call:
                total += int(line.split()[1])
            of_a_call = False
    return total


def missing() -> str | None:
    """The reason why nothing can be measured here, with what to do; None if there is none."""
    if not CORE.exists():
        return "the install is editable: 'make .venv/package' installs the package instead"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed: install it with the system's package manager"
    return None


def measure() -> dict[str, int]:
    """Instructions per call, less those of an empty function."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names.json"
        done = subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--dump-before={MARK}"),
                f"--callgrind-out-file={folder}/out",
                *(sys.executable, __file__, "--run-cases", str(names)),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr}")
        called = json.loads(names.read_text())
        # The first mark ends what was before, the second one a case, the third what is between two cases...
        counts = [instructions_of((Path(folder) / f"out.{2 * n}").read_text()) for n in range(1, len(called) + 1)]
    empty = counts[0]
    return {name: round((count - empty) / CALLS) for name, count in zip(called[1:], counts[1:], strict=True)}


def toolchain() -> str:
    """What decides the numbers, but for the code."""
    core = CORE.read_bytes()
    module = next((PACKAGE / "_core").glob("stream.*.so")).read_bytes()
    compiler = re.search(rb"(GCC|clang)[: ]+[^\0]*?(\d+\.\d+\.\d+)", core)
    cython = re.search(rb"_cython_(\d+(?:_\w+)*)", module)
    return ", ".join(
        [
            f"{platform.python_implementation()} {platform.python_version()} of {platform.python_compiler()}",
            b" ".join(compiler.groups()).decode() if compiler else "unknown compiler",
            f"Cython {cython[1].decode().replace('_', '.')}" if cython else "unknown Cython",
            *(" ".join(platform.libc_ver()), platform.machine()),
        ]
    )


def records() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(RECORDS.read_text())["records"] if RECORDS.exists() else {}
    return found


def dearer(recorded: dict[str, int], measured: dict[str, int]) -> list[str]:
    """What takes more instructions than are recorded, beyond the tolerance."""
    return [
        f"{name}: {count} instructions, {recorded[name]} recorded"
        for name, count in measured.items()
        if name in recorded and count > recorded[name] * (1 + TOLERANCE) + FEW
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the record of this Python and compiler")
    parser.add_argument("--run-cases", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_cases is not None:
        run_cases(arguments.run_cases)
    if reason := missing():
        sys.exit(f"nothing was measured: {reason}")

    measured, recorded = measure(), records().get(toolchain(), {})
    print(toolchain())
    for name, count in measured.items():
        before = recorded.get(name)
        print(f"{name:34}{count:8}" + (f"{before:8}{count / max(before, 1) - 1:+8.1%}" if before is not None else ""))
    if arguments.record:
        what = "Instructions per call, less those of an empty function; written by benchmarks/instructions.py --record"
        write_result({"_what": what, "records": {**records(), toolchain(): measured}}, RECORDS)
        return 0
    wrong = dearer(recorded, measured)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
