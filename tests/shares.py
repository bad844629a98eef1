"""Shares of the tests, for processes that run side by side: whole files, dealt out by the CPU time that each takes.

``pytest --record-costs`` writes the CPU times of the files that it runs, as a whole.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

COSTS = Path(__file__).with_name("costs.json")
REPOSITORY = COSTS.parents[1]
# Seconds: of what is recorded, and of each file that is not.
LEAST_RECORDED = 0.5
NOT_RECORDED = 0.2


def share(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, shares = map(int, found.groups()) if found is not None else (0, 0)
    if not 1 <= number <= shares:
        raise argparse.ArgumentTypeError(f"invalid share {text!r}: write NUMBER/OF, as in 2/20")
    return number, shares


def file_of(item: Any) -> str:
    return str(item.nodeid).partition("::")[0]


def recorded_costs() -> dict[str, float]:
    """The CPU seconds of each test file, with those of its children."""
    costs: dict[str, float] = json.loads(COSTS.read_text())
    return costs


def deal(files: Iterable[str], costs: Mapping[str, float], shares: int) -> list[set[str]]:
    """Files in shares of nearly the same time: the longest first, each to the share that has the least so far."""
    cost = {file: costs.get(file, NOT_RECORDED) for file in files}
    dealt: list[set[str]] = [set() for _ in range(shares)]
    seconds = [0.0] * shares
    for file in sorted(cost, key=lambda file: (-cost[file], file)):
        least = seconds.index(min(seconds))
        dealt[least].add(file)
        seconds[least] += cost[file]
    return dealt


def test_files(places: Iterable[Path], root: Path) -> set[str]:
    """The test files of some places, named as the ids of their tests do."""
    files = (file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place]))
    return {file.relative_to(root).as_posix() for file in files}


class OneShare:
    """A plugin that collects the files of one of several shares, and no others: to import all takes long."""

    def __init__(self, number: int, shares: int, costs: Mapping[str, float]) -> None:
        self._number, self._shares, self._costs = number, shares, costs
        self._others: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        places = [config.invocation_params.dir / place.partition("::")[0] for place in config.args]
        dealt = deal(test_files(places, config.rootpath), self._costs, self._shares)
        self._others = set().union(*dealt) - dealt[self._number - 1]

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        is_other = collection_path.relative_to(config.rootpath).as_posix() in self._others
        return True if is_other else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Files that are named one by one are collected, whatever is to be ignored."""
        others = [item for item in items if file_of(item) in self._others]
        items[:] = [item for item in items if file_of(item) not in self._others]
        config.hook.pytest_deselected(items=others)


def record(seconds: Mapping[str, float], costs: Path = COSTS) -> None:
    """Write the CPU seconds of some test files; what is recorded of the others stays, if they are there."""
    folder = os.open(costs.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # shares end at the same time
        known = {**json.loads(costs.read_text()), **seconds}
        kept = {
            name: round(known[name], 1)
            for name in sorted(known)
            if known[name] >= LEAST_RECORDED and (REPOSITORY / name).is_file()
        }
        new = costs.with_suffix(".new")
        new.write_text(json.dumps(kept, indent=1) + "\n")
        new.replace(costs)  # who reads it meanwhile has all of the old one
    finally:
        os.close(folder)


class CostRecorder:
    """A plugin that records the CPU seconds of each test file that ran."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self._seconds[file_of(item)] += sum(os.times()[:4]) - before

    def pytest_sessionfinish(self) -> None:
        record(self._seconds)
