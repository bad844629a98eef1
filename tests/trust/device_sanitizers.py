"""The kernels of the package on a GPU under compute-sanitizer: memcheck, racecheck, synccheck and initcheck.

    python tests/trust/device_sanitizers.py [--limit 150] [--each 40] [--only core] [--out FILE] [TOOL ...]

Two programs run under each tool, with small sizes: the core's kernels (probe, spinning, stamps, a moved graph and its
proof), and those of collectives, with all ranks in one kernel (case ranks_in_one_kernel of tests/comm/gpu_suite.py):
a tool that lets no two kernels run at once would make ranks wait for each other until their time limit. A line of JSON
follows each. The exit code is 1 if a tool reported an error, or a program did not end well.

compute-sanitizer is that of the path or of /usr/local/cuda. The package nvidia-cuda-sanitizer-api 13.0.85 has none that
starts anything: it lacks TreeLauncherSubreaper.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
NO_SANITIZER = "no compute-sanitizer: install the CUDA toolkit, of the driver's version, or add its bin to PATH"
SUITE = Path(__file__).resolve().parents[1] / "comm" / "gpu_suite.py"
PROGRAMS = {
    "core": [__file__, "--program", "core"],
    "collectives": [str(SUITE), "--case", "ranks_in_one_kernel"],
}


def part_of_program(name: str) -> None:
    """Names what a report after this line is about."""
    print(f"PART {name}", flush=True)


def core() -> dict[str, Any]:
    from cuda_gctx import Device, Timeline
    from cuda_gctx.tune import spin

    dev = Device(0)
    timeline = Timeline(dev, spans=8)
    with dev.partition(a=16, b=32) as parts:
        for part in parts:
            part_of_program(f"a kernel that waits in {part.name}")
            spin(part.stream, 2, 10_000)
            part.sync()
            part_of_program(f"stamps around one in {part.name}")
            with timeline.span(part.stream, part.name):
                spin(part.stream, 2, 10_000)
            part.sync()
        part_of_program("the proof of partitions")
        report = parts.verify()
        part_of_program("a moved graph")
        with parts.a.stream.capture() as capture:
            spin(parts.a.stream, 2, 1000)
        with capture.graph as graph, graph.in_partition(parts.b) as moved:
            moved.launch(parts.b.stream)
            parts.b.sync()
            part_of_program("the proof of a moved graph")
            kernels = len(moved.verify().kernels)
        part_of_program("the end")
        return {"partitions": len(report.contexts), "spans": len(timeline.read().spans), "moved kernels": kernels}


def find() -> str | None:
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))


def run(sanitizer: str, tool: str, program: str, limit_s: float) -> dict[str, Any]:
    begin = time.monotonic()
    # A call that answers an error is no error of a kernel: the core pops until there is nothing to pop, for example.
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "10"]
    command += ["--report-api-errors", "no"] if tool == "memcheck" else []
    command += [sys.executable, *PROGRAMS[program]]
    try:
        done = subprocess.run(
            ["timeout", "-s", "KILL", f"{limit_s:.0f}", *command],
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )
        said, code = done.stdout + done.stderr, done.returncode
    except OSError as error:
        said, code = str(error), -1
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
    result = re.findall(r"^RESULT (.*)$", said, re.MULTILINE)
    row: dict[str, Any] = {
        "tool": tool,
        "program": program,
        "seconds": round(time.monotonic() - begin, 1),
        "exit_code": code,
        "summary": summary[-1] if summary else None,
        "result": json.loads(result[-1]) if result else None,
    }
    if code != 0:
        row["said"] = said[:6000] + (" ... " + said[-2000:] if len(said) > 8000 else said[6000:])
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=150, help="seconds of all")
    parser.add_argument("--each", type=float, default=40, help="seconds of one program under one tool")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--program", choices=["core"], help="run it in this process, without a tool")
    parser.add_argument("--only", choices=PROGRAMS, help="this program alone")
    parser.add_argument("tools", nargs="*", default=list(TOOLS))
    options = parser.parse_args()
    if options.program:
        print("RESULT " + json.dumps(core()), flush=True)
        return 0
    sanitizer, end, rows = find(), time.monotonic() + options.limit, []
    if sanitizer is None:
        print(NO_SANITIZER)
        return 2
    for program in [options.only] if options.only else PROGRAMS:
        for tool in options.tools:
            left = min(options.each, end - time.monotonic())
            if left < 3:
                rows.append({"tool": tool, "program": program, "exit_code": None, "summary": "not run: no time left"})
            else:
                rows.append(run(sanitizer, tool, program, left))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 1 if any(row["exit_code"] != 0 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
