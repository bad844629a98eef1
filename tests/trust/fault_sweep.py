"""Every public operation, with each of its driver calls failing in turn by each of several codes.

``python -m tests.trust.fault_sweep`` runs all of them, ``--each N --seed S`` so many of each operation. Whatever fails,
the caller gets an error that names the call, the stack of current contexts is as before, nothing is left with the
driver, and the same operation works right afterwards.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from cuda_gctx import CUDAError, CUDAWarning, FeatureNotSupported, system
from cuda_software_driver import Session, session

from ..raw import Raw
from .operations import operations, world

DRIVERS = ("12.4", "12.8", "13.0", "13.1", "13.4")
CODES = (
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_INVALID_CONTEXT",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_NOT_SUPPORTED",
    "CUDA_ERROR_UNKNOWN",
)
# Of the calls of one function in one operation: those after it are polls, or repeat what was tried.
MOST_OF_ONE_FUNCTION = 12
# A driver that answers an error here has ended the capture, which an injected one does not.
ENDS_WHATEVER_IT_ANSWERS = {"cuStreamEndCapture"}
# Answers that are no failure: the context is gone, after which nothing of it can work; this split cannot be had in this
# way, and another way keeps one more context for later splits.
ANSWERS = {
    ("cuCtxGetId", "CUDA_ERROR_INVALID_CONTEXT"),
    ("cuDevSmResourceSplitByCount", "CUDA_ERROR_INVALID_VALUE"),
}
# Calls that may fail without an error for the caller: in which operations, all of them without a name, and what becomes
# of it.
TOLERATED: dict[str, tuple[frozenset[str], str]] = {
    "cuCtxGetId": (frozenset(), "the context counts as there, which only one answer denies; the next call says more"),
    "cuCtxGetCurrent": (frozenset(), "the context counts as not current here; blocks are counted"),
    "cuCtxPopCurrent": (frozenset(), "what is current afterwards is compared, and put right by cuCtxSetCurrent"),
    "cuDevSmResourceSplit": (frozenset(), "another way to the split is tried"),
    "cuStreamGetPriority": (frozenset({"a default stream"}), "the stream counts as there, which one answer denies"),
    "cuKernelGetName": (frozenset({"probe"}), "the kernel has no name in the message"),
    **dict.fromkeys(
        ("cuDeviceGetName", "cuDeviceGetAttribute"),
        (frozenset({"Device.__repr__", "Partitions.verify"}), "the text, or the report, is without it"),
    ),
    "cuCtxGetDevResource": (frozenset({"Context.__repr__"}), "the text is without the number of SMs"),
    **dict.fromkeys(
        (
            *("cuLaunchKernelEx", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuOccupancyMaxPotentialClusterSize"),
            "cuStreamCreateWithPriority",
        ),
        (frozenset({"Partitions.verify"}), "the report is without the map of the chip"),
    ),
}


def is_tolerated(function: str, operation: str) -> bool:
    if operation.endswith(".__repr__"):  # an object can be printed whatever the driver says
        return True
    operations_of, _ = TOLERATED.get(function, (frozenset({""}), ""))
    return not operations_of or operation in operations_of


@dataclass(frozen=True)
class Case:
    driver: str
    operation: str
    uses: int  # how often the operation was done before: what the package keeps for later is there after two
    function: str
    nth: int
    code: str

    def __str__(self) -> str:
        return (
            f"{self.driver}: {self.operation} after {self.uses}: call {self.nth} of {self.function} answers {self.code}"
        )


@dataclass(frozen=True)
class Clean:
    """An operation when nothing fails."""

    calls: Counter[str]
    alive: Counter[str]


def alive(machine: Session) -> Counter[str]:
    """Return what is alive, with leases in place of green contexts, which stay for later requests."""
    gc.collect(0)
    found = Counter(found.kind for found in machine.ledger().live if found.kind != "green context")
    return found + Counter(lease=sum(use.open + use.lingering for use in system.memory().values()))


def stack(raw: Raw) -> list[int]:
    """The contexts that are current on this thread, from the top."""
    found = []
    while raw.current():
        found.append(raw.pop())
    for handle in reversed(found):
        raw.push(handle)
    return found


@cache
def clean(driver: str, operation: str, uses: int) -> Clean | None:
    """None: this driver cannot do the operation."""
    use = operations()[operation]
    before: Counter[str] = Counter()
    with session("h200", driver=driver) as machine, world() as w:
        try:
            for _ in range(uses + 1):
                before = Counter(machine.calls())
                use(w)
        except FeatureNotSupported:
            return None
        except AttributeError:
            if w.workqueue is not None:
                raise
            return None
        gc.collect(0)
        return Clean(Counter(machine.calls()) - before, alive(machine))


def faults(driver: str, operation: str, uses: int) -> list[Case]:
    found = clean(driver, operation, uses)
    return [
        Case(driver, operation, uses, function, nth, code)
        for function, count in sorted(found.calls.items() if found is not None else ())
        if function not in ENDS_WHATEVER_IT_ANSWERS
        for nth in range(1, min(count, MOST_OF_ONE_FUNCTION) + 1)
        for code in CODES
        if (function, code) not in ANSWERS
    ]


def cases() -> Iterator[Case]:
    for driver, operation, uses in product(DRIVERS, operations(), (0, 2)):
        yield from faults(driver, operation, uses)


def some_cases(each: int, seed: int) -> Iterator[Case]:
    """So many of each operation, on one driver."""
    rng = random.Random(seed)
    for operation in operations():
        found = faults(rng.choice(DRIVERS), operation, rng.choice((0, 2)))
        yield from rng.sample(found, min(each, len(found)))


def attempt(use: Any, w: Any) -> Exception | None:
    try:
        use(w)
    except Exception as error:
        return error.with_traceback(None)
    return None


def run(case: Case) -> tuple[str, str]:
    """What became of it, and what is wrong with that."""
    use = operations()[case.operation]
    wanted = clean(case.driver, case.operation, case.uses)
    assert wanted is not None
    with (
        session("h200", driver=case.driver, check=False) as machine,
        world() as w,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        raw = Raw()
        for _ in range(case.uses):
            use(w)
        gc.collect(0)
        before = stack(raw)
        machine.fail(case.function, code=case.code, nth=case.nth)
        error = attempt(use, w)
        fired = machine.faults()["rules"][0]["fired"]
        machine.clear_faults()
        left = alive(machine) - wanted.alive
        told = [str(warning.message) for warning in caught if issubclass(warning.category, CUDAWarning)]
        if not fired:
            return "not reached", ""
        problems = []
        if stack(raw) != before:
            problems.append(f"the stack was {before} and is {stack(raw)}")
        if error is not None and not isinstance(error, CUDAError):
            problems.append(f"raised {error!r}")
        elif error is not None and case.function not in str(error):
            problems.append(f"the error does not name the call: {error}")
        if left and not told:
            problems.append(f"left {dict(left)}")
        again = attempt(use, w)
        if again is not None:
            problems.append(f"then: {again!r}")
        elif alive(machine) != wanted.alive and not told:
            problems.append(f"then alive {dict(alive(machine))}, not {dict(wanted.alive)}")
        outcome = "raised" if error is not None else "warned" if told else "tolerated"
        if outcome == "tolerated" and not is_tolerated(case.function, case.operation):
            problems.append("nobody was told")
        return outcome, "; ".join(problems)


def sweep(chosen: Iterator[Case]) -> tuple[Counter[str], list[str]]:
    """How many ended in which way, and what was wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in chosen:
            outcome, problem = run(case)
            outcomes[outcome] += 1
            if problem:
                wrong.append(f"{case}: {problem}")
    return outcomes, wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, help="so many of each operation, on one driver; all without it")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    gc.freeze()  # each machine collects garbage when it ends: not among what is imported
    outcomes, wrong = sweep(cases() if chosen.each is None else some_cases(chosen.each, chosen.seed))
    print("\n".join(wrong))
    print(
        f"{outcomes.total()} faults in {len(operations())} operations on drivers {', '.join(DRIVERS)}:", dict(outcomes)
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
