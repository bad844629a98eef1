"""Runs the tests that need a GPU or that differ on one, each file in a process of its own.

    python tests/on_gpu.py --out FOLDER [--limit SECONDS] [--jobs FILES] [--passed SUMMARY] [--simulated] [tests/ROOM]

A crash, a hang or an error that stays with the process costs no other file; the log of a file that hangs ends with the
stacks of all threads. The processes are forks of one that has imported and collected all files and has not used the
driver: what a new interpreter would import takes longer than most files do. FOLDER receives a log and a JUnit file for
each file of tests, and a line for each is printed.

FILES files run side by side (default: 4). Files with a test that is marked "alone" then run one after the other. A file
that fails beside others runs once more alone: its first line says "again".

The exit code is 0 if every test passed, 1 if one failed, and 75 if none failed but the limit left files out. Files
that SUMMARY, the printed lines of a former run, reports as passed do not run again.
With --simulated, what can run on the software driver does: a rehearsal.
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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# A file that takes longer hangs. The slowest compiles models, and takes two minutes alone.
FILE_LIMIT_S = 300
# The exit code where nothing failed and the limit left files out.
LEFT_OUT = 75
sys.path.remove(str(REPOSITORY / "tests"))  # whose folders are no modules for anyone


class Collected:
    """A plugin that keeps the files of the tests that were collected, in order, and those that run alone."""

    def __init__(self) -> None:
        self.files: dict[Path, int] = {}
        self.alone: set[Path] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.files[item.path] = self.files.get(item.path, 0) + 1
            if item.get_closest_marker("alone") is not None:
                self.alone.add(item.path)


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


def name_of(file: Path) -> str:
    return "tests/" + ".".join(file.relative_to(REPOSITORY / "tests").with_suffix("").parts)


@dataclass
class Run:
    """A child that runs the tests of one file."""

    file: Path
    log: Path
    child: int
    begin: float
    limit_s: float
    is_cut: bool  # its limit is the end of the whole run

    def outcome(self) -> str | None:
        """Returns how the child ended: "" if every test passed, None while it runs."""
        pid, status = os.waitpid(self.child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        if time.monotonic() < self.begin + self.limit_s:
            return None
        os.kill(self.child, signal.SIGUSR1)  # the stacks of all threads go to the log
        time.sleep(1)
        os.killpg(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        return f"killed after its limit of {self.limit_s:.0f} s"


@dataclass
class Runner:
    out: Path
    end: float
    options: list[str]
    failed: int = 0
    left_out: int = 0

    def start(self, file: Path) -> Run | None:
        """Starts a child; None if too little time is left for any file."""
        left = self.end - time.monotonic()
        if left < 5:
            self.left_out += 1
            print(f"{name_of(file):38} later      0 s  not run: the limit is reached", flush=True)
            return None
        name = name_of(file).removeprefix("tests/")
        log = self.out / f"{name}.log"
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            run_file(file, log, self.out / f"{name}.xml", self.options)
        return Run(file, log, child, begin, min(FILE_LIMIT_S, left), left < FILE_LIMIT_S)

    def run(self, files: list[Path], jobs: int, again: Callable[[Path], None] | None = None) -> None:
        """Runs files, some side by side. A file that fails is passed to `again`, or counted as failed."""
        waiting, running = deque(files), list[Run]()
        while waiting or running:
            while waiting and len(running) < jobs:
                started = self.start(waiting.popleft())
                running += [started] if started else []
            for run in [*running]:
                wrong = run.outcome()
                if wrong is not None:
                    running.remove(run)
                    self.report(run, wrong, again)
            time.sleep(0.02)

    def report(self, run: Run, wrong: str, again: Callable[[Path], None] | None) -> None:
        outcome = "ok"
        if wrong and run.is_cut and wrong.startswith("killed"):
            outcome, self.left_out = "later", self.left_out + 1
        elif wrong and again is not None:
            outcome, wrong = "again", f"{wrong} beside other files"
            again(run.file)
        elif wrong:
            outcome, self.failed = "FAILED", self.failed + 1
        took = time.monotonic() - run.begin
        print(f"{name_of(run.file):38} {outcome:6} {took:5.0f} s  {wrong or counted(run.log)}", flush=True)
        if wrong:
            lines = run.log.read_text(errors="replace").splitlines()[-25:]
            print("".join(f"    {line}\n" for line in lines), flush=True)


def counted(log: Path) -> str:
    """The last line of pytest, which counts the tests."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if " in " in line and line[:1].isdigit()]
    return lines[-1] if lines else ""


def passed_in(summary: Path | None) -> set[str]:
    """The names of the files that a summary reports as passed."""
    lines = [] if summary is None else summary.read_text().splitlines()
    return {words[0] for words in map(str.split, lines) if words[1:2] == ["ok"] and words[0].startswith("tests/")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=400, help="seconds; files that do not begin in time run later")
    parser.add_argument("--jobs", type=int, default=4, help="files that run side by side")
    parser.add_argument("--passed", type=Path, help="the lines of a former run, whose passed files do not run again")
    parser.add_argument("--simulated", action="store_true", help="rehearse on the software driver")
    parser.add_argument("folders", nargs="*", default=["tests"])
    arguments = parser.parse_args()
    begin = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    passed = [
        file for file in (REPOSITORY / "tests").rglob("test_*.py") if name_of(file) in passed_in(arguments.passed)
    ]
    # The plugin of hypothesis, where it is installed, warns of trio when it imports it, and warnings are errors here.
    options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--on-gpu"]
    options += [] if arguments.simulated else ["--real-gpu"]
    collected = Collected()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        plugins: list[Any] = [collected]
        places = [str(REPOSITORY / folder) for folder in arguments.folders]
        places += [f"--ignore={file}" for file in passed]
        code = pytest.main(["--collect-only", "-q", *options, *places], plugins)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(said.getvalue())
        return 1
    print(
        f"{len(collected.files)} files with {sum(collected.files.values())} tests, collected in "
        f"{time.monotonic() - begin:.0f} s; {len(passed)} files passed before",
        flush=True,
    )
    runner = Runner(arguments.out.resolve(), begin + arguments.limit, options)
    alone = [file for file in collected.files if file in collected.alone]
    together = [file for file in collected.files if file not in collected.alone]
    runner.run(together, arguments.jobs, alone.append)
    runner.run(alone, 1)
    words = [f"{runner.failed} files FAILED"] if runner.failed else []
    words += [f"{runner.left_out} files run later"] if runner.left_out else []
    print(" and ".join(words) or "every file passed", f"in {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if runner.failed else LEFT_OUT if runner.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
