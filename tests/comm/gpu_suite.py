"""Runs the kernels of cuda_gctx.comm on a GPU: ranks as partitions of one GPU, as processes on one GPU and on several.

    python tests/comm/gpu_suite.py --out FOLDER [--build] [--jobs N] [--limit SECONDS] [CASE ...]

Without names, all cases run for which there are GPUs: 100 s on one. Each case is a program of its own that is killed
at a time limit, because its kernels wait for each other. Those that measure, or whose processes take turns on a GPU,
run alone, the others several at a time. FOLDER receives results.json, as cases end, and a log for each case. The exit
code is 0 if every case passed. --build installs the package into FOLDER/site first, with what the interpreter has
(Cython, scikit-build-core, CMake, a compiler, cuda.h), and asks no registry.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gpu_cases import (  # noqa: F401  which enter their cases
    copies,
    eager,
    faults,
    guard_costs,
    one_kernel,
    operations,
    packets,
    sequences,
    several,
    tuning,
)
from gpu_cases.common import CASES, LIMIT_S, REPOSITORY
from gpu_cases.processes import process_rank

# Multicast over NVLink can put the GPUs of a shared host out of service: nothing here uses it, nothing below may.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Eight ranks that are threads, and GEMMs next to them, have more streams than the default number of hardware queues.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


# Cases that run at a time, on 16 cores.
JOBS = 5
# What is asked first, in case that the time runs out.
FIRST = ("eager", "guard_costs", "machine", "guards", "packets", "epochs_begin_again", "copy_engines", "faults")


def build(folder: Path) -> None:
    search = [sys.executable, str(REPOSITORY / "tools" / "requirements.py"), "cuda-include"]
    include = subprocess.run(search, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    options = [f"--config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE={include}"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--target", str(folder), *options, str(REPOSITORY)], check=True)


def run_case(name: str, out: Path, environment: dict[str, str], end: float) -> tuple[dict[str, Any], str]:
    """One case as a program, under a time limit: its result, and the end of what it printed."""
    begin = time.monotonic()
    limit = min(LIMIT_S, end - begin)
    if limit < 5:
        return {"passed": False, "exit_code": None, "seconds": 0.0}, "not run: the limit of all cases is reached"
    command = ["timeout", "-s", "KILL", f"{limit:.0f}", sys.executable, __file__, "--case", name]
    with open(out / f"{name}.log", "w+") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=out
        ).returncode
        log.seek(0)
        text = log.read()
    result = {"passed": code == 0, "exit_code": code, "seconds": round(time.monotonic() - begin, 1)}
    reported = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    if reported:
        result["result"] = json.loads(reported[-1])
    return result, text[-3000:]


def gpus(environment: dict[str, str], out: Path) -> int:
    """How many there are: in another process, so that this one has no driver."""
    count = [sys.executable, "-c", "from cuda_gctx import Device; print(Device.count())"]
    return int(subprocess.run(count, check=True, stdout=subprocess.PIPE, env=environment, cwd=out, timeout=60).stdout)


def cases_for(count: int) -> list[str]:
    """Those that so many GPUs can run."""
    possible = [name for name, case in CASES.items() if case.gpus <= count]
    return sorted(possible, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def report(name: str, result: dict[str, Any], text: str) -> None:
    code = result["exit_code"]
    print(f"{name:32} {result['seconds']:6.1f} s  {'passed' if code == 0 else f'FAILED: exit code {code}'}", flush=True)
    print(json.dumps(result["result"], separators=(",", ":")) if "result" in result else text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("comm-gpu-results"))
    parser.add_argument("--build", action="store_true")
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help="how many cases run at a time, but for those that measure"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds; cases that do not begin in time fail")
    parser.add_argument("--case", choices=CASES, help="run this case in this process")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    options = parser.parse_args()
    if options.process or options.case:
        faulthandler.enable()
        faulthandler.dump_traceback_later(LIMIT_S - 15, exit=True)
        if options.process:
            process_rank(*json.loads(options.process))
        else:
            print("RESULT " + json.dumps(CASES[options.case].run()))
        faulthandler.cancel_dump_traceback_later()
        return 0

    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    environment = os.environ | SAFE | QUEUES | {"PYTHONUNBUFFERED": "1"}
    if options.build:
        build(out / "site")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(out / "site"), os.environ.get("PYTHONPATH")]))
    cases = options.cases or cases_for(gpus(environment, out))
    # A name that is wrong does not stop the others: time on a card is short.
    results: dict[str, Any] = {
        name: {"passed": False, "exit_code": None, "seconds": 0.0} for name in cases if name not in CASES
    }
    for name, result in results.items():
        report(name, result, f"there is no such case: {', '.join(CASES)}")
    cases = [name for name in cases if name in CASES]
    end = time.monotonic() + options.limit
    alone = [name for name in cases if CASES[name].runs_alone]
    for names, jobs in ((alone, 1), ([name for name in cases if name not in alone], options.jobs)):
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(run_case, name, out, environment, end): name for name in names}
            for done in as_completed(running):
                name = running[done]
                results[name], text = done.result()
                report(name, results[name], text)
                rows = [f"{json.dumps(one)}:{json.dumps(row, separators=(',', ':'))}" for one, row in results.items()]
                (out / "results.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    failed = [name for name, result in results.items() if not result["passed"]]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
