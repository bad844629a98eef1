"""Run the test suites of other projects on the software driver, and compare with what is recorded.

    python tests/peers/run.py numba-cuda
    python tests/peers/run.py cuda-core --source CHECKOUT
    python tests/peers/run.py cuda-bindings --source CHECKOUT

A suite is described by SUITE.json next to this program: what to install, which tests to run on which simulated
machines, how many pass, and the cause of each failure (which may be a matter of chance) and of each skip. The suite
gets an environment of its own in build/peers. The exit status is 1 if fewer tests pass than recorded, or if a test
fails or is skipped and no cause names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUITES = ("numba-cuda", "cuda-core", "cuda-bindings")
SECONDS_PER_TEST = 120

Suite = dict[str, Any]
Outcomes = Mapping[str, str]


def suite_file(name: str) -> Path:
    return HERE / f"{name}.json"


def load(name: str) -> Suite:
    suite: Suite = json.loads(suite_file(name).read_text())
    return suite


def matches(pattern: str, test: str) -> bool:
    """Whether a pattern names a test. Only * is special: brackets are parts of names."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test) is not None


def cause_of(suite: Suite, test: str) -> str | None:
    for cause in suite["causes"]:
        if any(matches(pattern, test) for pattern in cause["tests"]):
            return str(cause["cause"])
    return None


def cause_of_skip(suite: Suite, outcome: str) -> str | None:
    """The cause whose pattern names the reason that a skipped test gives."""
    reason = outcome.removeprefix("skipped: ")
    for skip in suite["skips"]:
        if any(matches(pattern, reason) for pattern in skip["reasons"]):
            return str(skip["cause"])
    return None


def count(suite: Suite, outcomes: Outcomes) -> dict[str, Any]:
    """Counts the tests by outcome, and the failures and skips by cause."""
    total = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    causes = Counter(cause_of(suite, test) for test, outcome in outcomes.items() if outcome == "failed")
    skips = Counter(cause_of_skip(suite, outcome) for outcome in outcomes.values() if outcome.startswith("skipped"))
    return {
        **{outcome: total[outcome] for outcome in ("passed", "failed", "skipped")},
        "causes": {one["cause"]: causes[one["cause"]] for one in suite["causes"] if causes[one["cause"]]},
        "skips": {one["cause"]: skips[one["cause"]] for one in suite["skips"] if skips[one["cause"]]},
    }


def complaints(suite: Suite, driver: str, outcomes: Outcomes) -> list[str]:
    """What is wrong with a run, compared with what is recorded."""
    found = []
    recorded = suite["counts"].get(driver, {}).get("passed", 0)
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    failed = sorted(test for test, outcome in outcomes.items() if outcome == "failed")
    by_chance = {cause["cause"] for cause in suite["causes"] if cause.get("by_chance")}
    if passed + sum(cause_of(suite, test) in by_chance for test in failed) < recorded:
        found.append(f"{passed} tests pass on driver {driver}, {recorded} are recorded")
    found += [f"{test} fails on driver {driver}, and no cause names it" for test in failed if not cause_of(suite, test)]
    found += [
        f"{test} is {outcome} on driver {driver}, and no cause names the reason"
        for test, outcome in sorted(outcomes.items())
        if outcome.startswith("skipped") and not cause_of_skip(suite, outcome)
    ]
    return found


def unused_patterns(suite: Suite, runs: Iterable[Outcomes]) -> list[str]:
    failed = {test for outcomes in runs for test, outcome in outcomes.items() if outcome == "failed"}
    patterns = [pattern for cause in suite["causes"] for pattern in cause["tests"]]
    return [pattern for pattern in patterns if not any(matches(pattern, test) for test in failed)]


def environment(name: str, suite: Suite) -> Path:
    """The Python of the suite's environment, which is made or renewed where its requirements have changed."""
    folder = ROOT / "build" / "peers" / name
    python, installed = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(suite["requirements"]) + "\n"
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *suite["requirements"]], check=True)
        installed.write_text(wanted)
    return python


def run(name: str, suite: Suite, driver: str, source: Path | None) -> Outcomes:
    import cuda_software_driver as sim  # not installed where the tests of this program run

    python = environment(name, suite)
    results = ROOT / "build" / "peers" / f"{name}-{driver}.json"
    results.unlink(missing_ok=True)
    folder = ROOT / "build" / "peers" if source is None else source / suite["folder"]
    # One worker process: a crash costs one test, and is a failure of it.
    command = [python, "-m", "pytest", "-p", "outcomes", "-n", "1", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += [f"--timeout={SECONDS_PER_TEST}", *suite["arguments"], *suite["tests"]]
    subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "LD_LIBRARY_PATH": sim.library_folder(),
            "LD_PRELOAD": f"{sim.library_folder()}/libsoftware_driver_keep_ptx.so",
            "CUDA_SOFTWARE_DRIVER_CACHE": str(ROOT / "build" / "peers" / "ptx"),
            "CUDA_SOFTWARE_DRIVER_MACHINE": suite["machine"].replace("DRIVER", driver),
            "CUDA_GCTX_OUTCOMES": str(results),
        },
        check=False,  # some tests fail: which ones is in the results
    )
    outcomes: Outcomes = json.loads(results.read_text())
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--source", type=Path, help="a checkout of the project, for a suite that no registry has")
    parser.add_argument("--driver", action="append", help="run on this driver only (may be repeated)")
    parser.add_argument("--record", action="store_true", help="record the counts")
    arguments = parser.parse_args()
    found: list[str] = []
    suite = load(arguments.suite)
    if ("folder" in suite) != (arguments.source is not None):
        parser.error(f"{arguments.suite} {'needs' if 'folder' in suite else 'does not take'} --source")
    runs = {}
    for driver in arguments.driver or suite["drivers"]:
        runs[driver] = run(arguments.suite, suite, driver, arguments.source and arguments.source.resolve())
        print(driver, json.dumps(count(suite, runs[driver]), indent=1))
        found += complaints(suite, driver, runs[driver])
        if arguments.record:
            suite["counts"][driver] = count(suite, runs[driver])
            suite_file(arguments.suite).write_text(json.dumps(suite, indent=2) + "\n")
    for pattern in unused_patterns(suite, runs.values()):
        print(f"no failure matches {pattern}")
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
