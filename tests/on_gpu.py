"""Runs the tests that need a GPU or that differ on one, each file in a process of its own.

    python tests/on_gpu.py --out FOLDER [--limit SECONDS] [--simulated] [tests/ROOM ...]

A crash, a hang or an error that stays with the process costs no other file; the log of a file that hangs ends with the
stacks of all threads. The processes are forks of one that has
imported and collected all files and has not used the driver: what a new interpreter would import takes longer than most
files do. FOLDER receives a log and a JUnit file for each file of tests, and a line for each is printed. The exit code
is 0 if every test passed. With --simulated, what can run on the software driver does: a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# A file that takes longer hangs. The slowest compiles models, and takes two minutes.
FILE_LIMIT_S = 240
sys.path.remove(str(REPOSITORY / "tests"))  # whose folders are no modules for anyone


class Collected:
    """A plugin that keeps the files of the tests that were collected, in order."""

    def __init__(self) -> None:
        self.files: dict[Path, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.files[item.path] = self.files.get(item.path, 0) + 1


def run_file(file: Path, log: Path, junit: Path, options: list[str]) -> None:
    """The child: pytest on one file, its output in a log."""
    os.setsid()  # so that what it starts can be ended with it
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=output, all_threads=True)  # pytest has another file at 2 in a test
    code = 1
    try:
        code = pytest.main([str(file), "-q", "--durations=5", f"--junit-xml={junit}", *options])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcome_of(child: int, limit_s: float) -> str:
    """How a child has ended: "" if every test passed."""
    end = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGUSR1)  # the stacks of all threads go to the log
            time.sleep(1)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"killed after its limit of {limit_s:.0f} s"
        time.sleep(0.02)
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"


def counted(log: Path) -> str:
    """The last line of pytest, which counts the tests."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if " in " in line and line[:1].isdigit()]
    return lines[-1] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=400, help="seconds; files that do not begin in time fail")
    parser.add_argument("--simulated", action="store_true", help="rehearse on the software driver")
    parser.add_argument("folders", nargs="*", default=["tests"])
    arguments = parser.parse_args()
    begin = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    out = arguments.out.resolve()
    # The plugin of hypothesis, where it is installed, warns of trio when it imports it, and warnings are errors here.
    options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--on-gpu"]
    options += [] if arguments.simulated else ["--real-gpu"]
    collected = Collected()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        plugins: list[Any] = [collected]
        folders = [str(REPOSITORY / folder) for folder in arguments.folders]
        code = pytest.main(["--collect-only", "-q", *options, *folders], plugins)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(said.getvalue())
        return 1
    print(
        f"{len(collected.files)} files with {sum(collected.files.values())} tests, collected in "
        f"{time.monotonic() - begin:.0f} s",
        flush=True,
    )
    failed = 0
    for file in collected.files:
        name = ".".join(file.relative_to(REPOSITORY / "tests").with_suffix("").parts)
        log, left = out / f"{name}.log", arguments.limit - (time.monotonic() - begin)
        if left < 5:
            failed += 1
            print(
                f"tests/{name:32} FAILED     0 s  not run: the limit of {arguments.limit:.0f} s is reached", flush=True
            )
            continue
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            run_file(file, log, out / f"{name}.xml", options)
        wrong = outcome_of(child, min(FILE_LIMIT_S, left))
        failed += bool(wrong)
        words = f"{'FAILED' if wrong else 'ok':6} {time.monotonic() - start:5.0f} s  {wrong or counted(log)}"
        print(f"tests/{name:32} {words}", flush=True)
        if wrong:
            print("".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-25:]), flush=True)
    print(
        f"{failed} files FAILED" if failed else "every file passed", f"in {time.monotonic() - begin:.0f} s", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
