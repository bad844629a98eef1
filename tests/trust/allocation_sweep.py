"""Every public operation, with each allocation of the core failing in turn.

``failing_new.cpp`` has to be preloaded: ``python -m tests.trust.allocation_sweep`` builds it and runs itself again. The
caller gets a MemoryError, and the rest is as in fault_sweep.py.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from cuda_gctx import FeatureNotSupported
from cuda_software_driver import session

from ..conftest import REPOSITORY
from ..raw import Raw
from .fault_sweep import alive, attempt, stack
from .operations import operations, world

Place = tuple[str, str, int]
DRIVERS = ("12.4", "13.0", "13.4")  # those whose calls differ most


def build(folder: Path) -> Path:
    """The library to preload. FileNotFoundError without a C++ compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    source, library = REPOSITORY / "tests" / "trust" / "failing_new.cpp", folder / "failing_new.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def run(driver: str, operation: str, uses: int, nth: int) -> tuple[int, str]:
    """How many allocations there were before one failed, and what is wrong with what became of it."""
    problems: list[str] = []
    try:
        count = use_once(driver, operation, uses, nth, problems)
    except Exception as error:  # of the end of the world, which nothing is left of
        if not problems:
            raise
        return nth, "; ".join([*problems, f"at the end: {error!r}"])
    return count, "; ".join(problems)


def use_once(driver: str, operation: str, uses: int, nth: int, problems: list[str]) -> int:
    use, failing_new = operations()[operation], ctypes.CDLL(None).failing_new
    with session("h200", driver=driver, check=False) as machine, world() as w:
        raw = Raw()
        for _ in range(uses):
            if isinstance(attempt(use, w), (FeatureNotSupported, AttributeError)):
                return 0
        before = stack(raw)
        failing_new(nth)
        error = attempt(use, w)
        count: int = failing_new(-1)
        if isinstance(error, (FeatureNotSupported, AttributeError)):
            return 0
        if nth and count >= nth and not isinstance(error, MemoryError) and not operation.endswith("__repr__"):
            problems.append(f"ended with {error!r}")
        if stack(raw) != before:
            problems.append(f"the stack was {before} and is {stack(raw)}")
        if (again := attempt(use, w)) is not None:
            problems.append(f"then: {again!r}")
        found = alive(machine)
        for _ in range(2):  # what the package keeps for later is there then
            use(w)
        if more := found - alive(machine):
            problems.append(f"left {dict(more)}")
    return count


def in_a_child(report: Callable[[Callable[[Any], None]], None]) -> Iterator[Any]:
    """What a function reports in a child, and at the end the signal that ended it, if one did."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(writing, "w", buffering=1) as out:
            report(lambda value: print(json.dumps(value), file=out))
            out.close()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        yield from map(json.loads, lines)
    if os.WIFSIGNALED(status := os.waitpid(child, 0)[1]):
        yield os.WTERMSIG(status)


def sweep(each: int | None, seed: int) -> tuple[int, list[str]]:
    """How many allocations failed, and what was wrong."""
    rng, tried, wrong = random.Random(seed), 0, []
    every = product(DRIVERS, operations(), (0, 2))
    few = ((rng.choice(DRIVERS), operation, rng.choice((0, 2))) for operation in operations())
    for place in every if each is None else few:

        def report(tell: Callable[[Any], None], place: Place = place, chosen: float = rng.random()) -> None:
            numbers = range(1, run(*place, 0)[0] + 1)
            for nth in numbers if each is None else random.Random(chosen).sample(numbers, min(each, len(numbers))):
                tell([nth, None])
                tell([nth, run(*place, nth)[1]])

        last = 0
        for found in in_a_child(report):
            last, problem = found if isinstance(found, list) else (last, f"signal {found}")
            tried += problem is None
            if problem:
                print(place, last, problem, file=sys.stderr, flush=True)
                driver, operation, uses = place
                wrong.append(f"{driver}: {operation} after {uses}: allocation {last}: {problem}")
    return tried, wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, help="so many of each operation, on one driver; all without it")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if not hasattr(ctypes.CDLL(None), "failing_new"):
        with tempfile.TemporaryDirectory() as folder:
            again = [sys.executable, "-m", "tests.trust.allocation_sweep", *sys.argv[1:]]
            sys.exit(subprocess.run(again, env={**os.environ, "LD_PRELOAD": str(build(Path(folder)))}).returncode)
    warnings.simplefilter("ignore")
    gc.freeze()  # each machine collects garbage when it ends: not among what is imported, nor do children copy that
    tried, wrong = sweep(chosen.each, chosen.seed)
    print(json.dumps({"tried": tried, "wrong": wrong}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
