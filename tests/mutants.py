"""Mutants of the package: each is one change that breaks a rule, and a test has to fail with it.

    python tests/mutants.py [NAME...]        or: make mutants

copies the installed package, changes one line, and runs the tests that are about it. Prints which test failed, and
exits with 1 if a mutant survived. Takes some seconds for each mutant; only files of Python can be changed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

import cuda_gctx

REPOSITORY = Path(__file__).parents[1]
PACKAGE = Path(cuda_gctx.__file__).parent
LIMIT_S = int(os.environ.get("CUDA_GCTX_MUTANT_SECONDS", "300"))


class Mutant(NamedTuple):
    """A change of a file, and the tests that are run with it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = {
    # The tuner.
    "no gate": Mutant("measure/loop.py", "if gate_s > 0:", "if gate_s < 0:", "tests/tune/test_procedure.py"),
    "no random order": Mutant("measure/loop.py", "order.shuffle(entries)", "pass", "tests/tune/test_procedure.py"),
    "unfair rivals": Mutant(
        "tune/_rounds.py",
        "rivals = [rival for rival in rivals if self.ranking.others_share(rival) >= share]",
        "pass",
        "tests/tune/test_procedure.py",
    ),
    "no margins": Mutant(
        "tune/_final.py", "MARGINS = (1.0, 1.05, 1.1, HOPELESS)", "MARGINS = ()", "tests/tune/test_procedure.py"
    ),
    "clock streams are not waited for": Mutant(
        "tune/_openings.py",
        "{*trial.streams.values(), trial.clock}",
        "{*trial.streams.values()}",
        "tests/tune/test_procedure.py",
    ),
    "left out early at 1.02": Mutant(
        "tune/_ranking.py", "HOPELESS = 1.15", "HOPELESS = 1.02", "tests/tune/test_procedure.py"
    ),
    "one opening": Mutant(
        "tune/_final.py",
        "OPENINGS, MOST_OPENINGS = 2, 4",
        "OPENINGS, MOST_OPENINGS = 1, 1",
        "tests/tune/test_procedure.py",
    ),
    "openings do not count": Mutant(
        "measure/statistics.py",
        "if not self.freedom:\n            return 0.0",
        "if True:\n            return 0.0",
        "tests/tune/test_worlds.py",
    ),
    "sure as soon as the sequence is beaten": Mutant(
        "tune/_ranking.py",
        "decided = len(compared) > 1 and not why and not self.undecided(chosen)",
        "decided = True",
        "tests/tune/test_ranking.py",
    ),
    "many pairs with 80%": Mutant(
        "measure/statistics.py",
        "CHANCE_OF_LOOKS, MANY_PAIRS = 0.01, 15",
        "CHANCE_OF_LOOKS, MANY_PAIRS = 0.2, 15",
        "tests/tune/test_ranking.py",
    ),
    "p99 of fifty calls": Mutant(
        "tune/_measure.py",
        "TAIL_CALLS, OTHER_CALLS = 2, 10",
        "TAIL_CALLS, OTHER_CALLS = 0, 10",
        "tests/tune/test_ranking.py",
    ),
    "clocks do not settle": Mutant(
        "tune/_measure.py", "MOST_SETTLING_S = 1.0", "MOST_SETTLING_S = 0.0", "tests/tune/test_procedure.py"
    ),
    "latencies compared by batches": Mutant(
        "tune/_ranking.py",
        "return ratio_of_quantiles(theirs, ours, objective.quantile)",
        "pass",
        "tests/tune/test_ranking.py",
    ),
    "blocks refute nothing": Mutant(
        "tune/_ranking.py",
        "if record is self.sequence or self.is_refuted(record):",
        "if record is self.sequence:",
        "tests/tune/test_ranking.py",
    ),
    "arrivals wait for earlier calls": Mutant(
        "measure/loop.py",
        "seconds_between(self._begin, end) - due_s",
        "seconds_between(self._begin, end) - max(due_s, self.passed_s)",
        "tests/measure/test_loop.py",
    ),
    "sizes that were asked for wait for other plans": Mutant(
        "tune/_search.py", "            self._open_asked()\n", "            pass\n", "tests/tune/test_budget.py"
    ),
    "launch-bound work by one thread": Mutant(
        "tune/_rounds.py",
        "self.runner.start_hosts(self.task.names)",
        "pass",
        "tests/tune/test_launch.py",
    ),
    "one pair of host threads": Mutant(
        "tune/_rounds.py",
        "            if self.found.by_host_threads:\n",
        "            if False:\n",
        "tests/tune/test_worlds.py",
    ),
    "a gate where only plans that overlap are launch-bound": Mutant(
        "tune/_rounds.py",
        'if self.runner.launch != "graphs" and',
        "if False and",
        "tests/tune/test_launch.py",
    ),
    "a gate in launch-bound work": Mutant(
        "tune/_measure.py",
        "return AHEAD.gate_s(host_s) if self.gated else 0.0",
        "return AHEAD.gate_s(host_s)",
        "tests/tune/test_launch.py",
    ),
    "one part of a mix after the other": Mutant(
        "tune/_batches.py",
        "trial.mix(counts) if joined or not apart else _evenly(trial.parts, counts)",
        "trial.mix(counts)",
        "tests/tune/test_launch.py",
    ),
    "long steps in batches of three": Mutant(
        "tune/_measure.py",
        "return LEAST_STEPS if LEAST_STEPS * step_s <= MOST_STRETCH * BATCH_S else 1",
        "return LEAST_STEPS",
        "tests/tune/test_search.py tests/tune/test_reasons.py -k number_of_steps",
    ),
    "blocks of short batches of mixes": Mutant(
        "tune/_final.py",
        "sample = self.runner.batch(trial, shape if settles else longest)",
        "sample = self.runner.batch(trial, shape)",
        "tests/tune/test_procedure.py",
    ),
    "stalls count only where clocks have settled": Mutant(
        "tune/_ranking.py",
        'yield ratio_of_totals(whole).value, "mean of blocks", other',
        'yield 1.0, "mean of blocks", other',
        "tests/tune/test_ranking.py",
    ),
    "a limit that is met exactly is missed": Mutant(
        "tune/_policy.py",
        "best = row.best[bisect_right(row.limits, limit_s)]",
        "best = row.best[bisect_left(row.limits, limit_s)]",
        "tests/tune/test_policies.py",
    ),
    "a negative load is the smallest": Mutant(
        "tune/_policy.py",
        "if not 0 < index < size:",
        "if not index < size:",
        "tests/tune/test_policies.py",
    ),
    "what service shows is not asked for": Mutant(
        "tune/_policy.py",
        "self._rows[:] = [None] * len(self._rows)",
        "pass",
        "tests/tune/test_policies.py",
    ),
    "a policy of another card": Mutant(
        "tune/_policy.py",
        "policy.demand_device(device_of(device))",
        "pass",
        "tests/tune/test_policies.py",
    ),
    "a policy of no card is saved": Mutant(
        "tune/_policy.py",
        "self._demand_card()\n        return super()",
        "return super()",
        "tests/tune/test_policies.py",
    ),
    "an interval of another quantity": Mutant(
        "measure/statistics.py",
        "if not self.low <= self.value <= self.high:",
        "if False:",
        "tests/tune/test_intervals.py",
    ),
    "one latency counts for all that service showed": Mutant(
        "tune/_policy.py",
        "return known + (up if off > 0 else down) * off",
        "return known + off",
        "tests/tune/test_policies.py",
    ),
    "curves by the calls of one round": Mutant(
        "tune/_curves.py",
        "Estimate.of(side, quantile, certainty_of(rounds))",
        "Estimate.of(side[:1], quantile, certainty_of(rounds))",
        "tests/tune/test_curves.py",
    ),
    "curves at one rate for all sizes": Mutant(
        "tune/_curves.py",
        "self.runner.alone_s[PART] = size.alone.step_s  # half",
        "pass  # half",
        "tests/tune/test_curves.py",
    ),
    "a share too little": Mutant(
        "tune/_batches.py",
        "joint = min(weights[first.name], round(weights[other.name] / self.share))",
        "joint = max(1, weights[first.name] // 2)",
        "tests/tune/test_together.py",
    ),
    "the rate of a share is that of all": Mutant(
        "tune/_measure.py",
        "(trial.share * len(taken), arrivals.passed_s)",
        "(len(taken), arrivals.passed_s)",
        "tests/tune/test_together.py",
    ),
    "shares are not refined": Mutant(
        "tune/_search.py",
        "for power in (0.5, 0.25, 0.125):",
        "for power in ():",
        "tests/tune/test_together.py",
    ),
    "a fork joins the first block of a stream": Mutant(
        "interop/_fork.py",
        "self._ends[self._streams.key(inner)] = self._streams.record(inner)",
        "self._ends.setdefault(self._streams.key(inner), self._streams.record(inner))",
        "tests/interop/test_torch.py",
    ),
    "no hysteresis": Mutant(
        "tune/_policy.py",
        "if row.rate[in_use] >= row.rate[best] * (1 - self.hysteresis):",
        "if False:",
        "tests/tune/test_policies.py",
    ),
    # Partitions, pools, stores and verification.
    "a partition waits for one stream": Mutant(
        "partitions/partitions.py",
        "self.context.wait_context(other.context)",
        "self.context.wait_event(other.stream.record())",
        "tests/partitions/test_partitions.py",
    ),
    "shares without slack": Mutant(
        "partitions/split.py",
        "SHARE_SLACK = 1e-6",
        "SHARE_SLACK = -1e-9",
        "tests/partitions/test_layout.py tests/partitions/test_partitions.py",
    ),
    "a refused opening loses stored contexts": Mutant(
        "partitions/opening.py",
        "put_back([stored for stored in available if stored is not None])",
        "pass",
        "tests/partitions/test_partitions.py",
    ),
    "a refused opening keeps its claim": Mutant(
        "partitions/opening.py",
        "def abandon(self) -> None:\n        self._claim.release()",
        "def abandon(self) -> None:\n        pass",
        "tests/partitions",
    ),
    "contexts come back before their SMs": Mutant(
        "partitions/store.py",
        "claim.release()\n            store._put(self.own, self._order)",
        "store._put(self.own, self._order)\n            claim.release()",
        "tests/partitions",
    ),
    "the oldest context is lent first": Mutant(
        "partitions/store.py",
        "reversed(list(self._sets)):\n            for stored in list(stored_set.contexts):",
        "list(self._sets):\n            for stored in list(stored_set.contexts):",
        "tests/partitions",
    ),
    "contexts that cannot be lent are stored": Mutant(
        "partitions/store.py",
        "if not _can_all_be_lent(contexts):\n            spoiled",
        "if False:\n            spoiled",
        "tests/partitions",
    ),
    "verification with one block for each SM": Mutant(
        "partitions/verification.py",
        "per_sm = max(1, probe_blocks_per_sm(next(iter(contexts.values()))))",
        "per_sm = 1",
        "tests/partitions",
    ),
    "an overlay counts as isolated": Mutant(
        "partitions/verification.py",
        "if not {shared.first, shared.second} & set(self.over):",
        "if False:",
        "tests/partitions/test_verify.py",
    ),
    "a switch takes a place for its part": Mutant(
        "partitions/arrangements.py",
        "(self._parts.setdefault(part, len(self._parts)), place.context,",
        "(place.context.id, place.context,",
        "tests/partitions/test_order.py",
    ),
    "a switch in a capture does not know what moves": Mutant(
        "partitions/arrangements.py",
        "or parts[source] & new.parts_at(at)",
        "",
        "tests/partitions/test_switching.py",
    ),
    "a switch back joins nothing that is left": Mutant(
        "partitions/arrangements.py",
        "for stream in captures.keys() - ordered - set(inside):",
        "for stream in ():",
        "tests/partitions/test_switching.py",
    ),
    "requests are found by values of any type": Mutant(
        "partitions/pool.py",
        "spelled = spelling(requests, named)",
        "asked = requests[0] if requests else None\n"
        "        spelled = tuple(asked.items()) if isinstance(asked, dict) else spelling(requests, named)",
        "tests/partitions/test_pool.py",
    ),
    "a mapping is found by its names in any order": Mutant(
        "partitions/pool.py",
        "spelled = spelling(requests, named)",
        "asked = requests[0] if requests else None\n"
        "        spelled = spelling((dict(sorted(asked.items())),) if isinstance(asked, dict) else requests, named)",
        "tests/partitions/test_pool.py",
    ),
    "a layout is found by its names in any order": Mutant(
        "partitions/pool.py",
        "spelled = spelling(requests, named)",
        "spelled = tuple(sorted(named.items())) if named else spelling(requests, named)",
        "tests/partitions/test_pool.py",
    ),
}


def misfits() -> list[str]:
    """The mutants that do not apply: their text has changed or their file has moved."""
    found = []
    for name, mutant in MUTANTS.items():
        file = PACKAGE / mutant.file
        count = file.read_text().count(mutant.old) if file.exists() else 0
        if count != 1:
            found.append(f"{name}: {mutant.file} has {count} times: {mutant.old}")
        for test in mutant.tests.split(" -k ")[0].split():
            if not (REPOSITORY / test).exists():
                found.append(f"{name}: {test} does not exist")
    return found


def failed_test(tests: str, folder: Path, limit_s: float = LIMIT_S, **environment: str) -> str | None:
    """The first of some tests that fails with the package of a folder, or how else they ended; None if they pass."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:anyio",
        *shlex.split(tests),
    ]
    known = os.environ.get("PYTHONPATH", "")
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [known])]), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=os.environ | paths | environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"(not done after {limit_s} s)"
    said = done.stdout + done.stderr
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise SystemExit(f"no test is chosen by {tests}: {said.strip()[-300:]}")
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"(exit code {done.returncode}) {said.strip()[-100:]!r}"


def killed_by(mutant: Mutant, folder: Path) -> str | None:
    """The first test that fails with the mutant; None if it survives."""
    copy = folder / "cuda_gctx"
    shutil.copytree(PACKAGE, copy, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / mutant.file
    text = file.read_text()
    file.unlink()  # a link to the installed file
    file.write_text(text.replace(mutant.old, mutant.new))
    return failed_test(mutant.tests, folder)


def main() -> int:
    if PACKAGE == REPOSITORY / "cuda_gctx":
        raise SystemExit("the install is editable, so that a copy would not be imported: use 'make mutants'")
    if found := misfits():
        raise SystemExit("these mutants do not apply:\n" + "\n".join(found))
    survivors = 0
    for name in sys.argv[1:] or MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            test = killed_by(MUTANTS[name], Path(folder))
        survivors += test is None
        print(f"{name:45} {'SURVIVED' if test is None else test}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
